package gpu

import (
	"context"
	"fmt"
	"slices"
)

// A meeting is a call that some ranks have made and others have not. It serves one call after another.
type meeting struct {
	calls   []Call // by rank
	called  uint64 // a bit for each rank; a message has none
	peer    int    // of a message, who has not called
	tickets int    // whose outcome has still to be asked for
	done    chan struct{}
	final   bool
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

// A Ticket is a call that was started. Its owner asks for its outcome once, and has no use for it afterwards.
type Ticket struct {
	c *Communicator
	m *meeting
}

// Start is one rank's part of a collective, and does not wait. The last rank to call queues it for all. An error is about this rank's
// call alone, and nothing has happened. It allocates nothing once as many calls have been in flight before.
func (c *Communicator) Start(rank int, call Call) (Ticket, error) {
	if rank < 0 || rank >= c.ranks {
		return Ticket{}, fmt.Errorf("gpu: rank %d, want 0…%d", rank, c.ranks-1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Ticket{}, c.err
	}
	c.checked = call
	if err := c.check(rank, &c.checked); err != nil {
		return Ticket{}, err
	}
	m := c.meetingOf(rank)
	m.calls[rank] = call
	m.called |= 1 << rank
	m.tickets++
	if m.tickets == c.ranks { // it is the first, for all ranks make their calls in one order
		c.meetings = slices.Delete(c.meetings, 0, 1)
		c.complete(m)
	}
	return Ticket{c, m}, nil
}

// complete goes on with a meeting that all ranks have come to. The lock is held.
func (c *Communicator) complete(m *meeting) {
	if len(c.batch) == 0 && c.held == 0 && slices.Equal(m.calls, c.build.last) {
		m.err = c.again()
		c.finish(m)
		return
	}
	j, err := c.prepare(m.calls)
	if m.err = err; err != nil || j.moves == nil {
		c.finish(m)
		return
	}
	c.enqueue(j, m)
}

// meetingOf is the first call that a rank has not made. The lock is held.
func (c *Communicator) meetingOf(rank int) *meeting {
	for _, m := range c.meetings {
		if m.called>>rank&1 == 0 {
			return m
		}
	}
	m := c.newMeeting()
	if m.calls == nil {
		m.calls = make([]Call, c.ranks)
	}
	c.meetings = append(c.meetings, m)
	return m
}

// newMeeting returns one that nobody has a ticket of. The lock is held.
func (c *Communicator) newMeeting() *meeting {
	last := len(c.spare) - 1
	if last < 0 {
		return &meeting{}
	}
	m := c.spare[last]
	c.spare = c.spare[:last]
	return m
}

// finish lets go who waits for a meeting whose outcome is known. The lock is held.
func (c *Communicator) finish(m *meeting) {
	m.final = true
	if m.done != nil {
		close(m.done)
	}
}

// Queued reports whether all ranks have called, and the work is queued or has failed.
func (t Ticket) Queued() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.m.final
}

// Done is closed once the call is Queued.
func (t Ticket) Done() <-chan struct{} {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.m.done == nil {
		t.m.done = make(chan struct{})
		if t.m.final {
			close(t.m.done)
		}
	}
	return t.m.done
}

// Outcome is what came of a call that is Queued, and ends the ticket.
func (t Ticket) Outcome() error {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	m := t.m
	err := m.err
	if m.tickets--; m.tickets == 0 {
		m.called, m.done, m.final, m.err = 0, nil, false, nil
		t.c.spare = append(t.c.spare, m)
	}
	return err
}

// Wait waits until the call is Queued, not for the GPU, and returns its Outcome. When ctx ends first, or Abort is called, all waiting
// ranks get a *MissingError that names the ranks that have not called, and the communicator takes no more calls.
func (t Ticket) Wait(ctx context.Context) error {
	if !t.Queued() {
		select {
		case <-t.Done():
		case <-ctx.Done():
			t.GiveUp(ctx.Err())
		}
	}
	return t.Outcome()
}

// Missing returns the ranks that the call waits for, in ascending order; nil when it is Queued.
func (t Ticket) Missing() []int {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	switch {
	case t.m.final:
		return nil
	case t.m.called == 0:
		return []int{t.m.peer}
	}
	return t.m.missing()
}

// GiveUp ends the waiting of all ranks, now and in future, for the reason given, unless the call is Queued. What is queued is still done.
func (t Ticket) GiveUp(reason error) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if !t.m.final {
		t.c.fail(reason)
	}
}

// Abort ends the waiting of all ranks, now and in future, for the reason given, which must not be nil; also of kernels that wait for
// other GPUs, whose calls are then not done.
func (c *Communicator) Abort(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links != nil && c.err == nil && !c.closed {
		c.links.end()
		c.refuse(reason) // what is held would not be done either
	}
	c.fail(reason)
}

// leave has the other ranks wait for one no longer. What is queued is still done.
func (c *Communicator) leave(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(reason)
}

// fail lets the waiting ranks go and takes no more calls. What all ranks have called is queued. The lock is held.
func (c *Communicator) fail(reason error) {
	c.flush()
	c.refuse(reason)
}

// refuse is fail, but what a Hold has wait is left there, and refused by the next flush. The lock is held.
func (c *Communicator) refuse(reason error) {
	if c.err != nil {
		return
	}
	c.err = reason
	for _, m := range c.meetings {
		e := &MissingError{Ranks: m.missing(), Call: m.first().String(), Err: reason}
		if c.err == reason {
			c.err = e
		}
		m.err = e
		c.finish(m)
	}
	c.meetings = nil
	for k, posted := range c.posted {
		for _, h := range posted {
			h.m.err = &MissingError{Ranks: []int{h.Peer}, Call: h.Message.String(), Err: reason}
			c.finish(h.m)
		}
		delete(c.posted, k)
	}
}

// missing are the ranks that have not called, in ascending order.
func (m *meeting) missing() (ranks []int) {
	for r := range m.calls {
		if m.called>>r&1 == 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// first is the call of the lowest rank that has called.
func (m *meeting) first() *Call {
	for r := range m.calls {
		if m.called>>r&1 != 0 {
			return &m.calls[r]
		}
	}
	panic("gpu: a meeting that nobody came to")
}

// Missing returns the ranks that others wait for, in ascending order, and what those called; nil when nobody waits.
func (c *Communicator) Missing() (ranks []int, call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.meetings) == 0 {
		return nil, nil
	}
	made := *c.meetings[0].first()
	return c.meetings[0].missing(), &made
}
