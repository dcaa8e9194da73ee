//go:build linux && cgo

// Package nccl calls NVIDIA's NCCL, so that a benchmark can measure it and gccl in one process, in turn, on the same streams. It opens
// libnccl.so.2 at run time; all GPUs belong to one process and one goroutine at a time. It is for measuring, and what NCCL
// has allocated stays until the process ends.
//
//	c, err := nccl.New(2, 1<<30, true) // once nccl.Version has opened the library
//	if err != nil {
//		return err // names what is missing
//	}
//	defer c.Close()
//	err = c.Do(nccl.AllReduce, 1024, nccl.Float32, streams)
package nccl

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// The kinds of calls, by the shim's numbers. A SendRecv is a ring: every rank sends to the next.
const (
	AllReduce = iota
	AllGather
	ReduceScatter
	AllToAll
	Broadcast
	SendRecv
)

// Types of elements, by NCCL's numbers.
const (
	Float32  = 7
	Bfloat16 = 9
)

// A Comm is a communicator of every GPU from 0 on, with two buffers for each.
type Comm struct {
	comms, src, dst []C.uintptr_t
	registered      bool
}

func check(call string, r C.int) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("nccl: %s: %s (%d)", call, C.GoString(C.nccl_error(r)), int(r))
}

// Version opens the library and returns its version, 22803 for 2.28.3. Where it is missing the error wraps errors.ErrUnsupported.
func Version() (int, error) {
	var why [256]C.char
	if C.nccl_load(&why[0], C.size_t(len(why))) != 0 {
		return 0, fmt.Errorf("nccl: %s: %w", C.GoString(&why[0]), errors.ErrUnsupported)
	}
	var v C.int
	err := check("ncclGetVersion", C.nccl_version(&v))
	return int(v), err
}

// New makes a communicator over n GPUs, after Version, with buffers of so many bytes by ncclMemAlloc. Registered buffers are in a
// symmetric window.
func New(n int, bytes int64, registered bool) (*Comm, error) {
	c := &Comm{make([]C.uintptr_t, n), make([]C.uintptr_t, n), make([]C.uintptr_t, n), registered}
	devices := make([]C.int, n)
	for i := range devices {
		devices[i] = C.int(i)
	}
	if n > C.max_ranks {
		return nil, fmt.Errorf("nccl: %d GPUs, want at most %d", n, C.max_ranks)
	}
	if err := check("ncclCommInitAll", C.nccl_init(&c.comms[0], C.int(n), &devices[0])); err != nil {
		return nil, err
	}
	for _, buffers := range [][]C.uintptr_t{c.src, c.dst} {
		for i := range buffers {
			if err := check("ncclMemAlloc", C.nccl_alloc(C.int(i), C.size_t(bytes), &buffers[i])); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
		if !registered {
			continue
		}
		if err := check("ncclCommWindowRegister", C.nccl_register(C.int(n), &c.comms[0], &buffers[0], C.size_t(bytes))); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Source returns the address of a rank's input, which nobody has written.
func (c *Comm) Source(rank int) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&c.src[rank]))
}

// Registered reports whether the buffers are in a window.
func (c *Comm) Registered() bool { return c.registered }

// Do queues one call of all ranks, of count elements a block, on a stream each.
func (c *Comm) Do(kind, count, dtype int, streams []uintptr) error {
	return check("a call", C.nccl_call(C.int(kind), C.int(len(c.comms)), &c.comms[0], &c.src[0], &c.dst[0], C.size_t(count), C.int(dtype), (*C.uintptr_t)(unsafe.Pointer(&streams[0]))))
}

// Close frees the communicators, once all their work is done.
func (c *Comm) Close() (err error) {
	for _, one := range c.comms {
		err = errors.Join(err, check("ncclCommDestroy", C.nccl_destroy(one)))
	}
	return err
}
