//go:build linux && cgo

package verbs

import (
	"fmt"
	"hash/crc32"

	"github.com/gccl-project/gccl/transport"
)

// What a stream is asked for.
const (
	nothing   = iota
	receiving // by Recv, into memory of the caller's
	viewing   // by View, into shown or where it lies in its slot
	showing   // a view is out
)

// receiver is the incoming half of a stream.
type receiver struct {
	number uint64 // of the next message, from 0
	shown  []byte // where views of more than one piece are put together

	asked   int
	tag     uint32
	n       int
	dst     []byte // where the message goes, or lies
	got     int    // bytes of it
	whole   bool
	inSlot  bool // dst is the slot itself
	nothing [1]byte
	missed  uint8 // receives that found nothing
}

// missesMost is how many receives in a row may find nothing before one looks at the completions, which cost far more than the word.
const missesMost = 8

// forget ends what was asked for.
func (r *receiver) forget() {
	r.asked, r.dst, r.got, r.whole, r.inSlot = nothing, nil, 0, false, false
}

// gather takes the pieces that have arrived until the message is whole. It reports whether it is.
func (s *stream) gather() (bool, error) {
	r, c := &s.rx, s.conn
	lane := &c.link.lanes[s.index]
	for !r.whole && c.link.peek(s.index) {
		at := c.link.slot(s.index, lane.consumed)
		slot := c.link.rx[at : at+headerSize+c.e.config.holds(int(lane.span[lane.consumed&c.e.config.mask()]))]
		var h header
		if err := h.parse(slot, uint32(c.e.options.MaxMessage)); err != nil {
			return false, fmt.Errorf("%w: %w", transport.ErrCorrupt, err)
		}
		want := c.e.options.FirstSeq + r.number
		switch {
		case h.number != want || int(h.offset) != r.got:
			return false, &transport.SequenceError{Got: h.number, Want: want}
		case h.tag != r.tag || int(h.bytes) != r.n:
			return false, &transport.TagError{Seq: want, Tag: h.tag, WantTag: r.tag, Bytes: int(h.bytes), WantBytes: r.n}
		}
		piece := slot[headerSize : headerSize+int(h.length)]
		if c.e.options.Checksum {
			if got := crc32.Checksum(piece, castagnoli); got != h.crc {
				return false, fmt.Errorf("%w: CRC-32C of %d bytes at %d of message %d is %08x, want %08x", transport.ErrCorrupt, h.length, h.offset, want, got, h.crc)
			}
		}
		r.whole = int(h.offset+h.length) == r.n
		if r.asked == viewing && r.got == 0 && r.whole {
			r.dst, r.inSlot = piece, true
			return true, nil // the slot is read when the view ends
		}
		if r.asked == viewing && r.got == 0 {
			s.grow(r.n)
			r.dst = r.shown[:r.n]
		}
		copy(r.dst[r.got:], piece)
		r.got += len(piece)
		s.consume()
	}
	return r.whole, nil
}

// Awaits is transport.Awaiter: the word of the next slot that counts its uses. It only says that the device has begun to write there;
// the seal or the completion says that all is there, and a receive waits for that.
func (s *stream) Awaits() (word *uint64, idle uint64) {
	c := s.conn
	if s.err != nil || c.closed || c.link == nil || c.lost != nil {
		return nil, 0
	}
	if lane := &c.link.lanes[s.index]; lane.arrived.count != lane.consumed {
		return nil, 0
	}
	word, idle, written := c.link.use(s.index)
	if written {
		return nil, 0
	}
	return word, idle
}

// due reports whether a look at the completions may help a receive for which there is nothing: a piece has begun to come, or there was no
// look for a while.
func (s *stream) due() bool {
	s.rx.missed++
	_, _, written := s.conn.link.use(s.index)
	return written || s.rx.missed%missesMost == 0
}

// grow makes room for a view that is put together.
func (s *stream) grow(n int) {
	if r := &s.rx; cap(r.shown) < n {
		s.conn.e.shown.Add(int64(n - cap(r.shown)))
		r.shown = make([]byte, n)
	}
}

// consume ends a piece. The peer hears of it by what we send it next on the stream, or once it has used up half of its slots.
func (s *stream) consume() {
	s.conn.link.read(s.index)
	s.conn.used = s.conn.e.tick
	s.conn.link.owe(s.index)
}

// finish ends the message that was asked for.
func (s *stream) finish() {
	r, e := &s.rx, s.conn.e
	e.received.Add(1)
	e.bytesReceived.Add(uint64(r.n))
	if r.inSlot {
		s.consume()
	}
	r.number++
	r.forget()
}
