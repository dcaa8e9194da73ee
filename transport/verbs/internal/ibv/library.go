//go:build linux && cgo

package ibv

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape gv_post_send
#cgo nocallback gv_post_send
#cgo noescape gv_post_recv
#cgo nocallback gv_post_recv
#cgo noescape gv_post_srq
#cgo nocallback gv_post_srq
#cgo noescape gv_poll
#cgo nocallback gv_poll
#cgo nocallback gv_arm
#cgo nocallback gv_drain
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
)

// load opens the library once per process.
func load() error {
	if why := C.GoString(C.gv_load()); why != "" {
		return fmt.Errorf("RDMA verbs: %s (libibverbs.so.1 comes with the package libibverbs1 or rdma-core): %w", why, errors.ErrUnsupported)
	}
	return nil
}

// failure names the verb that returned an errno. EOPNOTSUPP and ENOSYS are errors.ErrUnsupported already.
func failure(verb string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	return &Error{Verb: verb, Errno: syscall.Errno(errno)}
}

// made is failure for a verb that returned an object or nil.
func made(verb string, ok bool, err error) error {
	if ok {
		return nil
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	return &Error{Verb: verb, Errno: errno}
}
