//go:build linux && cgo

package verbs

import (
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

const firstCQ = 1024

// FD returns an epoll descriptor, always the same, of the completion channel and of news from the background. It is to be asked for
// before each sleep, by the driver: it arms the completion queue, which costs the device an event and the kernel an interrupt, so that
// who spins never pays for it. What is in the queue by then makes the descriptor readable at once.
func (e *endpoint) FD() int {
	if e.cq == nil || e.armed {
		return e.epoll
	}
	err := e.cq.Arm()
	e.armed = err == nil
	if e.poll() || err != nil {
		e.poke()
	}
	return e.epoll
}

// poll takes a batch of completions, and reports whether there were any.
func (e *endpoint) poll() bool {
	if e.cq == nil {
		return false // closed
	}
	n, err := e.cq.Poll(e.completions[:])
	e.linksMu.Lock()
	defer e.linksMu.Unlock()
	if err != nil {
		for _, l := range e.links {
			if l.failed == nil {
				l.failed = fmt.Errorf("%w: %w", transport.ErrGone, e.nic.explain(err))
			}
		}
		return false
	}
	if n < len(e.completions) {
		// The queue was empty: of links that had gone when it was so the last time nothing is left in it.
		e.reserved -= e.older
		e.older, e.stale = e.stale, 0
	}
	if n == 0 {
		return false
	}
	for i := range e.completions[:n] {
		c := &e.completions[i]
		if l := e.links[uint32(c.ID>>32)]; l != nil {
			l.take(c)
		}
	}
	if e.armed {
		e.armed = false
		// Undrained events only take room in the kernel; FD is edge-triggered.
		if e.fired++; e.fired%64 == 0 {
			e.cq.Drain()
		}
	}
	return true
}

// reserve makes room in the completion queue for n more that may come at once: when a QP fails, all its requests do.
func (e *endpoint) reserve(n int) error {
	e.linksMu.Lock()
	defer e.linksMu.Unlock()
	need, have := e.reserved+n, e.cq.Entries()
	if need > have {
		if need > e.nic.limits.MaxCQE {
			return fmt.Errorf("%w: verbs: %s: a completion queue of %d entries, want %d for one connection more: use less Streams, or smaller Slots", transport.ErrSpace, e.nic, e.nic.limits.MaxCQE, need)
		}
		if err := e.cq.Resize(min(max(need, 2*have), e.nic.limits.MaxCQE)); err != nil {
			return e.nic.explain(err)
		}
	}
	e.reserved = need
	return nil
}

// enter makes the link's completions find it.
func (e *endpoint) enter(l *link) {
	e.linksMu.Lock()
	defer e.linksMu.Unlock()
	e.lastLink++
	l.id = e.lastLink
	e.links[l.id] = l
}

// leave forgets the link. Its completions may still lie in the queue.
func (e *endpoint) leave(l *link) {
	e.linksMu.Lock()
	defer e.linksMu.Unlock()
	delete(e.links, l.id)
	e.stale += l.sq + l.rq
}
