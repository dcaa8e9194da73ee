//go:build linux && cgo

package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSleepAfterSeal: who reads a short message by its seal, and sleeps again without another look, is woken by the next one.
func TestSleepAfterSeal(t *testing.T) {
	needDevices(t, 1)
	d := newDuo(t, testOptions(), small())
	d.pass(0, message(8))
	d.pass(1, message(8))
	b, got := message(8), make([]byte, 8)
	for k := range 40 {
		receive := func() bool {
			ok, err := d.conns[1].Stream(0).Recv(1, bufOf(got))
			require.NoError(t, err)
			return ok
		}
		d.eps[1].FD()
		ok, err := d.conns[0].Stream(0).Send(1, bufOf(b))
		require.NoError(t, err)
		require.True(t, ok)
		for come := false; !come; {
			require.True(t, woken(t, d.eps[1].epoll), "message %d", k)
			if come = receive(); !come { // that was about something else
				d.eps[1].FD()
				come = receive()
			}
		}
		for d.eps[0].poll() { // the credit
		}
	}
}

// woken sleeps until the descriptor is readable.
func woken(t *testing.T, epoll int) bool {
	var events [4]unix.EpollEvent
	for deadline := time.Now().Add(patience / 4); ; {
		n, err := unix.EpollWait(epoll, events[:], max(0, int(time.Until(deadline).Milliseconds())))
		if err != unix.EINTR {
			require.NoError(t, err)
			return n > 0
		}
	}
}
