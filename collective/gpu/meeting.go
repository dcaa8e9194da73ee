package gpu

import (
	"context"
	"fmt"
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

// Start is one rank's part of a collective, and does not wait. The last rank to call queues it for all. A rank's calls are made one
// after the other: each once the one before is Done. An error is about this rank's call alone, and nothing has happened.
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
	if c.meeting == nil {
		c.meeting = &meeting{calls: make([]Call, c.ranks), called: make([]bool, c.ranks), done: make(chan struct{})}
	}
	m := c.meeting
	if m.called[rank] {
		return Ticket{}, fmt.Errorf("gpu: rank %d calls %v while its call of %v still waits for other ranks: a rank's calls are made one after the other", rank, &call, &m.calls[rank])
	}
	m.calls[rank], m.called[rank] = call, true
	m.arrived++
	if m.arrived == c.ranks {
		c.meeting = nil
		m.err = c.queue(m.calls)
		close(m.done)
	}
	return Ticket{c, m}, nil
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
		if t.c.meeting == t.m {
			t.c.fail(ctx.Err())
		}
		t.c.mu.Unlock()
		<-t.m.done
	}
	return t.m.err
}

// Abort ends the waiting of all ranks, now and in future, for the reason given, which must not be nil.
func (c *Communicator) Abort(reason error) {
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
	if m := c.meeting; m != nil {
		e := &MissingError{Err: reason}
		for r, called := range m.called {
			if called {
				e.Call = m.calls[r].String()
			} else {
				e.Ranks = append(e.Ranks, r)
			}
		}
		c.meeting, c.err = nil, e
		m.err = e
		close(m.done)
	}
}

// Missing returns the ranks that others wait for, in ascending order, and what those called; nil when nobody waits.
func (c *Communicator) Missing() (ranks []int, call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meeting == nil {
		return nil, nil
	}
	for r, called := range c.meeting.called {
		if called {
			made := c.meeting.calls[r]
			call = &made
		} else {
			ranks = append(ranks, r)
		}
	}
	return ranks, call
}
