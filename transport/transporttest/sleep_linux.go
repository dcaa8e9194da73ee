package transporttest

import (
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// sleeperOf returns the endpoint's way to sleep, or nil and why there is none.
func sleeperOf(e transport.Endpoint, way string, woken <-chan struct{}) (sleeper, string) {
	bell, hasBell := e.(transport.Bell)
	poll, hasPoll := e.(transport.Pollable)
	switch {
	case way == "Bell" && hasBell:
		return futexSleeper(bell), ""
	case way == "Pollable" && hasPoll:
		return epollSleeper(poll), ""
	case way == "Wake" && !hasBell && !hasPoll:
		return wakeup(woken), ""
	}
	return nil, e.Name() + " wakes in another way"
}

func futexSleeper(bell transport.Bell) sleeper {
	const futexWait = 0 // FUTEX_WAIT, not private
	return func(ready func() (bool, error)) error {
		bell.Arm()
		defer bell.Disarm()
		if ok, err := ready(); ok || err != nil {
			return err
		}
		deadline := time.Now().Add(nap)
		for atomic.LoadUint32(bell.Word()) == 1 {
			left := time.Until(deadline)
			if left <= 0 {
				return errNotWoken
			}
			ts := unix.NsecToTimespec(int64(left))
			_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell.Word())), futexWait, 1, uintptr(unsafe.Pointer(&ts)), 0, 0)
			if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR && errno != unix.ETIMEDOUT {
				return errno
			}
		}
		return nil
	}
}

func epollSleeper(poll transport.Pollable) sleeper {
	return func(ready func() (bool, error)) error {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		events := make([]unix.EpollEvent, 16)
		deadline := time.Now().Add(nap)
		for {
			n, err := unix.EpollWait(poll.FD(), events, int(time.Until(deadline).Milliseconds()))
			switch {
			case err != nil && !errors.Is(err, unix.EINTR):
				return err
			case n > 0:
				return nil
			case time.Now().After(deadline):
				return errNotWoken
			}
		}
	}
}
