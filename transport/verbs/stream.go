//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

// stream is our end of a stream.
type stream struct {
	conn  *conn
	index int
	err   error // what ended it
	tx    sender
	rx    receiver
}

// fail ends the stream. Nothing is written to the caller's memory from then on.
func (s *stream) fail(op string, err error) error {
	if s.err == nil {
		s.err = s.conn.wrap(op, err)
		s.rx.forget()
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
	if most := s.conn.e.options.MaxMessage; n < 0 || n > most {
		return s.fail(op, fmt.Errorf("message of %d bytes, want 0 to %d (Options.MaxMessage)", n, most))
	}
	return nil
}

var (
	errNoMemory = errors.New("the buffer has bytes but no memory")
	errViewOut  = errors.New("a view is out: release it first")
	errOther    = errors.New("a receive was started with other arguments")
)

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
	if ready && t.accepted-t.done >= ahead {
		c.e.poll()
		if ready = c.check(); ready {
			c.push()
		}
	}
	switch {
	case c.lost != nil:
		return false, s.fail("send", c.lost)
	case t.accepted-t.done >= ahead:
		return false, nil
	}
	if t.ring == nil {
		t.ring = make([]outgoing, ahead)
	}
	m := t.at(t.accepted)
	*m = outgoing{data: data, tag: tag}
	if b.Shared && b.N >= lendFrom {
		m.span = c.e.cache.lend(b.Ptr, int64(b.N))
		m.lend = m.span != nil
	}
	if c.e.options.Hook != nil && !s.suffer(m) {
		s.drop(m)
		return false, s.fail("send", errReset)
	}
	t.accepted++
	c.toSend |= 1 << s.index
	if ready {
		c.push()
	}
	if c.lost != nil {
		return false, s.fail("send", c.lost)
	}
	if c.pending() {
		c.enlist()
	}
	return true, nil
}

// suffer asks the Hook about m. It reports false when the connection was reset.
func (s *stream) suffer(m *outgoing) bool {
	c := s.conn
	n := len(m.data)
	fate := c.e.options.Hook(transport.Frame{Transport: Name, Key: c.key, Stream: s.index, Seq: c.e.options.FirstSeq + s.tx.accepted, Bytes: n})
	if fate.Reset {
		c.reset()
		return false
	}
	m.dropped, m.twice = fate.Drop, fate.Twice
	if fate.Flip > 0 && n > 0 {
		m.flip = (fate.Flip-1)%(8*n) + 1
	}
	m.lend = m.lend && !m.twice && m.flip == 0
	if fate.Delay > 0 {
		m.after = time.Now().Add(fate.Delay)
		c.e.pokeAfter(fate.Delay)
	}
	return true
}

func (s *stream) Sent() (uint64, error) {
	if err := s.ended("send"); err != nil {
		return s.tx.done, err
	}
	if s.tx.done < s.tx.handed && s.conn.ready() {
		s.conn.e.poll() // lent messages come back by completions
		s.conn.check()
	}
	if s.conn.lost != nil && s.tx.done < s.tx.accepted {
		return s.tx.done, s.fail("send", s.conn.lost)
	}
	return s.tx.done, nil
}

// ask asks for the next message until it is there.
func (s *stream) ask(how int, tag uint32, n int, dst []byte) (bool, error) {
	c, r := s.conn, &s.rx
	switch {
	case r.asked == nothing:
		r.asked, r.tag, r.n, r.dst = how, tag, n, dst
	case r.asked == showing:
		return false, s.fail("receive", errViewOut)
	case r.asked != how || r.tag != tag || r.n != n || how == receiving && r.got > 0 && &r.dst[0] != &dst[0]:
		return false, s.fail("receive", errOther)
	case how == receiving:
		r.dst = dst
	}
	ready := c.ready()
	for polled := false; c.link != nil; polled = true {
		done, err := s.gather()
		if err != nil {
			return false, s.fail("receive", err)
		}
		if c.toCredit != 0 && ready {
			c.push()
			if c.pending() {
				c.enlist()
			}
		}
		if done {
			return true, nil
		}
		if polled || !ready || !s.due() {
			break
		}
		c.e.poll()
		ready = c.check()
	}
	// Whatever had arrived before the end was gathered, and nothing can come after it.
	if c.lost != nil && (c.link == nil || !c.link.peek(s.index)) {
		return false, s.fail("receive", c.reason())
	}
	return false, nil
}

func (s *stream) Recv(tag uint32, b transport.Buf) (bool, error) {
	if err := s.ended("receive"); err != nil {
		return false, err
	}
	dst, err := s.bytesOf("receive", b)
	if err != nil {
		return false, err
	}
	done, err := s.ask(receiving, tag, b.N, dst)
	if done {
		s.finish()
	}
	return done, err
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
	if s.conn.closed { // the slots are gone
		s.rx.forget()
		return nil
	}
	s.finish()
	if c := s.conn; c.toCredit != 0 && c.ready() {
		c.push()
		if c.pending() {
			c.enlist()
		}
	}
	return nil
}
