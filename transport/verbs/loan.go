//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// lendFrom is from how many bytes on a message in registered memory is read where it lies instead of being copied into slots.
const lendFrom = 16 << 10

// loan is a request under way that reads a piece of a message where it lies.
type loan struct {
	position uint32 // in the send queue
	stream   *stream
	message  uint64 // counted as in sender
	slot     uint64 // its first
}

// borrow makes the request that was added last read all but the header where it lies.
func (q *queue) borrow(s *span, piece []byte, l loan) {
	r := &q.batch[q.filled-1]
	r.Bytes = headerSize
	r.Addr2, r.Bytes2, r.LKey2 = s.local(int64(addressIn(piece)-s.addr())), uint32(len(piece)), s.mrs[q.nic.index].LKey()
	l.position = q.posted + uint32(q.filled)
	q.loans = append(q.loans, l)
}

// repay ends the loans of the requests that are done.
func (q *queue) repay() {
	n := 0
	for ; n < len(q.loans) && int32(q.done-q.loans[n].position) >= 0; n++ {
		l := &q.loans[n]
		if lane := &q.link.lanes[l.stream.index]; l.slot >= lane.credit {
			lane.by[l.slot&q.link.e.config.mask()] = delivered
		}
		l.end()
	}
	q.loans = slices.Delete(q.loans, 0, n)
}

// materialise puts into their slots what requests were to read that may not have been heard of, to be sent again from there. The QP is in ERR.
func (q *queue) materialise() {
	for i := range q.loans {
		l := &q.loans[i]
		if l.slot >= q.link.lanes[l.stream.index].credit {
			slot := q.link.tx[q.link.slot(l.stream.index, l.slot):]
			at := int(binary.LittleEndian.Uint32(slot[offsetAt:]))
			n := int(binary.LittleEndian.Uint32(slot[lengthAt:]))
			copy(slot[headerSize:headerSize+n], l.stream.tx.at(l.message).data[at:])
		}
		l.end()
	}
	clear(q.loans)
	q.loans = q.loans[:0]
}

func (l *loan) end() {
	l.stream.tx.at(l.message).loans--
	l.stream.giveBack()
}

// giveBack counts the messages whose memory is the user's again.
func (s *stream) giveBack() {
	t := &s.tx
	for t.done < t.handed && t.at(t.done).loans == 0 {
		s.drop(t.at(t.done))
		t.done++
	}
}

// lends reports whether requests under way read messages where they lie.
func (c *conn) lends() bool {
	for i := range c.streams {
		if t := &c.streams[i].tx; t.done < t.handed || t.handed < t.accepted && t.at(t.handed).loans > 0 {
			return true
		}
	}
	return false
}

// forget drops references to memory: there are no QPs any more that could read it.
func (s *stream) forget() {
	s.tx.done = s.tx.handed
	for i := range s.tx.ring {
		s.drop(&s.tx.ring[i])
	}
}

// drop needs a message's memory no more.
func (s *stream) drop(m *outgoing) {
	m.data = nil
	s.conn.e.letGo(m)
}

// letGo lets the memory of a message be taken from the devices, none of which reads it.
func (e *endpoint) letGo(m *outgoing) {
	if m.span != nil {
		e.cache.letGo(m.span)
		m.span = nil
	}
}

// reclaimTime is how long Close waits for devices that read lent messages.
const reclaimTime = 20 * time.Millisecond

var errLent = fmt.Errorf("%w: our end was closed while the device read what had been lent to it", transport.ErrClosed)

// reclaim has no request read the user's memory any more.
func (c *conn) reclaim() {
	for deadline := time.Now().Add(reclaimTime); !c.gone && c.lends(); c.ready() {
		if c.e.poll(); time.Now().After(deadline) {
			c.lose(errLent)
		}
	}
	for i := range c.streams {
		t := &c.streams[i].tx
		for k := t.handed; !c.gone && k < t.accepted; k++ { // copies, which may wait for the peer for long
			c.e.letGo(t.at(k))
		}
	}
}
