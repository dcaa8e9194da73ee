package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A meeting is a call that some ranks have made and others have not.
type meeting struct {
	calls   []Call
	called  []bool
	arrived int
	done    chan struct{} // closed when err is final
	err     error
}

// Do is one rank's part of a collective: Start and Wait.
func (c *Communicator) Do(ctx context.Context, rank int, call Call) error {
	t, err := c.Start(rank, call)
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

// A Ticket is a call that was started.
type Ticket struct {
	c *Communicator
	m *meeting
}

// Start is one rank's part of a collective, and does not wait. The last rank to call queues it for all. An error is about this rank's
// call alone, and nothing has happened.
func (c *Communicator) Start(rank int, call Call) (Ticket, error) {
	if rank < 0 || rank >= c.ranks {
		return Ticket{}, fmt.Errorf("gpu: rank %d, want 0…%d", rank, c.ranks-1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Ticket{}, c.err
	}
	if err := call.check(c.ranks); err != nil {
		return Ticket{}, err
	}
	m := c.meetingOf(rank)
	m.calls[rank], m.called[rank] = call, true
	m.arrived++
	if m.arrived == c.ranks { // it is the first, for all ranks make their calls in one order
		c.meetings = slices.Delete(c.meetings, 0, 1)
		m.err = c.queue(m.calls)
		close(m.done)
	}
	return Ticket{c, m}, nil
}

// meetingOf is the first call that a rank has not made. The lock is held.
func (c *Communicator) meetingOf(rank int) *meeting {
	for _, m := range c.meetings {
		if !m.called[rank] {
			return m
		}
	}
	m := &meeting{calls: make([]Call, c.ranks), called: make([]bool, c.ranks), done: make(chan struct{})}
	c.meetings = append(c.meetings, m)
	return m
}

// Done is closed when all ranks have called, and the work is queued or has failed.
func (t Ticket) Done() <-chan struct{} { return t.m.done }

// Err is the outcome, once Done is closed.
func (t Ticket) Err() error { return t.m.err }

// Wait waits until the call is Done, not for the GPU, and returns Err. When ctx ends first, or Abort is called, all waiting ranks
// get a *MissingError that names the ranks that have not called, and the communicator takes no more calls.
func (t Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.m.done:
	case <-ctx.Done():
		t.c.mu.Lock()
		select {
		case <-t.m.done:
		default:
			t.c.fail(ctx.Err())
		}
		t.c.mu.Unlock()
	}
	return t.m.err
}

// Abort ends the waiting of all ranks, now and in future, for the reason given, which must not be nil; also of kernels that wait for
// other GPUs, whose calls are then not done.
func (c *Communicator) Abort(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.closed {
		if err := c.links.end(); err != nil {
			reason = errors.Join(reason, err)
		}
	}
	c.fail(reason)
}

// leave has the other ranks wait for one no longer. What is queued is still done.
func (c *Communicator) leave(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(reason)
}

// fail lets the waiting ranks go and takes no more calls. The lock is held.
func (c *Communicator) fail(reason error) {
	if c.err != nil {
		return
	}
	c.err = reason
	for _, m := range c.meetings {
		e := &MissingError{Err: reason}
		for r, called := range m.called {
			if called {
				e.Call = m.calls[r].String()
			} else {
				e.Ranks = append(e.Ranks, r)
			}
		}
		if c.err == reason {
			c.err = e
		}
		m.err = e
		close(m.done)
	}
	c.meetings = nil
	for k, posted := range c.posted {
		for _, h := range posted {
			h.m.err = &MissingError{Ranks: []int{h.Peer}, Call: h.Message.String(), Err: reason}
			close(h.m.done)
		}
		delete(c.posted, k)
	}
}

// Missing returns the ranks that others wait for, in ascending order, and what those called; nil when nobody waits.
func (c *Communicator) Missing() (ranks []int, call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.meetings) == 0 {
		return nil, nil
	}
	first := c.meetings[0]
	for r, called := range first.called {
		if called {
			made := first.calls[r]
			call = &made
		} else {
			ranks = append(ranks, r)
		}
	}
	return ranks, call
}
