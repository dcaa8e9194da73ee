package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// meetsMost bounds the keys that peers may make us remember without our user, and those of the past.
const meetsMost = 1 << 16

// meet is where the two ends of a key find each other. Endpoint.mu guards it.
//
// The lower rank of the pair decides which attempt wins, since only one end may.
// It decides when an attempt is complete: as the acceptor when it says welcome,
// as the dialler before it commits. In between it is reserved for that attempt.
type meet struct {
	key      transport.Key
	conn     *conn // the user's, once asked for
	link     *link // connected before the user asked
	err      error // why there will be no connection
	over     bool  // connected or failed
	reserved uint64
	incoming map[uint64]*incoming // by attempt
	// dialing ends when the meet is over.
	dialing context.Context
	cancel  context.CancelFunc
}

// incoming is an attempt of the peer's: sockets that have committed.
type incoming struct {
	flows []*twin
	have  int
}

// link is a pair's established sockets.
type link struct {
	fds    []int
	window uint64 // the peer's
}

// meet finds or makes the meet of k. e.mu is held.
func (e *endpoint) meet(k transport.Key) *meet {
	m := e.meets[k]
	if m == nil {
		m = &meet{key: k, incoming: map[uint64]*incoming{}}
		m.dialing, m.cancel = context.WithCancel(e.ctx)
		e.meets[k] = m
		e.unasked++
	}
	return m
}

// most is how many keys are remembered of either kind.
func (e *endpoint) most() int { return cmp.Or(e.remembers, meetsMost) }

// join makes c, which is of our user, the end of m here. e.mu is held.
func (e *endpoint) join(m *meet, c *conn) {
	m.conn = c
	e.unasked--
	c.place = len(e.conns)
	e.conns = append(e.conns, c)
	e.open.Add(1)
}

// refuses says how a peer is answered that comes for a key that cannot have a meet.
func (e *endpoint) refuses(k transport.Key) (v verdict, reason string) {
	if e.meets[k] != nil {
		return welcome, "" // also when our user has left: what it sent may still be to leave
	}
	switch why, over := e.past.Of(k); {
	case why != nil:
		return refused(k, why)
	case over:
		return later, "connected already"
	case e.unasked >= e.most():
		return noEntry, fmt.Sprintf("%d connections are known already that nobody has asked for", e.unasked)
	}
	return welcome, ""
}

// errLeftBefore is why there is no connection that our user closed before there was one.
var errLeftBefore = fmt.Errorf("%w before we were connected", transport.ErrLeft)

// refused is how a peer is answered that comes for a connection that there will not be.
func refused(k transport.Key, why error) (verdict, string) {
	if errors.Is(why, transport.ErrLeft) {
		return left, fmt.Sprintf("rank %d has closed the connection", k.Self)
	}
	return noEntry, why.Error()
}

// decides reports whether our end chooses the attempt.
func (m *meet) decides() bool { return m.key.Self < m.key.Peer }

// admit answers the hello of a socket of an attempt.
func (e *endpoint) admit(k transport.Key, attempt uint64, flows int) (verdict, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return left, "the endpoint was closed"
	}
	if v, reason := e.refuses(k); v != welcome {
		return v, reason
	}
	m := e.meet(k)
	switch {
	case m.err != nil:
		return refused(k, m.err)
	case m.over:
		return later, "connected already"
	case m.decides() && m.reserved != 0 && m.reserved != attempt:
		return later, "another attempt is under way"
	}
	if m.decides() {
		m.reserved = attempt
	}
	if m.incoming[attempt] == nil {
		m.incoming[attempt] = &incoming{flows: make([]*twin, flows)}
	}
	return welcome, ""
}

// arrive takes a socket that committed, and the attempt if it is complete.
func (e *endpoint) arrive(k transport.Key, h *hello, c *twin) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.meets[k]
	why, over := e.past.Of(k)
	if m != nil {
		why, over = m.err, m.over
	}
	switch {
	case errors.Is(why, transport.ErrLeft) || m == nil && why == nil: // closed since we said welcome
		c.part()
		return
	case over || m.incoming[h.attempt] == nil || m.incoming[h.attempt].flows[h.flow] != nil:
		c.Close()
		return
	}
	in := m.incoming[h.attempt]
	in.flows[h.flow] = c
	if in.have++; in.have == len(in.flows) {
		delete(m.incoming, h.attempt)
		e.establish(m, in.flows, h.window)
	}
}

// abandon forgets an attempt of which a socket failed.
func (e *endpoint) abandon(k transport.Key, attempt uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m := e.meets[k]; m != nil {
		m.forget(attempt)
		if m.reserved == attempt {
			m.reserved = 0
		}
	}
}

func (m *meet) forget(attempt uint64) {
	if in := m.incoming[attempt]; in != nil {
		closeAll(in.flows)
		delete(m.incoming, attempt)
	}
}

func closeAll(twins []*twin) {
	for _, c := range twins {
		if c != nil {
			c.Close()
		}
	}
}

// establish makes the winning sockets the connection. It owns them. e.mu is held.
func (e *endpoint) establish(m *meet, twins []*twin, window uint32) {
	l := &link{window: uint64(window)}
	for _, c := range twins {
		l.fds = append(l.fds, c.release())
	}
	m.link = l
	e.end(m, nil)
	if m.conn != nil {
		e.deliver(m)
	}
}

// end ends the search, with an error or a link. e.mu is held.
func (e *endpoint) end(m *meet, err error) {
	m.over, m.err = true, err
	for attempt, in := range m.incoming {
		if errors.Is(err, transport.ErrLeft) {
			for _, c := range in.flows {
				if c != nil {
					c.part()
				}
			}
		}
		m.forget(attempt)
	}
	m.cancel()
	if err != nil && m.conn != nil {
		m.conn.failure.Store(&m.err)
		e.poke()
	}
}

// fail ends the search of m with an error, and reports whether it was not over.
func (e *endpoint) fail(m *meet, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || m.over {
		return false
	}
	e.end(m, err)
	return true
}

// failKey is fail of what a peer has come for.
func (e *endpoint) failKey(k transport.Key, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, _ := e.refuses(k); e.closed || v != welcome {
		return
	}
	if m := e.meet(k); !m.over {
		e.end(m, err)
	}
}

// leave takes a connection that is closed and gone out of the endpoint. What stays is its key, for a while.
func (e *endpoint) leave(c *conn) {
	last := len(e.conns) - 1
	e.conns[c.place] = e.conns[last]
	e.conns[c.place].place = c.place
	e.conns[last] = nil
	e.conns = e.conns[:last]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.past.Add(c.key, c.meet.err, e.most())
	delete(e.meets, c.key)
}

// Leave ends what only peers have asked for.
func (e *endpoint) Leave(comm uint64) {
	var conns []*conn
	e.mu.Lock()
	if !e.closed {
		e.past.Leave(comm, e.most())
		for k, m := range e.meets {
			if k.Comm != comm || m.conn != nil {
				continue
			}
			if !m.over {
				e.end(m, errLeftBefore)
			}
			if c := e.adopt(m); c != nil {
				conns = append(conns, c)
				continue
			}
			delete(e.meets, k)
			e.unasked--
		}
	}
	e.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// adopt gives a connection that nobody has asked for a conn, which ends as all do: its peer is to know that it is no death. Nil: there is no connection.
// e.mu is held, or nobody else is left.
func (e *endpoint) adopt(m *meet) *conn {
	if m.link == nil || m.conn != nil {
		return nil
	}
	c := newConn(e, m, address{})
	e.join(m, c)
	e.deliver(m)
	return c
}

// deliver hands the link to the conn. e.mu is held.
func (e *endpoint) deliver(m *meet) {
	l := m.link
	m.link = nil
	m.conn.arrived.Store(l) // first, for whoever is woken
	e.poke()
}

// drop ends what is not a connection yet. e.mu need not be held, for nobody else is left.
func (e *endpoint) drop(m *meet) {
	m.cancel()
	for attempt := range m.incoming {
		m.forget(attempt)
	}
	e.adopt(m)
}

func (l *link) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
	l.fds = nil
}
