package kernels

import (
	"fmt"
	"unsafe"
)

// A Mem is a piece of memory that somebody else owns. Whoever is given one may use it until the
// call it came with returns, and neither frees nor keeps it. Ptr holds Go memory alive as any
// pointer does; memory from elsewhere must outlive the call. The zero value is no memory at all.
type Mem struct {
	Ptr    unsafe.Pointer // first byte, in the address space that Device says
	Bytes  int64          // length; Ptr may be nil when it is 0
	Device Device         // where it is
}

// MemOf returns the memory of s, on the host. It is empty for an empty s.
func MemOf[T Number](s []T) Mem {
	var zero T
	return Mem{Ptr: unsafe.Pointer(unsafe.SliceData(s)), Bytes: int64(len(s)) * int64(unsafe.Sizeof(zero))}
}

// A DeviceKind is a kind of memory.
type DeviceKind uint8

// The kinds of devices.
const (
	Host DeviceKind = 0 // memory that the processor loads from and stores to
	CUDA DeviceKind = 1 // memory of an NVIDIA GPU
)

// A Device says whose memory a Mem is. It is comparable, and its zero value is the host.
type Device struct {
	Kind    DeviceKind
	Ordinal int32 // the CUDA driver's device ordinal, from 0; 0 for the host
}

// IsHost reports whether d is the host.
func (d Device) IsHost() bool { return d.Kind == Host }

// String returns "host", or as in "cuda:1" the kind and the ordinal.
func (d Device) String() string {
	switch d.Kind {
	case Host:
		return "host"
	case CUDA:
		return fmt.Sprintf("cuda:%d", d.Ordinal)
	}
	return fmt.Sprintf("DeviceKind(%d):%d", uint8(d.Kind), d.Ordinal)
}
