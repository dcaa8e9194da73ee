//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"slices"
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

	for _, m := range e.meets {
		e.drop(m)
	}
	conns := slices.Clone(e.conns) // they leave the list when they are gone
	for _, c := range conns {
		c.finish()
	}
	for deadline := time.Now().Add(e.config.Linger); ; time.Sleep(100 * time.Microsecond) {
		for e.poll() {
		}
		left := 0
		for _, c := range conns {
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
	for _, c := range conns {
		c.lose(errClosedHere)
	}
	e.conns, e.busy = nil, nil
	return e.release()
}

var errClosedHere = fmt.Errorf("%w: the endpoint was closed", transport.ErrClosed)

// release frees what is the endpoint's alone, in the reverse order of its making.
func (e *endpoint) release() error {
	var errs []error
	for _, n := range e.nics {
		if n.events != nil {
			errs = append(errs, n.events.Close())
		}
	}
	e.watchers.Wait()
	if e.cache != nil {
		errs = append(errs, e.cache.close())
	}
	errs = append(errs, e.arena.close())
	if e.pool != nil {
		errs = append(errs, e.pool.close())
	}
	for _, n := range e.nics {
		errs = append(errs, n.close())
	}
	e.nics = nil
	for _, fd := range []int{e.epoll, e.event} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
