//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// grace is what a goodbye, which comes through the device, may be behind the end of the socket.
const grace = 5 * time.Millisecond

var errNoGoodbye = fmt.Errorf("%w: the connection ended without a goodbye: the process has died or was killed", transport.ErrGone)

// die lets the driver know, from another goroutine, that the link is no good any more.
func (l *link) die(why error) {
	l.dead.CompareAndSwap(nil, &why)
	l.e.poke()
}

// watchDevice begins to take the device's asynchronous events: most are only logged, the end of the device, or of its completion queue, is that of all QPs on it.
func (e *endpoint) watchDevice(n *nic) error {
	d := n.device
	if err := unix.SetNonblock(d.EventFD(), true); err != nil {
		return fmt.Errorf("verbs: events of %s: %w", n, err)
	}
	fd, err := unix.FcntlInt(uintptr(d.EventFD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("verbs: events of %s: %w", n, err)
	}
	file := os.NewFile(uintptr(fd), d.Name()) // in the runtime's poller, and closed by itself
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return fmt.Errorf("verbs: events of %s: %w", n, err)
	}
	n.events = file
	e.watchers.Go(func() {
		for {
			var event ibv.Event
			var port int
			var failed error
			err := raw.Read(func(uintptr) bool {
				event, port, failed = d.Event()
				return !errors.Is(failed, unix.EAGAIN)
			})
			if err != nil || failed != nil {
				return // closed
			}
			e.note(n, event, port)
		}
	})
	return nil
}

// watchOver lets whoever finds out that a device has failed tell the driver.
func (e *endpoint) watchOver(n *nic) {
	n.condemn = func(why error) {
		e.post(func() error {
			n.fail(why)
			return nil
		})
	}
}

func (e *endpoint) note(n *nic, event ibv.Event, port int) {
	switch event {
	case ibv.EventPortErr, ibv.EventPortActive:
		e.config.Log.Warn("verbs: port event", "device", n.device.Name(), "port", port, "event", event)
	case ibv.EventDeviceFatal:
		e.config.Log.Error("verbs: the device has failed", "device", n.device.Name())
		n.condemn(errors.New("it reported a fatal error: the kernel's log may say more"))
	case ibv.EventCQErr: // it was overrun, or the device cannot write to it any more: there is one
		e.config.Log.Error("verbs: the device's completion queue has failed", "device", n.device.Name())
		n.condemn(errors.New("it reported that its completion queue has failed: the kernel's log may say more"))
	default:
		e.config.Log.Info("verbs: device event", "device", n.device.Name(), "event", event)
	}
}

// forsake has the link use no device that has failed.
func (l *link) forsake() {
	for _, q := range l.queues {
		if why := q.nic.failed(); why != nil && !q.broken && l.failed == nil {
			l.lose(q, l.own(why))
		}
	}
	for _, q := range l.probes {
		if q.nic.failed() != nil {
			q.failed = true
			l.call()
		}
	}
}
