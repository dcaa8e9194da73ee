//go:build linux && cgo

package cu

/*
#cgo CFLAGS: -std=gnu11 -O2
#cgo LDFLAGS: -ldl
#cgo noescape cu_stream_query
#cgo nocallback cu_stream_query
#cgo noescape cu_event_query
#cgo nocallback cu_event_query
#cgo noescape cu_stream_capturing
#cgo nocallback cu_stream_capturing
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// Load opens the driver's library and initialises it, once for the process. A library or device that is not there is an error
// that wraps errors.ErrUnsupported.
func Load() error { return load() }

var load = sync.OnceValue(func() error {
	name := C.CString(Library)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	if C.cu_load(name, &why[0], C.size_t(len(why))) != 0 {
		return fmt.Errorf("cu: no CUDA driver: %s: %w", C.GoString(&why[0]), errors.ErrUnsupported)
	}
	return check("cuInit", C.cu_init())
})

func check(call string, r C.cu_result) error {
	if r == 0 {
		return nil
	}
	return &Error{call, Result(r)}
}

func describe(r Result) (name, text string) {
	if n := C.cu_error_name(C.cu_result(r)); n != nil {
		return C.GoString(n), C.GoString(C.cu_error_string(C.cu_result(r)))
	}
	return "", ""
}

// address is the number of a device address, pointer the inverse.
func address(p unsafe.Pointer) C.cu_ptr { return C.cu_ptr(uintptr(p)) }

func pointer(p *C.cu_ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(p)) }

// DriverVersion returns the CUDA version of the driver, 13000 for 13.0.
func DriverVersion() (int, error) {
	var v C.int
	err := check("cuDriverGetVersion", C.cu_driver_version(&v))
	return int(v), err
}

// DeviceCount returns the number of devices.
func DeviceCount() (int, error) {
	var n C.int
	err := check("cuDeviceGetCount", C.cu_device_count(&n))
	return int(n), err
}

// DeviceName returns the name of a device, such as "NVIDIA H200".
func DeviceName(ordinal int) (string, error) {
	var b [256]C.char
	err := check("cuDeviceGetName", C.cu_device_name(C.int(ordinal), &b[0], C.int(len(b))))
	return C.GoString(&b[0]), err
}

// DeviceAttribute returns an attribute of a device.
func DeviceAttribute(ordinal, attribute int) (int, error) {
	var v C.int
	err := check("cuDeviceGetAttribute", C.cu_device_attribute(C.int(ordinal), C.int(attribute), &v))
	return int(v), err
}

// DeviceUUID returns the identity of a device, the same in all processes.
func DeviceUUID(ordinal int) (id [16]byte, err error) {
	err = check("cuDeviceGetUuid", C.cu_device_uuid(C.int(ordinal), (*C.uchar)(&id[0])))
	return id, err
}

// CanAccessPeer reports whether kernels on a device can load from and store to the memory of another.
func CanAccessPeer(ordinal, peer int) (bool, error) {
	var can C.int
	err := check("cuDeviceCanAccessPeer", C.cu_can_access_peer(C.int(ordinal), C.int(peer), &can))
	return can != 0, err
}

// PeerAttribute returns an attribute of the way from a device to another.
func PeerAttribute(ordinal, peer, attribute int) (int, error) {
	var v C.int
	err := check("cuDeviceGetP2PAttribute", C.cu_peer_attribute(C.int(ordinal), C.int(peer), C.int(attribute), &v))
	return int(v), err
}

// PrimaryRetain returns the primary context of a device, which the CUDA runtime's users share, and holds it until PrimaryRelease.
func PrimaryRetain(ordinal int) (Context, error) {
	var c C.cu_ctx
	err := check("cuDevicePrimaryCtxRetain", C.cu_primary_retain(C.int(ordinal), &c))
	return Context(c), err
}

// PrimaryRelease lets go of what PrimaryRetain held.
func PrimaryRelease(ordinal int) error {
	return check("cuDevicePrimaryCtxRelease", C.cu_primary_release(C.int(ordinal)))
}

// EnablePeer lets ctx use all cuMemAlloc memory of peer, also what is to come. Twice is no error.
func EnablePeer(ctx, peer Context) error {
	r := C.cu_enable_peer(C.cu_ctx(ctx), C.cu_ctx(peer))
	if Result(r) == PeerAlreadyEnabled {
		return nil
	}
	return check("cuCtxEnablePeerAccess", r)
}

// MemInfo returns the free and all memory of the context's device in bytes.
func MemInfo(ctx Context) (free, total int64, err error) {
	var f, t C.size_t
	err = check("cuMemGetInfo", C.cu_mem_info(C.cu_ctx(ctx), &f, &t))
	return int64(f), int64(t), err
}

// Synchronize waits for everything queued in the context.
func Synchronize(ctx Context) error { return check("cuCtxSynchronize", C.cu_ctx_sync(C.cu_ctx(ctx))) }

// ModuleLoad compiles PTX for the device at hand, or takes what the driver has from an earlier time. A failure's text holds the
// compiler's log.
func ModuleLoad(ctx Context, ptx []byte) (Module, error) {
	image := C.CString(string(ptx)) // ends in a zero byte
	defer C.free(unsafe.Pointer(image))
	const room = 8 << 10
	log := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(log))
	var m C.cu_module
	err := check("cuModuleLoadDataEx", C.cu_module_load(C.cu_ctx(ctx), unsafe.Pointer(image), log, room, &m))
	if text := C.GoString(log); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return Module(m), err
}

// ModuleUnload frees a module. No kernel of it may be queued.
func ModuleUnload(ctx Context, m Module) error {
	return check("cuModuleUnload", C.cu_module_unload(C.cu_ctx(ctx), C.cu_module(m)))
}

// ModuleFunction finds a kernel by name.
func ModuleFunction(ctx Context, m Module, name string) (Function, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var f C.cu_fn
	err := check("cuModuleGetFunction of "+name, C.cu_module_function(C.cu_ctx(ctx), C.cu_module(m), n, &f))
	return Function(f), err
}

// FunctionAttribute returns an attribute of a kernel.
func FunctionAttribute(ctx Context, f Function, attribute int) (int, error) {
	var v C.int
	err := check("cuFuncGetAttribute", C.cu_function_attribute(C.cu_ctx(ctx), C.cu_fn(f), C.int(attribute), &v))
	return int(v), err
}

// Occupancy returns how many blocks of so many threads run at once on one multiprocessor.
func Occupancy(ctx Context, f Function, threads int) (int, error) {
	var v C.int
	err := check("cuOccupancyMaxActiveBlocksPerMultiprocessor", C.cu_occupancy(C.cu_ctx(ctx), C.cu_fn(f), C.int(threads), &v))
	return int(v), err
}
