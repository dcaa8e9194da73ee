package mem

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

// stream is one end of a stream.
type stream struct {
	conn     *conn
	index    int
	out, in  *queue
	err      error  // what ended the stream
	received uint64 // messages
	view     bool   // one is out
	nothing  [1]byte
}

// dead is the error that every call gives from now on, or nil. A connection that
// ended still lets the stream read what was sent before.
func (s *stream) dead(op string) error {
	if s.err == nil && s.conn.closed.Load() {
		s.err = s.conn.wrap(op, transport.ErrClosed)
	}
	return s.err
}

func (s *stream) fail(op string, err error) error {
	s.err = s.conn.wrap(op, err)
	return s.err
}

// gone is why the peer is.
func (c *conn) gone() error {
	if c.link.broken.Load() {
		return fmt.Errorf("%w: the connection was reset", transport.ErrGone)
	}
	return fmt.Errorf("%w: it closed the connection", transport.ErrLeft)
}

func (s *stream) fits(op string, n int) error {
	if limit := s.conn.endpoint.options.MaxMessage; n < 0 || n > limit {
		return s.fail(op, fmt.Errorf("message of %d bytes, want 0 to %d (Options.MaxMessage)", n, limit))
	}
	return nil
}

func bytesOf(b transport.Buf) ([]byte, error) {
	if b.N > 0 && b.Ptr == nil {
		return nil, fmt.Errorf("buffer of %d bytes has no memory", b.N)
	}
	return unsafe.Slice((*byte)(b.Ptr), b.N), nil
}

func (s *stream) Send(tag uint32, b transport.Buf) (bool, error) {
	if err := s.dead("send"); err != nil {
		return false, err
	}
	if err := s.fits("send", b.N); err != nil {
		return false, err
	}
	data, err := bytesOf(b)
	if err != nil {
		return false, s.fail("send", err)
	}
	c := s.conn
	if c.link.over(c.side) {
		return false, s.fail("send", c.gone())
	}
	ok, fate := s.out.put(s, tag, data, b.Shared && c.endpoint.arena.owns(b.Ptr, int64(b.N)))
	if fate.Reset {
		c.link.reset()
		c.peer.wake()
		return false, s.fail("send", c.gone())
	}
	if !ok {
		return false, nil
	}
	c.endpoint.sent.Add(1)
	c.endpoint.bytesSent.Add(uint64(b.N))
	c.peer.wake()
	return true, nil
}

func (s *stream) Sent() (uint64, error) {
	c, done := s.conn, s.out.done()
	if s.err == nil && c.link.over(c.side) && done < s.out.acceptedNow() {
		return done, s.fail("send", c.gone())
	}
	return done, s.dead("send")
}

func (q *queue) acceptedNow() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.accepted
}

// next is the front of the incoming queue if it is the message asked for, nil if
// it is not there yet. s.in.mu is held.
func (s *stream) next(op string, tag uint32, n int) (*slot, error) {
	if err := s.dead(op); err != nil {
		return nil, err
	}
	if s.view {
		return nil, s.fail(op, errors.New("a view is out: release it first"))
	}
	if err := s.fits(op, n); err != nil {
		return nil, err
	}
	c := s.conn
	d := s.in.front()
	if d == nil {
		if c.link.over(c.side) && s.in.empty(c.link.broken.Load()) {
			return nil, s.fail(op, c.gone())
		}
		return nil, nil
	}
	first := c.endpoint.options.FirstSeq
	if d.number != s.received {
		return nil, s.fail(op, &transport.SequenceError{Got: first + d.number, Want: first + s.received})
	}
	if d.tag != tag || d.size != n {
		return nil, s.fail(op, &transport.TagError{Seq: first + d.number, Tag: d.tag, WantTag: tag, Bytes: d.size, WantBytes: n})
	}
	if len(d.data) != n {
		return nil, s.fail(op, fmt.Errorf("%w: of message %d of %d bytes only %d arrived", transport.ErrCorrupt, first+d.number, n, len(d.data)))
	}
	if c.endpoint.options.Checksum && d.crc != checksum(d.data) {
		return nil, s.fail(op, fmt.Errorf("%w: message %d of %d bytes", transport.ErrCorrupt, first+d.number, n))
	}
	return d, nil
}

func (s *stream) Recv(tag uint32, b transport.Buf) (bool, error) {
	dst, err := bytesOf(b)
	if err != nil {
		return false, s.fail("receive", err)
	}
	s.in.mu.Lock()
	d, err := s.next("receive", tag, b.N)
	if d == nil || !s.show(d) {
		s.in.mu.Unlock()
		return false, err
	}
	copy(dst, d.view)
	err = s.finish(d)
	return err == nil, err
}

func (s *stream) View(tag uint32, n int) (unsafe.Pointer, error) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	d, err := s.next("receive", tag, n)
	if d == nil || !s.show(d) {
		return nil, err
	}
	s.view = true
	if n == 0 {
		return unsafe.Pointer(&s.nothing), nil
	}
	return unsafe.Pointer(&d.view[0]), nil
}

func (s *stream) Release() error {
	if !s.view {
		return nil
	}
	s.view = false
	s.in.mu.Lock()
	return s.finish(&s.in.slots[s.in.head])
}

// finish ends the use of the front. s.in.mu is held, and is not any more.
func (s *stream) finish(d *slot) error {
	n, back := d.size, d.back
	s.in.drop()
	s.in.mu.Unlock()
	if back {
		return s.fail("receive", fmt.Errorf("%w: it took back what it had lent", transport.ErrLeft))
	}
	s.consumed(n)
	return nil
}

// show begins the use of the front, and reports whether the reader has it: it may dwell on it. s.in.mu is held.
func (s *stream) show(d *slot) bool {
	if !d.shown {
		d.shown, d.view = true, d.data
		if d.lent {
			s.dwell(d)
		}
	}
	return !d.dwells
}

// dwell lets the reader have lent memory some time later. s.in.mu is held.
func (s *stream) dwell(d *slot) {
	e := s.conn.endpoint
	if e.network.Dwell == nil {
		return
	}
	hosts := &s.conn.link.hosts
	pause := e.network.Dwell(hosts[1-s.conn.side], hosts[s.conn.side])
	if pause <= 0 {
		return
	}
	d.dwells = true
	e.timers.Add(1)
	time.AfterFunc(pause, func() {
		defer e.timers.Done()
		s.in.mu.Lock()
		d.dwells = false
		s.in.mu.Unlock()
		e.wake()
	})
}

// consumed accounts for a message of n bytes that was read, and wakes a sender
// that waits for room or its memory.
func (s *stream) consumed(n int) {
	s.received++
	e := s.conn.endpoint
	e.received.Add(1)
	e.bytesReceived.Add(uint64(n))
	s.conn.peer.wake()
}

// Awaits returns the count of messages that have appeared.
func (s *stream) Awaits() (word *uint64, idle uint64) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	if s.in.visible != s.in.taken || s.view {
		return nil, 0
	}
	return &s.in.visible, atomic.LoadUint64(&s.in.visible)
}
