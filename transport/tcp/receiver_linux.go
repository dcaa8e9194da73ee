package tcp

import (
	"hash/crc32"
	"unsafe"
)

// What a stream is asked for.
const (
	nothing   = iota
	receiving // by Recv, into memory of the caller's
	viewing   // by View, into shown or, if it is there already, where it is staged
	showing   // a view is out
)

// receiver is the incoming half of a stream. Messages are counted from 0.
type receiver struct {
	ring     []incomingMessage // of ahead messages, by count; nil until the first
	first    uint64            // the message whose first piece comes next
	consumed uint64
	place    uint64 // in the stream, of message consumed
	staging  []byte // Window bytes: what was not asked for, by place
	shown    []byte // where views are received

	asked  int    // for message consumed
	tag    uint32 // that was asked for
	dst    []byte // where message consumed goes
	direct bool   // dst is not in staging

	told       uint64 // consumed, as the peer knows
	toldPosted bool
	limit      uint64 // place up to which the peer may send, as it knows

	stopped bool // whatever comes is thrown away
	nothing [1]byte
}

// incomingMessage is a message of which something has arrived.
type incomingMessage struct {
	known    bool
	begun    bool // the first piece was there
	tag      uint32
	bytes    uint32
	place    uint32
	arrived  uint32 // bytes of pieces that are complete
	promised uint32 // bytes of pieces that have begun
}

func (m *incomingMessage) complete() bool { return m.begun && m.arrived == m.bytes }

func (r *receiver) at(i uint64) *incomingMessage { return &r.ring[i%ahead] }

// prepare makes the ring. It is called before anything is asked or arrives.
func (s *stream) prepare() {
	r := &s.rx
	if r.ring == nil {
		r.ring = make([]incomingMessage, ahead)
		r.limit = uint64(s.conn.endpoint.config.Window)
		s.grow(ahead * int(unsafe.Sizeof(incomingMessage{})))
	}
}

// grow accounts for memory.
func (s *stream) grow(bytes int) {
	s.memory += int64(bytes)
	s.conn.endpoint.memory.Add(int64(bytes))
}

func (r *receiver) stop() {
	r.stopped, r.asked, r.dst = true, nothing, nil
}

// tell returns the credit that a frame carries, and remembers it as told.
func (r *receiver) tell(c *conn) uint32 {
	v := uint32(r.consumed) << 1
	r.told, r.toldPosted = r.consumed, false
	r.limit = r.place + uint64(c.endpoint.config.Window)
	if r.direct {
		v |= 1
		r.toldPosted = true
		r.limit += span(len(r.dst))
	}
	return v
}

// owe queues credit when the peer may be waiting for it, or soon will.
func (s *stream) owe() {
	r, c := &s.rx, s.conn
	window := uint64(c.endpoint.config.Window)
	if r.direct && r.place+uint64(len(r.dst)) > r.limit ||
		int64(r.place+window-r.limit) >= int64(window/2) ||
		r.consumed-r.told >= ahead/2 {
		c.toCredit |= 1 << s.index
	}
}

// post asks for the next message, of len(dst) bytes; a View of it if dst is nil,
// of n. The message may have begun or even be complete.
func (s *stream) post(how int, tag uint32, n int, dst []byte) {
	r := &s.rx
	m := r.at(r.consumed)
	r.asked, r.tag = how, tag
	at := int(uint32(r.place)) & (s.conn.endpoint.config.Window - 1)
	if how == viewing {
		if m.complete() && at+n <= len(r.staging) {
			r.dst, r.direct = r.staging[at:at+n], false
			return
		}
		if cap(r.shown) < n {
			s.grow(n - cap(r.shown))
			r.shown = aligned(n)
		}
		dst = r.shown[:n]
	}
	if m.known && m.promised > 0 {
		s.unstage(dst, at)
	}
	r.dst, r.direct = dst, true
	s.owe()
}

// unstage copies what has arrived of the message at place at. Where pieces are
// still on their way the copy is of no use and does no harm.
func (s *stream) unstage(dst []byte, at int) {
	staging := s.rx.staging
	if staging == nil {
		return // what came was refused, and the connection with it
	}
	dst = dst[:min(len(dst), len(staging))]
	n := copy(dst, staging[at:])
	copy(dst[n:], staging)
}

// consume ends message consumed.
func (s *stream) consume() {
	r := &s.rx
	n := len(r.dst)
	*r.at(r.consumed) = incomingMessage{}
	r.consumed++
	r.place += span(n)
	r.asked, r.dst, r.direct = nothing, nil, false
	e := s.conn.endpoint
	e.received.Add(1)
	e.bytesReceived.Add(uint64(n))
	s.owe()
}

// verify checks the checksum of a piece that lies where it belongs.
func (s *stream) verify(p *piece) bool {
	r := &s.rx
	if p.message == r.consumed && r.direct {
		return crc32.Update(0, castagnoli, r.dst[p.offset:p.offset+p.length]) == p.crc
	}
	at := int(p.place+uint32(p.offset)) & (len(r.staging) - 1)
	end := min(at+p.length, len(r.staging))
	sum := crc32.Update(0, castagnoli, r.staging[at:end])
	sum = crc32.Update(sum, castagnoli, r.staging[:p.length-(end-at)])
	return sum == p.crc
}
