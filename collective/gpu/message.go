package gpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Message is one end of a message between two ranks of a communicator.
type Message struct {
	Send       bool
	Rank, Peer int
	Ptr        unsafe.Pointer
	DType      kernels.DType
	Count      int
	Stream     cuda.Stream
}

func (m *Message) String() string {
	if m.Send {
		return fmt.Sprintf("send of %d %v from rank %d to %d", m.Count, m.DType, m.Rank, m.Peer)
	}
	return fmt.Sprintf("receive of %d %v by rank %d from %d", m.Count, m.DType, m.Rank, m.Peer)
}

func (m *Message) bytes() int64 { return int64(m.Count) * int64(m.DType.Size()) }

// what is what both ends agree on.
func (m *Message) what() uint64 { return uint64(m.DType)<<56 | uint64(m.Count) }

// order has a launch's directions stand together.
func (m *Message) order() int { return m.Peer<<1 | bit(!m.Send) }

// way is a direction between two ranks, and which end.
type way struct {
	from, to int
	send     bool
}

func (m *Message) way() way {
	if m.Send {
		return way{m.Rank, m.Peer, true}
	}
	return way{m.Peer, m.Rank, false}
}

// half is a message whose other end has not come.
type half struct {
	Message
	m *meeting
}

// Post is one end of a message, and does not wait. Who comes second queues it on both streams. The ends of a direction between two
// ranks are matched in the order in which they come. Ends of different length or type are a *MismatchError at both.
func (c *Communicator) Post(m Message) (Ticket, error) {
	if m.Rank < 0 || m.Rank >= c.ranks || m.Peer < 0 || m.Peer >= c.ranks || m.Count < 0 || !m.DType.Valid() {
		return Ticket{}, fmt.Errorf("gpu: %v, of %d ranks: %w", &m, c.ranks, kernels.ErrInvalid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Ticket{}, c.err
	}
	mine := m.way()
	theirs := way{mine.from, mine.to, !mine.send}
	waiting := c.posted[theirs]
	if len(waiting) == 0 {
		h := half{m, c.newMeeting()}
		h.m.tickets++
		h.m.peer = m.Peer
		if c.posted == nil {
			c.posted = map[way][]half{}
		}
		c.posted[mine] = append(c.posted[mine], h)
		return Ticket{c, h.m}, nil
	}
	other := waiting[0]
	other.m.tickets++
	if c.posted[theirs] = waiting[1:]; len(waiting) == 1 {
		delete(c.posted, theirs)
	}
	if other.Count != m.Count || other.DType != m.DType {
		other.m.err = &MismatchError{other.Rank, m.Rank, other.Message.String(), m.String()}
		c.finish(other.m)
	} else {
		from, to := &m, &other.Message
		if !m.Send {
			from, to = to, from
		}
		t := Transfer{From: from.Rank, To: to.Rank, Src: from.Ptr, Dst: to.Ptr, Bytes: int64(m.Count) * int64(m.DType.Size()), FromStream: from.Stream, ToStream: to.Stream}
		if other.m.err = t.check(c.ranks); other.m.err != nil {
			c.finish(other.m)
		} else {
			c.enqueue(job{transfer: t}, other.m)
		}
	}
	return Ticket{c, other.m}, nil
}
