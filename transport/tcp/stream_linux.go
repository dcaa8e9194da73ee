package tcp

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

// stream is our end of a stream.
type stream struct {
	conn   *conn
	index  int
	err    error // what ended it
	tx     sender
	rx     receiver
	memory int64
}

// fail ends the stream. Nothing is written to the caller's memory from then on.
func (s *stream) fail(op string, err error) error {
	if s.err == nil {
		s.err = s.conn.wrap(op, err)
		s.rx.asked, s.rx.dst, s.rx.direct = nothing, nil, false
	}
	return s.err
}

// ended is the error of a stream that has ended, or nil.
func (s *stream) ended(op string) error {
	if s.err == nil && s.conn.closed {
		s.fail(op, s.conn.reason())
	}
	return s.err
}

func (s *stream) fits(op string, n int) error {
	if most := s.conn.endpoint.options.MaxMessage; n < 0 || n > most {
		return s.fail(op, fmt.Errorf("message of %d bytes, want 0 to %d (Options.MaxMessage)", n, most))
	}
	return nil
}

var errNoMemory = errors.New("the buffer has bytes but no memory")

func (s *stream) bytesOf(op string, b transport.Buf) ([]byte, error) {
	if err := s.fits(op, b.N); err != nil {
		return nil, err
	}
	if b.Ptr == nil && b.N > 0 {
		return nil, s.fail(op, errNoMemory)
	}
	return unsafe.Slice((*byte)(b.Ptr), b.N), nil
}

func (s *stream) Send(tag uint32, b transport.Buf) (bool, error) {
	if err := s.ended("send"); err != nil {
		return false, err
	}
	data, err := s.bytesOf("send", b)
	if err != nil {
		return false, err
	}
	c, t := s.conn, &s.tx
	ready := c.ready()
	if c.unsendable == nil && !t.room() && ready {
		c.push()
		if !c.pending() { // else Progress reads, when what has arrived was asked for
			c.pump(nil)
		}
	}
	switch {
	case c.unsendable != nil:
		return false, s.fail("send", c.unsendable)
	case s.err != nil:
		return false, s.err
	case !t.room():
		return false, nil
	}
	if t.ring == nil {
		t.ring = make([]outgoing, ahead)
		s.grow(ahead * int(unsafe.Sizeof(outgoing{})))
	}
	m := t.at(t.accepted)
	*m = outgoing{data: data, n: b.N, tag: tag, place: t.place}
	if c.endpoint.options.Hook != nil && !s.suffer(m) {
		return false, s.fail("send", errReset)
	}
	t.accepted++
	t.place += span(b.N)
	c.toSend |= 1 << s.index
	if ready {
		c.push()
	}
	if c.pending() {
		c.enlist()
	}
	if c.unsendable != nil {
		return false, s.fail("send", c.unsendable)
	}
	return true, nil
}

// suffer asks the Hook about m. It reports false when the connection was reset.
func (s *stream) suffer(m *outgoing) bool {
	c := s.conn
	fate := c.endpoint.options.Hook(transport.Frame{
		Transport: Name, Key: c.key, Stream: s.index, Seq: c.endpoint.options.FirstSeq + s.tx.accepted, Bytes: m.n,
	})
	if fate.Reset {
		c.reset()
		return false
	}
	m.dropped, m.twice = fate.Drop, fate.Twice
	if fate.Flip > 0 && m.n > 0 {
		bit := (fate.Flip - 1) % (8 * m.n)
		m.original = m.data
		m.data = append([]byte(nil), m.data...)
		m.data[bit/8] ^= 1 << (bit % 8)
	}
	if fate.Delay > 0 {
		m.after = time.Now().Add(fate.Delay)
		c.endpoint.pokeAfter(fate.Delay)
	}
	return true
}

func (s *stream) Sent() (uint64, error) {
	if err := s.ended("send"); err != nil {
		return s.tx.done, err
	}
	if s.conn.unsendable != nil && s.tx.done < s.tx.accepted {
		return s.tx.done, s.fail("send", s.conn.unsendable)
	}
	return s.tx.done, nil
}

// settled reports whether the message asked for is there, or never will be.
func (s *stream) settled() bool {
	return s.err != nil || s.rx.asked != nothing && s.rx.at(s.rx.consumed).complete()
}

var (
	errViewOut = errors.New("a view is out: release it first")
	errOther   = errors.New("a receive was started with other arguments")
)

// ask asks for the next message until it is there.
func (s *stream) ask(how int, tag uint32, n int, dst []byte) (bool, error) {
	c, r := s.conn, &s.rx
	switch {
	case r.asked == nothing:
		s.prepare()
		if m := r.at(r.consumed); m.known && !s.matches(m, tag, n) {
			return false, s.err
		}
		s.post(how, tag, n, dst)
	case r.asked == showing:
		return false, s.fail("receive", errViewOut)
	case r.asked != how || r.tag != tag || len(r.dst) != n || how == receiving && n > 0 && &r.dst[0] != &dst[0]:
		return false, s.fail("receive", errOther)
	}
	m := r.at(r.consumed)
	if !m.complete() && c.ready() {
		c.pump(s)
	}
	if s.err != nil {
		return false, s.err
	}
	done := m.complete()
	if !done && c.lost != nil {
		return false, s.fail("receive", c.reason())
	}
	if done && how == receiving {
		s.consume()
	}
	if c.pending() {
		c.push()
		if c.pending() {
			c.enlist()
		}
	}
	return done, nil
}

func (s *stream) Recv(tag uint32, b transport.Buf) (bool, error) {
	if err := s.ended("receive"); err != nil {
		return false, err
	}
	dst, err := s.bytesOf("receive", b)
	if err != nil {
		return false, err
	}
	return s.ask(receiving, tag, b.N, dst)
}

func (s *stream) View(tag uint32, n int) (unsafe.Pointer, error) {
	if err := s.ended("receive"); err != nil {
		return nil, err
	}
	if err := s.fits("receive", n); err != nil {
		return nil, err
	}
	done, err := s.ask(viewing, tag, n, nil)
	if !done {
		return nil, err
	}
	s.rx.asked = showing
	if n == 0 {
		return unsafe.Pointer(&s.rx.nothing), nil
	}
	return unsafe.Pointer(&s.rx.dst[0]), nil
}

func (s *stream) Release() error {
	if s.rx.asked != showing {
		return nil
	}
	s.consume()
	if c := s.conn; c.pending() {
		if c.ready() {
			c.push()
		}
		if c.pending() {
			c.enlist()
		}
	}
	return nil
}
