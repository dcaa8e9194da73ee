//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// Close ends everything. What streams accepted and the peers have room for still arrives within Linger; what needs credit does not.
func (e *endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.over
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	defer close(e.over)

	e.cancel()
	e.listener.Close()
	e.wg.Wait()

	var errs []error
	for _, m := range e.meets { // nobody else is left who touches them
		errs = append(errs, m.drop())
	}
	for _, c := range e.conns {
		c.finish()
	}
	for deadline := time.Now().Add(e.config.Linger); ; time.Sleep(100 * time.Microsecond) {
		for e.poll() {
		}
		left := 0
		for _, c := range e.conns {
			if !c.gone {
				c.progress()
				c.dropBlocked()
			}
			if !c.gone {
				left++
			}
		}
		if left == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, c := range e.conns {
		c.lose(errClosedHere)
	}
	e.conns, e.busy = nil, nil
	return errors.Join(append(errs, e.release())...)
}

var errClosedHere = fmt.Errorf("%w: the endpoint was closed", transport.ErrClosed)

// release frees what is the endpoint's alone, in the reverse order of its making.
func (e *endpoint) release() error {
	var errs []error
	if e.events != nil {
		errs = append(errs, e.events.Close())
	}
	e.watchers.Wait()
	if e.cq != nil {
		e.cq.Drain()
		errs = append(errs, e.cq.Close())
		e.cq = nil
	}
	if e.channel != nil {
		errs = append(errs, e.channel.Close())
	}
	for _, fd := range []int{e.epoll, e.event} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if e.nic != nil {
		errs = append(errs, e.nic.close())
	}
	return errors.Join(errs...)
}
