package tcp

import (
	"bytes"
	"hash/crc32"
	"time"
)

// sender is the outgoing half of a stream. Messages are counted from 0.
type sender struct {
	ring     []outgoing // of ahead messages, by count; nil until the first
	accepted uint64     // messages that Send took
	cut      uint64     // the message that is being cut into frames
	done     uint64     // messages that were written to the kernel, without a gap
	acked    uint64     // messages that the peer has consumed
	posted   bool       // the peer asks for message acked
	place    uint64     // in the stream, of the next message
}

// outgoing is a message from Send until the peer has consumed it.
type outgoing struct {
	data     []byte // nil when done
	original []byte // what the checksum is of, if a Hook altered data
	n        int
	place    uint64
	tag      uint32
	offset   int // cut so far
	inFlight int // frames cut and not yet written
	whole    bool
	twice    bool
	dropped  bool
	after    time.Time // not before, if set
}

func (t *sender) at(i uint64) *outgoing { return &t.ring[i%ahead] }

// room reports whether one more message may wait.
func (t *sender) room() bool { return t.accepted-min(t.acked, t.done) < ahead }

// limit is the place up to which the peer lets us send.
func (t *sender) limit(window uint64) uint64 {
	p := t.place
	if t.acked < t.accepted {
		m := t.at(t.acked)
		if p = m.place; t.posted {
			p += span(m.n)
		}
	}
	return p + window
}

// credit takes in what the peer says it has consumed. It reports false for a
// claim about messages that do not exist.
func (t *sender) credit(v uint32) bool {
	now := t.acked << 1
	if t.posted {
		now |= 1
	}
	step := v - uint32(now)
	if int32(step) <= 0 {
		return true // older news: flows overtake each other
	}
	now += uint64(step)
	if now>>1 > t.accepted {
		return false
	}
	t.acked, t.posted = now>>1, now&1 == 1
	return true
}

// settle marks messages as done that have been written, in order. It returns how
// many, and their bytes.
func (t *sender) settle() (messages, bytes uint64) {
	for t.done < t.cut {
		m := t.at(t.done)
		if !m.whole || m.inFlight > 0 {
			break
		}
		m.data, m.original = nil, nil
		t.done++
		messages++
		bytes += uint64(m.n)
	}
	return messages, bytes
}

// forget drops references to memory that will not be sent.
func (t *sender) forget() {
	for i := range t.ring {
		t.ring[i].data, t.ring[i].original = nil, nil
	}
}

// takeBack copies what was not written yet, so that the user's memory is not needed any more.
func (t *sender) takeBack() {
	for i := t.done; i < t.accepted; i++ {
		m := t.at(i)
		m.data, m.original = bytes.Clone(m.data), bytes.Clone(m.original)
	}
}

// cutFrame puts the next frame of the stream on f. It reports false when nothing
// may be sent on f now.
func (s *stream) cutFrame(f *flow) bool {
	t, c := &s.tx, s.conn
	for t.cut < t.accepted {
		m := t.at(t.cut)
		if m.dropped {
			m.whole = true
			s.next()
			continue
		}
		if m.offset == 0 && f.index != s.home() {
			return false
		}
		if !m.after.IsZero() {
			if time.Now().Before(m.after) {
				return false
			}
			m.after = time.Time{}
		}
		length := m.n - m.offset
		if length > 0 {
			room := int64(t.limit(c.window) - m.place - uint64(m.offset))
			if length = min(length, c.piece(m.n)); int64(length) > room {
				if room <= 0 {
					return false
				}
				length = int(room)
			}
		}
		h := header{
			kind:   kindPiece,
			stream: uint16(s.index),
			number: c.endpoint.options.FirstSeq + t.cut,
			tag:    m.tag,
			bytes:  uint32(m.n),
			offset: uint32(m.offset),
			length: uint32(length),
			place:  uint32(m.place),
			credit: s.rx.tell(c),
		}
		c.toCredit &^= 1 << s.index
		if c.endpoint.options.Checksum {
			of := m.data
			if m.original != nil {
				of = m.original
			}
			h.crc = crc32.Update(0, castagnoli, of[m.offset:m.offset+length])
		}
		f.add(&h, s, t.cut, m.data[m.offset:m.offset+length])
		m.inFlight++
		if m.offset += length; m.offset == m.n {
			if m.twice {
				m.twice, m.offset = false, 0
			} else {
				m.whole = true
				s.next()
			}
		}
		return true
	}
	return false
}

// next goes on to the next message to be cut.
func (s *stream) next() {
	if s.tx.cut++; s.tx.cut == s.tx.accepted {
		s.conn.toSend &^= 1 << s.index
	}
	if m := s.tx.at(s.tx.cut - 1); m.dropped {
		s.account()
	}
}

// account settles and counts.
func (s *stream) account() {
	messages, bytes := s.tx.settle()
	s.conn.endpoint.sent.Add(messages)
	s.conn.endpoint.bytesSent.Add(bytes)
}

// home is the flow that the first pieces of the stream's messages take.
func (s *stream) home() int {
	if n := len(s.conn.flows); n > 1 {
		return s.index % n
	}
	return 0
}

// piece is the length of the pieces of a message of n bytes.
func (c *conn) piece(n int) int {
	if len(c.flows) == 1 {
		return pieceMax
	}
	share := (n + len(c.flows) - 1) / len(c.flows)
	return min(max(int(span(share)), pieceMin), pieceMax)
}

// sendable reports whether a stream could send now if its socket took it.
func (c *conn) sendable() bool {
	for i := range c.flows {
		if c.flows[i].queued > 0 {
			return true
		}
	}
	for i := range c.streams {
		t := &c.streams[i].tx
		if t.cut < t.accepted {
			m := t.at(t.cut)
			if m.dropped || m.n == 0 || int64(t.limit(c.window)-m.place-uint64(m.offset)) > 0 {
				return true
			}
		}
	}
	return false
}
