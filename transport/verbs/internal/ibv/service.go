//go:build linux && cgo

package ibv

// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// Service is one of those that only some providers have.
type Service string

// Services besides RC, UC and UD.
const (
	XRC    Service = "XRC"     // receive queues of a process for senders of many
	DC     Service = "DC"      // connections that the device makes and ends by itself: Mellanox's own
	DMABuf Service = "DMA-BUF" // registration of device memory that was exported
)

// Probe reports whether the device has the service: nil, or an error wrapping errors.ErrUnsupported that names it, or what else was in the
// way. It makes what it takes to know and frees it.
func (d *Device) Probe(s Service) error {
	switch s {
	case XRC:
		xrcd, err := C.gv_open_xrcd(d.context)
		if err := made("ibv_open_xrcd", xrcd != nil, err); err != nil {
			return err
		}
		return failure("ibv_close_xrcd", C.gv_close_xrcd(d.context, xrcd))
	case DC:
		var errno C.int
		err := each(func(name string, device unsafe.Pointer) bool {
			if name != d.name {
				return true
			}
			errno = C.gv_probe_dc(device)
			return false
		})
		if err != nil {
			return err
		}
		return failure("DC of "+d.name, errno)
	case DMABuf:
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		defer pd.Close()
		// No descriptor is -1: who knows the verb says so, who does not says that.
		_, err = pd.RegisterDMABuf(-1, 0, 4096, 0, LocalWrite)
		switch e, ok := err.(*Error); {
		case !ok:
			return err
		case e.Errno == syscall.EOPNOTSUPP, e.Errno == syscall.ENOSYS, e.Errno == syscall.EPROTONOSUPPORT:
			return &Error{Verb: e.Verb, Errno: syscall.EOPNOTSUPP}
		}
		return nil
	}
	return &Error{Verb: string(s), Errno: syscall.EOPNOTSUPP}
}
