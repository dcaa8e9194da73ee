//go:build linux && cgo

package verbs

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"
)

// sender is the outgoing half of a stream. Messages are counted from 0.
type sender struct {
	ring     []outgoing // of ahead messages, by count; nil until the first
	accepted uint64     // messages that Send took
	handed   uint64     // of those, wholly in slots or requests
	done     uint64     // of those, read by the devices: their memory is the user's again
}

// ahead is how many messages of a stream may wait for room in slots or be lent.
const ahead = 32

// outgoing is a message from Send until its memory is the user's again.
type outgoing struct {
	data    []byte
	tag     uint32
	offset  int   // in slots or requests so far
	span    *span // that data lies in, held until then; nil: it is copied
	lend    bool  // pieces from now on may be read where they lie
	loans   int   // requests under way that do
	flip    int   // bit to spoil + 1
	twice   bool
	dropped bool
	alone   bool      // nothing was under way when it began
	after   time.Time // not before, if set
}

func (t *sender) at(i uint64) *outgoing { return &t.ring[i%ahead] }

// takeBack copies what no request reads yet, so that the user's memory is needed no longer than those are under way.
func (t *sender) takeBack() {
	for i := t.handed; i < t.accepted; i++ {
		m := t.at(i)
		m.data, m.lend = bytes.Clone(m.data), false
	}
}

// cut puts the next piece of the stream into its next slot, and gives q the request that writes it. False: nothing may be sent now.
func (s *stream) cut(q *queue) bool {
	t, c := &s.tx, s.conn
	l := c.link
	lane := &l.lanes[s.index]
	if len(lane.second) > 0 && lane.replaying() {
		return false
	}
	for t.handed < t.accepted {
		m := t.at(t.handed)
		if m.dropped {
			s.next(m)
			continue
		}
		if !m.after.IsZero() {
			if time.Now().Before(m.after) {
				return false
			}
			m.after = time.Time{}
		}
		slots := s.extent(m)
		if slots == 0 {
			return false
		}
		at := l.slot(s.index, lane.posted)
		slot := l.tx[at : at+headerSize+c.e.config.holds(slots)]
		n := min(len(m.data)-m.offset, len(slot)-headerSize)
		piece, lent := m.data[m.offset:m.offset+n], m.lend && q.gathers && n > sealMost // a seal is of what is in the slot
		if !lent {
			piece = slot[headerSize : headerSize+n]
			copy(piece, m.data[m.offset:])
		}
		h := header{
			number: c.e.options.FirstSeq + t.handed, tag: m.tag, bytes: uint32(len(m.data)), offset: uint32(m.offset), length: uint32(n), credit: uint32(lane.free()), use: lane.posted + 1,
		}
		if c.e.options.Checksum {
			h.crc = crc32.Checksum(piece, castagnoli)
		}
		h.put(slot)
		if n <= sealMost {
			binary.LittleEndian.PutUint32(slot[sealAt:], sealOf(slot, n))
		}
		if bit := m.flip - 1 - 8*m.offset; m.flip > 0 && bit >= 0 && bit < 8*n {
			piece[bit/8] ^= 1 << (bit % 8)
		}
		lane.told = lane.free()
		c.toCredit &^= 1 << s.index

		q.piece(at, n, immediate(immPiece, s.index, lane.posted), slots > 1 || m.offset > 0 || lent)
		if lent {
			q.borrow(m.span, piece, loan{stream: s, message: t.handed, slot: lane.posted})
			m.loans++
		}
		lane.by[lane.posted&c.e.config.mask()] = uint8(q.index)
		for lane.posted++; slots > 1; slots-- {
			lane.by[lane.posted&c.e.config.mask()] = inside
			lane.posted++
		}
		c.used = c.e.tick
		if m.offset += n; m.offset == len(m.data) {
			if m.twice {
				m.twice, m.offset = false, 0
			} else {
				s.next(m)
			}
		}
		return true
	}
	return false
}

// extent is how many slots the next piece of m takes, or 0 as long as they are not free. Long pieces cost least; but the copies at both ends
// hide behind what is under way, so that a message that begins alone begins with a short one, and each takes at most as much as is before
// it; and all QPs have their share of it.
func (s *stream) extent(m *outgoing) int {
	l, c := s.conn.link, &s.conn.e.config
	lane := &l.lanes[s.index]
	free := c.Slots - int(lane.posted-lane.credit)
	left := c.takes(len(m.data) - m.offset)
	if left == 1 || free == 0 {
		return min(1, free)
	}
	if m.offset == 0 {
		m.alone = !l.busy()
	}
	most := min(left, c.most(), c.toEnd(lane.posted))
	if len(l.queues) > 1 {
		most = min(most, (c.takes(len(m.data))+len(l.queues)-1)/len(l.queues))
	}
	if m.alone {
		most = min(most, c.takes(m.offset))
	}
	if most > free {
		return 0 // rather than a short piece: when the peer has read all it tells, for it is more than half of the slots
	}
	return most
}

// most is how many slots a piece may take: some are to be read while others are filled.
func (c *Config) most() int { return max(1, c.Slots/4) }

// busy reports whether a piece of a long message is under way.
func (l *link) busy() bool { return slices.ContainsFunc(l.queues, (*queue).busy) }

// next goes on to the next message: m is handed over.
func (s *stream) next(m *outgoing) {
	t, e := &s.tx, s.conn.e
	e.sent.Add(1)
	e.bytesSent.Add(uint64(len(m.data)))
	if t.handed++; t.handed == t.accepted {
		s.conn.toSend &^= 1 << s.index
	}
	s.giveBack()
}
