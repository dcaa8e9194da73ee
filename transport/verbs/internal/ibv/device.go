//go:build linux && cgo

package ibv

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Device is an open device.
type Device struct {
	context *C.struct_gv_context
	name    string
}

// Devices returns the names of this host's devices. None is no error.
func Devices() ([]string, error) {
	var names []string
	err := each(func(name string, _ unsafe.Pointer) bool { names = append(names, name); return true })
	return names, err
}

// each calls f for every device until it returns false.
func each(f func(name string, device unsafe.Pointer) bool) error {
	if err := load(); err != nil {
		return err
	}
	var n C.int
	list, err := C.gv_device_list(&n)
	if list == nil {
		err = made("ibv_get_device_list", false, err)
		if errors.Is(err, syscall.ENOSYS) {
			err = fmt.Errorf("RDMA verbs: this kernel has none, or its module ib_uverbs is not loaded: %w", err)
		}
		return err
	}
	defer C.gv_free_device_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if !f(C.GoString(C.gv_device_name(d)), d) {
			break
		}
	}
	return nil
}

// Open opens a device by name.
func Open(name string) (*Device, error) {
	var d *Device
	var failed error
	var names []string
	err := each(func(n string, device unsafe.Pointer) bool {
		names = append(names, n)
		if n != name {
			return true
		}
		c, err := C.gv_open(device)
		if failed = made("ibv_open_device "+name, c != nil, err); failed == nil {
			d = &Device{context: c, name: name}
		}
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	case d == nil:
		return nil, fmt.Errorf("RDMA verbs: no device %q among %q: %w", name, names, os.ErrNotExist)
	}
	return d, nil
}

// Name is the device's.
func (d *Device) Name() string { return d.name }

// Close closes the device. Everything made on it must be closed before.
func (d *Device) Close() error { return failure("ibv_close_device", C.gv_close(d.context)) }

// Vectors is the number of completion vectors.
func (d *Device) Vectors() int { return int(d.context.vectors) }

// Limits asks the device.
func (d *Device) Limits() (Limits, error) {
	var a C.struct_gv_device_attr
	if err := failure("ibv_query_device", C.gv_query_device(d.context, &a)); err != nil {
		return Limits{}, err
	}
	return Limits{
		Firmware: C.GoString(&a.fw[0]), Vendor: uint32(a.vendor), MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge),
		MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr), MaxPD: int(a.max_pd),
		MaxRDAtomic: int(a.max_qp_rd_atom), MaxInitRDAtomic: int(a.max_qp_init_rd_atom),
		MaxSRQ: int(a.max_srq), MaxSRQWR: int(a.max_srq_wr), MaxAH: int(a.max_ah), Ports: int(a.ports),
		MaxMRBytes: uint64(a.max_mr_size), Atomics: a.atomic_cap != 0, XRC: a.caps&CapXRC != 0,
	}, nil
}

// Port asks about port number, from 1 on.
func (d *Device) Port(number int) (Port, error) {
	var a C.struct_gv_port_attr
	if err := failure("ibv_query_port", C.gv_query_port(d.context, C.int(number), &a)); err != nil {
		return Port{}, err
	}
	return Port{
		Number: uint8(number), State: PortState(a.state), LinkLayer: LinkLayer(a.link_layer), MaxMTU: MTU(a.max_mtu), ActiveMTU: MTU(a.active_mtu),
		LID: uint16(a.lid), SMLID: uint16(a.sm_lid), GIDs: int(a.gids), PKeys: int(a.pkeys), MaxMsg: uint32(a.max_msg),
		Width: uint8(a.width), Speed: uint8(a.speed),
	}, nil
}

// GIDs returns the entries of all ports' tables that are not empty. A library before 1.11 gives an error wrapping errors.ErrUnsupported.
func (d *Device) GIDs() ([]GIDEntry, error) {
	limits, err := d.Limits()
	if err != nil {
		return nil, err
	}
	total := 0
	for p := 1; p <= limits.Ports; p++ {
		port, err := d.Port(p)
		if err != nil {
			return nil, err
		}
		total += port.GIDs
	}
	if total == 0 {
		return nil, nil
	}
	raw := make([]C.struct_gv_gid_entry, total)
	n := C.gv_query_gids(d.context, &raw[0], C.long(total))
	if n < 0 {
		return nil, &Error{Verb: "ibv_query_gid_table", Errno: syscall.Errno(-n)}
	}
	entries := make([]GIDEntry, n)
	for i := range entries {
		r := &raw[i]
		entries[i] = GIDEntry{GID: *(*GID)(unsafe.Pointer(&r.gid)), Index: int(r.index), Port: int(r.port), Type: GIDType(r._type), NetDev: int(r.netdev)}
	}
	return entries, nil
}

// GID reads one entry, which is all zero when it is empty.
func (d *Device) GID(port, index int) (GID, error) {
	var g C.struct_gv_gid
	if err := failure("ibv_query_gid", C.gv_query_gid(d.context, C.int(port), C.int(index), &g)); err != nil {
		return GID{}, err
	}
	return *(*GID)(unsafe.Pointer(&g)), nil
}

// PKey reads an entry of the partition key table.
func (d *Device) PKey(port, index int) (uint16, error) {
	var k C.uint16_t
	err := failure("ibv_query_pkey", C.gv_query_pkey(d.context, C.int(port), C.int(index), &k))
	return uint16(k), err
}

// EventFD is the descriptor that is readable when there is an asynchronous event. It is the device's.
func (d *Device) EventFD() int { return int(d.context.async_fd) }

// Event takes an asynchronous event, with the port's number where it is about a port. It blocks unless EventFD does not;
// then without an event the error is syscall.EAGAIN.
func (d *Device) Event() (Event, int, error) {
	var kind C.uint32_t
	var object C.uint64_t
	if err := failure("ibv_get_async_event", C.gv_async(d.context, &kind, &object)); err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			err = syscall.EAGAIN
		}
		return 0, 0, err
	}
	return Event(kind), int(int32(object)), nil
}

// String is the library's name for the event.
func (e Event) String() string {
	if load() != nil {
		return fmt.Sprintf("event %d", uint32(e))
	}
	return C.GoString(C.gv_event_name(C.uint32_t(e)))
}
