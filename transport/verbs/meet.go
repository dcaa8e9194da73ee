//go:build linux && cgo

package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// meetsMost bounds the keys that peers may make us remember without our user, and those of the past.
const meetsMost = 1 << 16

// meet is where the two ends of a key find each other. Endpoint.mu guards it. The lower rank of the pair alone offers a QP; the higher
// one rings until it does. So there is never more than one attempt to choose from.
type meet struct {
	key   transport.Key
	conn  *conn // the user's, once asked for
	link  *link // connected before the user asked
	err   error // why there will be no connection
	over  bool  // connected or failed
	begun bool
	peer  address // then
	// before says that there was a connection, which was parked; lacking, since when there is no room for QPs.
	before  bool
	lacking time.Time
	// setUp ends when the meet is over.
	setUp  context.Context
	cancel context.CancelFunc
}

// offers reports whether our end is the one that offers.
func (m *meet) offers() bool { return m.key.Self < m.key.Peer }

// meet finds or makes the meet of k. One of the past is over, and is not kept. e.mu is held.
func (e *endpoint) meet(k transport.Key) *meet {
	m := e.meets[k]
	if m == nil {
		m = &meet{key: k}
		m.renew(e.ctx)
		if m.err, m.over = e.past.Of(k); m.over {
			m.cancel()
			return m
		}
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

// full says why a peer that comes for k is not let in, though we may have nothing against it: too many have come before our user. e.mu is held.
func (e *endpoint) full(k transport.Key) error {
	_, over := e.past.Of(k)
	if over || e.meets[k] != nil || e.unasked < e.most() {
		return nil
	}
	return fmt.Errorf("%d connections are known already that nobody has asked for", e.unasked)
}

// errLeftBefore is why there is no connection, any more, that our user closed when there was none.
var errLeftBefore = fmt.Errorf("%w when there was no connection", transport.ErrLeft)

// renew makes a new search possible.
func (m *meet) renew(ctx context.Context) {
	if m.cancel != nil {
		m.cancel()
	}
	m.setUp, m.cancel = context.WithCancel(ctx)
}

// begin starts the search for the peer at a. e.mu is held.
func (e *endpoint) begin(m *meet, a address) {
	if m.begun || m.over || e.closed {
		return
	}
	m.begun, m.peer = true, a
	ctx, before := m.setUp, m.before
	e.wg.Go(func() { e.search(ctx, m, a, before) })
}

// admit decides whether a hello about k may go on. To a ring it answers by beginning to offer.
func (e *endpoint) admit(k transport.Key, h *hello) (verdict, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return left, "the endpoint was closed"
	}
	if err := e.full(k); err != nil {
		return noEntry, err.Error()
	}
	m := e.meet(k)
	switch {
	case errors.Is(m.err, transport.ErrLeft):
		return left, fmt.Sprintf("rank %d has closed the connection", k.Self)
	case m.err != nil:
		return noEntry, m.err.Error()
	case m.over:
		return later, "connected already"
	}
	if h.kind == kindRing {
		a, err := parseAddress(h.address)
		if err == nil {
			err = a.reachable(e.address)
		}
		if err != nil {
			return noEntry, err.Error()
		}
		e.begin(m, a)
	}
	return welcome, ""
}

// establish makes l the connection, or destroys it if there is one already, or will be none.
func (e *endpoint) establish(k transport.Key, l *link) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.meet(k)
	if e.closed || errors.Is(m.err, transport.ErrLeft) { // since there was a welcome
		l.part()
	}
	if e.closed || m.over {
		return errors.Join(errLater, l.shut(), l.free())
	}
	m.link = l
	e.end(m, nil)
	e.watchers.Go(l.watch)
	if m.conn != nil {
		e.deliver(m)
	}
	return nil
}

// end ends the search, with an error or a link. e.mu is held.
func (e *endpoint) end(m *meet, err error) {
	m.over, m.err = true, err
	m.cancel()
	if err != nil && m.conn != nil {
		m.conn.failure.Store(&m.err)
		e.poke()
	}
}

// fail ends the search for k with an error, and reports whether it was not over.
func (e *endpoint) fail(k transport.Key, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.full(k) != nil {
		return false
	}
	m := e.meet(k)
	if m.over {
		return false
	}
	e.end(m, err)
	return true
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
	if m := e.meets[c.key]; m != nil {
		m.cancel()
		e.past.Add(c.key, m.err, e.most())
		delete(e.meets, c.key)
	}
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

// adopt gives a connection that nobody has asked for a conn, which ends as all do: its peer is to know that it is no death, and its QPs go when nobody
// polls. Nil: there is no connection. e.mu is held, or nobody else is left.
func (e *endpoint) adopt(m *meet) *conn {
	if m.link == nil || m.conn != nil {
		return nil
	}
	c := newConn(e, m.key, m.peer)
	e.join(m, c)
	e.deliver(m)
	return c
}

// deliver hands the link to the conn. e.mu is held.
func (e *endpoint) deliver(m *meet) {
	m.conn.arrived.Store(m.link)
	m.link = nil
	e.poke()
}

// drop ends a search. e.mu need not be held, for nobody else is left.
func (e *endpoint) drop(m *meet) {
	m.cancel()
	if m.conn == nil {
		e.adopt(m)
	} else if m.link != nil {
		e.deliver(m)
	}
}
