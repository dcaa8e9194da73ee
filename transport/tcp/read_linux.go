package tcp

import (
	"errors"
	"fmt"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

const (
	bufferSize = 64 << 10
	// directMin is the rest of a piece from which on it is read to its place
	// without a stop in the buffer.
	directMin = 4 << 10
	// peek is how much is read beyond a piece, or when a long message is expected:
	// headers and short messages, but little of a payload, which would be copied.
	peek      = 4 << 10
	expectMin = 16 << 10
)

// piece is the piece of a message whose payload is being read.
type piece struct {
	stream  *stream
	message uint64
	place   uint32 // of the message
	offset  int
	length  int
	rest    int // bytes that are to come
	crc     uint32
}

// target is where the rest of the piece goes, in two parts if it wraps round in
// the staging ring, or nowhere if nobody wants it any more. It may change from
// one read to the next, when the message is asked for.
func (p *piece) target() (a, b []byte, wanted bool) {
	s := p.stream
	r := &s.rx
	if s.err != nil || r.stopped {
		return nil, nil, false
	}
	at := p.offset + p.length - p.rest
	if p.message == r.consumed && r.direct {
		return r.dst[at : p.offset+p.length], nil, true
	}
	from := int(p.place+uint32(at)) & (len(r.staging) - 1)
	a = r.staging[from:min(from+p.rest, len(r.staging))]
	return a, r.staging[:p.rest-len(a)], true
}

// pump reads until stop has its message, the kernel has nothing, or enough. For a nil stop it ends with any message that was asked for: whoever
// asked takes it and asks for the next one, which would be staged if it were read before.
func (f *flow) pump(stop *stream) (moved bool) {
	c := f.conn
	f.drained = false
	for read := 0; ; {
		for f.r < f.w {
			if f.piece.rest > 0 {
				f.take()
			} else if f.w-f.r < headerSize {
				break
			} else if !f.begin() {
				return true
			}
			moved = true
			if f.settled(stop) {
				return true
			}
		}
		if f.end != nil {
			f.drained = true
			return moved
		}
		if read >= enough {
			return moved
		}
		n, errno := f.read(stop)
		switch {
		case errno == unix.EAGAIN:
			f.drained = true
			return moved
		case (n == 0 || errno == unix.ENOTCONN) && errors.Is(c.unsendable, unix.ECONNRESET):
			f.end = c.unsendable // the kernel says so once, to who sends or to who reads
		case errno != 0:
			f.end = c.blame(errno)
		case n == 0:
			f.end = errNoGoodbye
		default:
			moved = true
			read += n
			f.unwatch()
			if c.lost != nil || f.settled(stop) {
				return true
			}
		}
	}
}

// settled reports whether stop has its message, or for a nil stop, whether the piece at hand made one complete that was asked for.
func (f *flow) settled(stop *stream) bool {
	if stop != nil {
		return stop.settled()
	}
	p := &f.piece
	return p.stream != nil && p.rest == 0 && p.message == p.stream.rx.consumed && p.stream.settled()
}

// unwatch takes the socket out of the epoll set once something has arrived: until the next sleep.
func (f *flow) unwatch() {
	if f.watched != 0 {
		unix.EpollCtl(f.conn.endpoint.epoll, unix.EPOLL_CTL_DEL, f.fd, nil) // it fails for no descriptor that is in it
		f.watched, f.conn.endpoint.stale = 0, true
	}
}

// read makes one call: into the piece under way, or into the buffer.
func (f *flow) read(stop *stream) (int, unix.Errno) {
	if f.r == f.w {
		f.r, f.w = 0, 0
	} else if f.r > 0 { // the beginning of a header
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if f.piece.rest >= directMin {
		if a, b, wanted := f.piece.target(); wanted {
			point(&f.places[0], a)
			n := 1
			if len(b) > 0 {
				point(&f.places[n], b)
				n++
			}
			point(&f.places[n], f.buf[:peek])
			got, errno := readv(f.fd, f.places[:n+1])
			f.places[0].Base, f.places[1].Base = nil, nil
			if errno == 0 && got > 0 {
				direct := min(got, f.piece.rest)
				f.w = got - direct
				f.advancePiece(direct)
			}
			return got, errno
		}
	}
	room := f.buf[f.w:]
	if f.piece.rest == 0 && (stop != nil && len(stop.rx.dst) >= expectMin || stop == nil && f.piece.length >= expectMin) {
		room = room[:peek]
	}
	n, errno := recv(f.fd, room)
	if errno == 0 {
		f.w += n
	}
	return n, errno
}

// take moves payload from the buffer to where it belongs.
func (f *flow) take() {
	n := min(f.w-f.r, f.piece.rest)
	if a, b, wanted := f.piece.target(); wanted {
		got := copy(a, f.buf[f.r:f.r+n])
		copy(b, f.buf[f.r+got:f.r+n])
	}
	f.r += n
	f.advancePiece(n)
}

// advancePiece counts n bytes of payload as read, and ends the piece with the
// last one.
func (f *flow) advancePiece(n int) {
	p := &f.piece
	if p.rest -= n; p.rest > 0 {
		return
	}
	s := p.stream
	if s.err != nil || s.rx.stopped {
		return
	}
	if s.conn.endpoint.options.Checksum && !s.verify(p) {
		s.fail("receive", fmt.Errorf("%w: message %d, %d bytes at %d", transport.ErrCorrupt, s.conn.endpoint.options.FirstSeq+p.message, p.length, p.offset))
		return
	}
	s.rx.at(p.message).arrived += uint32(p.length)
}

// begin takes up a frame whose header is in the buffer. It reports false when
// the connection is lost.
func (f *flow) begin() bool {
	c := f.conn
	var h header
	o := &c.endpoint.options
	if err := h.parse(f.buf[f.r:], o.Streams, uint32(o.MaxMessage)); err != nil {
		c.corrupt(err)
		return false
	}
	f.r += headerSize
	if h.kind == kindBye {
		f.bye = true
		return true
	}
	s := &c.streams[h.stream]
	if !s.tx.credit(h.credit) {
		c.corrupt(fmt.Errorf("credit %d for stream %d, where %d messages were sent", h.credit, h.stream, s.tx.accepted))
		return false
	}
	if h.kind == kindCredit {
		return true
	}
	f.piece = piece{stream: s, length: int(h.length), rest: int(h.length)}
	if s.err != nil || s.rx.stopped {
		return true
	}
	if err := f.place(s, &h); err != nil {
		c.corrupt(err)
		return false
	}
	return true
}

// place finds out what the piece belongs to. What is wrong with the message ends
// the stream; an error is about a peer that does not follow the protocol.
func (f *flow) place(s *stream, h *header) error {
	s.prepare()
	r, first := &s.rx, s.conn.endpoint.options.FirstSeq
	i := h.number - first
	if h.offset == 0 {
		if i != r.first {
			s.fail("receive", &transport.SequenceError{Got: h.number, Want: first + r.first})
			return nil
		}
		r.first++
	}
	if i-r.consumed >= ahead {
		return fmt.Errorf("message %d of stream %d, while %d is waited for", h.number, h.stream, first+r.consumed)
	}
	m := r.at(i)
	if !m.known {
		*m = incomingMessage{known: true, tag: h.tag, bytes: h.bytes, place: h.place}
	}
	if m.tag != h.tag || m.bytes != h.bytes || m.place != h.place || h.length > m.bytes-m.promised || h.offset == 0 && m.begun {
		return fmt.Errorf("pieces of message %d of stream %d contradict each other", h.number, h.stream)
	}
	if len(s.conn.flows) == 1 && h.offset != m.promised {
		return fmt.Errorf("piece at %d of message %d of stream %d, want %d", h.offset, h.number, h.stream, m.promised)
	}
	m.begun = m.begun || h.offset == 0
	m.promised += h.length
	f.piece = piece{
		stream: s, message: i, place: h.place, offset: int(h.offset), length: int(h.length), rest: int(h.length), crc: h.crc,
	}
	if i == r.consumed {
		if h.place != uint32(r.place) {
			return fmt.Errorf("message %d of stream %d lies at %d, want %d", h.number, h.stream, h.place, uint32(r.place))
		}
		if r.asked != nothing && !s.matches(m, r.tag, len(r.dst)) || r.direct {
			return nil
		}
	}
	// To be staged: it must lie in the window that follows what was asked for.
	from := r.place
	if r.direct {
		from += span(len(r.dst))
	}
	window := uint32(s.conn.endpoint.config.Window)
	if at := h.place + h.offset - uint32(from); at > window || h.length > window-at {
		return fmt.Errorf("piece of %d bytes of message %d of stream %d, %d bytes ahead of a window of %d", h.length, h.number, h.stream, at, window)
	}
	if r.staging == nil && h.length > 0 {
		s.grow(int(window))
		r.staging = aligned(int(window))
	}
	return nil
}

// matches checks that m, the next message, is the one asked for, and ends the
// stream if not.
func (s *stream) matches(m *incomingMessage, tag uint32, n int) bool {
	if m.tag == tag && int(m.bytes) == n {
		return true
	}
	s.fail("receive", &transport.TagError{
		Seq: s.conn.endpoint.options.FirstSeq + s.rx.consumed, Tag: m.tag, WantTag: tag, Bytes: int(m.bytes), WantBytes: n,
	})
	return false
}
