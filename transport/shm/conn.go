//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
)

// conn is one end of a connection. Its outgoing half is in our segment from the
// first Send on; the incoming one is in the peer's, and found when it is there.
type conn struct {
	e       *Endpoint
	p       *peer
	key     transport.Key
	streams []stream

	entry *entry // ours
	id    uint64
	ring  int64 // offset of our rings, 0: none yet

	remote   *entry // the peer's, nil: not found yet
	remoteID uint64
	gen      uint64 // of the peer's directory, when we last looked
	attached bool

	over   error // why the peer will send no more
	unread bool  // it will not read any more either
	closed bool
	fence  uint32 // see takenBack
}

func (e *Endpoint) connect(key transport.Key, p *peer) (*conn, error) {
	c := &conn{e: e, p: p, key: key, over: p.gone, unread: p.gone != nil}
	var err error
	if c.entry, c.id, err = e.publish(key); err != nil {
		return nil, c.wrap("connect", err)
	}
	c.gen = atomic.LoadUint64(&p.header().gen) - 1 // look at once
	c.streams = make([]stream, e.opts.Streams)
	for i := range c.streams {
		c.streams[i].init(c, i)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns[key] = c
	p.conns = append(p.conns, c)
	return c, nil
}

// Stream returns stream i.
func (c *conn) Stream(i int) transport.Stream { return &c.streams[i] }

// Peer describes the other end.
func (c *conn) Peer() string {
	return c.p.name(c.key.Peer)
}

// Met reports whether the peer has an entry for the connection.
func (c *conn) Met() bool { return c.remote != nil }

func (c *conn) wrap(op string, err error) error {
	if errors.As(err, new(*SpaceError)) { // of our segment
		err = &transport.OwnError{Rank: int(c.key.Self), Err: err}
	}
	return &transport.PeerError{Transport: "shm", Key: c.key, Peer: c.Peer(), Op: op, Err: err}
}

// Close ends the connection. What was sent stays readable until the peer has
// closed its end too, is dead, or our endpoint is closed; but what was lent is
// its owner's again, and a peer that reads it later, or reads it now, finds out
// when it is through (takenBack).
func (c *conn) Close() error {
	if c.closed {
		return nil
	}
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	c.closed = true
	if e.closed {
		return nil
	}
	_ = c.refresh() // so that ack finds the peer's entry
	c.quit(fmt.Errorf("connection closed: %w", transport.ErrClosed))
	for i := range c.streams {
		c.streams[i].withdraw()
	}
	c.mark(entryClosed)
	if c.remote != nil {
		c.ackRemote()
	}
	delete(e.conns, c.key)
	e.lingers = append(e.lingers, c)
	e.reap()
	return nil
}

// mark tells the peer something about our end, and wakes it.
func (c *conn) mark(state uint64) {
	atomic.StoreUint64(&c.entry.state, c.entry.state|state)
	c.e.seg.announce()
	c.p.ring()
}

// ackRemote tells the peer that we shall not touch its half again. The entry may
// have become another connection's meanwhile; then the number does not match,
// and its own acknowledgement overwrites ours.
func (c *conn) ackRemote() {
	for range 16 { // a peer that scribbles must not keep us here
		old := atomic.LoadUint64(&c.remote.ack)
		if old == c.remoteID || atomic.CompareAndSwapUint64(&c.remote.ack, old, c.remoteID) {
			return
		}
	}
}

// reap frees our halves of closed connections that the peer cannot read any
// more, and reports whether there was one. The caller holds e.mu, or is Conn.
func (e *Endpoint) reap() bool {
	kept := e.lingers[:0]
	for _, c := range e.lingers {
		if atomic.LoadUint64(&c.entry.ack) != c.id {
			if c.refresh(); !c.unread {
				kept = append(kept, c)
				continue
			}
		}
		c.free()
	}
	done := len(kept) < len(e.lingers)
	clear(e.lingers[len(kept):])
	e.lingers = kept
	return done
}

func (c *conn) free() {
	for i := range c.streams {
		c.streams[i].tx.free()
	}
	if c.ring != 0 {
		c.e.putRing(c.ring)
	}
	atomic.StoreUint64(&c.entry.state, entryFree)
	for i, o := range c.p.conns {
		if o == c {
			c.p.conns = append(c.p.conns[:i], c.p.conns[i+1:]...)
			break
		}
	}
}

// quit makes every stream return err from now on.
func (c *conn) quit(err error) {
	for i := range c.streams {
		s := &c.streams[i]
		if s.err == nil {
			_ = s.fail("use", err)
		}
		if s.tx.timer != nil {
			s.tx.timer.Stop()
		}
	}
}

// end notes why the peer will send no more, and whether it still reads. Streams
// go on until they have read what there is. It reports whether this is news.
func (c *conn) end(why error, unread bool) bool {
	news := c.over == nil || unread && !c.unread
	c.unread = c.unread || unread
	if c.over == nil {
		c.over = why
		for i := range c.streams {
			c.streams[i].tx.short = 0
		}
	}
	return news
}

// look finds out what the peer did to the connection since the last look, and
// reports whether it did anything.
func (c *conn) look() bool {
	return atomic.LoadUint64(&c.p.header().gen) != c.gen && c.refresh()
}

// refresh is look without the short way out.
func (c *conn) refresh() bool {
	h := c.p.header()
	c.gen = atomic.LoadUint64(&h.gen)
	shut := atomic.LoadUint32(&h.shut) != 0 // before looking for what it sent, as left
	left := c.remote == nil && c.p.left(c.key.Comm)
	news := false
	if c.remote == nil {
		e, id, err := c.p.find(c.key, c.key.Peer, c.key.Self, c.p.check)
		switch {
		case err != nil:
			news = c.end(err, false)
		case e == nil && !shut && !left && atomic.LoadUint32(&h.full) != 0:
			return c.end(noRoom(c.p), false)
		default:
			c.remote, c.remoteID = e, id
		}
	}
	if c.remote != nil {
		state, ring := atomic.LoadUint64(&c.remote.state), atomic.LoadUint64(&c.remote.ring)
		if atomic.LoadUint64(&c.remote.id) != c.remoteID {
			state, ring = entryClosed, 0 // and freed: it knows that we closed
		}
		if ring != 0 && !c.attached {
			if err := c.attach(ring); err != nil {
				c.end(err, false)
			}
			news = true
		}
		switch {
		case state&entryClosed != 0 || state == entryFree:
			return c.end(fmt.Errorf("the peer closed the connection: %w", transport.ErrLeft), true) || news
		case state&entryBroken != 0:
			news = c.end(fmt.Errorf("connection reset: %w", transport.ErrGone), false) || news
		case state&entryRefused != 0:
			news = c.end(noRoom(c.p), false) || news
		}
	}
	switch {
	case shut:
		return c.end(errShut, true) || news
	case left && c.remote == nil:
		return c.end(errLeftComm, true) || news
	}
	return news
}

// takenBack reports, after memory that the peer lent was read, that it may have been written to meanwhile: the peer closed its end, as it
// does before the memory is its user's again.
func (c *conn) takenBack() error {
	// What was read must have been read before the peer's state is. A load keeps nothing before it on arm64. An addition ends in a store with release,
	// which what was read stays before, with LSE and without; and a load with acquire, as atomic ones are, stays behind a store with release. The peer's
	// addition to gen, in announce, keeps what it writes next behind its state in the same way.
	atomic.AddUint32(&c.fence, 1)
	h := c.p.header()
	if c.remote != nil && atomic.LoadUint64(&c.remote.state)&entryClosed == 0 && atomic.LoadUint64(&c.remote.id) == c.remoteID && atomic.LoadUint32(&h.shut) == 0 {
		return nil
	}
	if c.refresh(); c.over != nil {
		return c.over
	}
	return fmt.Errorf("the peer took back what it had lent: %w", transport.ErrLeft)
}

var errLeftComm = fmt.Errorf("the peer closed its end of the communicator: %w", transport.ErrLeft)

func noRoom(p *peer) error {
	return fmt.Errorf("the peer, process %d, has no room for what it sends: %w", p.address.pid, transport.ErrSpace)
}

// attach makes the peer's rings readable.
func (c *conn) attach(ring uint64) error {
	n := c.p.ringsBytes(len(c.streams))
	if !c.p.holds(ring, n, lineBytes) {
		return &descriptorError{What: "the lines of a connection", Offset: ring, Bytes: n, Segment: c.p.size}
	}
	if err := c.p.check(int64(ring), n); err != nil {
		return err
	}
	c.attached = true
	for i := range c.streams {
		if s := &c.streams[i]; s.err == nil {
			s.rx.attach(c.p.mapping.ring(int64(ring), i))
		}
	}
	return nil
}

// establish makes our rings and shows them to the peer.
func (c *conn) establish() error {
	if c.ring != 0 {
		return nil
	}
	off, err := c.e.takeRing()
	if err != nil {
		return c.refuse(err)
	}
	c.ring = off
	for i := range c.streams {
		c.streams[i].tx.attach(c.e.seg.ring(off, i), c.e.opts)
	}
	atomic.StoreUint64(&c.entry.ring, uint64(off))
	c.e.seg.announce()
	c.p.ring()
	return nil
}

// refuse ends the connection at both ends if err is about room.
func (c *conn) refuse(err error) error {
	if errors.Is(err, transport.ErrSpace) {
		c.mark(entryRefused)
		c.end(err, false)
	}
	return err
}
