//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// replayLink is a connection of so many QPs without a device: its requests stay where they are until hand takes them.
func replayLink(queues int) *conn {
	l := bare(1)
	l.tx, l.half = make([]byte, len(l.rx)), len(l.rx)
	for i := len(l.queues); i < queues; i++ {
		l.queues = append(l.queues, &queue{link: l, nic: &nic{}, id: uint32(3 + i), sq: 64})
	}
	for i, q := range l.queues {
		q.index = i
	}
	l.live = queues
	c := newConn(l.e, transport.Key{Self: 0, Peer: 1}, address{})
	c.link, l.conn = l, c
	c.streams[0].tx.ring = make([]outgoing, ahead)
	return c
}

// accept gives the stream so many short messages.
func (c *conn) accept(n int) {
	t := &c.streams[0].tx
	for range n {
		*t.at(t.accepted) = outgoing{data: []byte{byte(t.accepted)}, tag: 1}
		t.accepted++
	}
	c.toSend |= 1
}

// hand takes the requests of all queues, as a device would that is slow, and returns the slots that they write, and by queue the positions
// of those of which completions come.
func (c *conn) hand() (slots []uint64, completions [][]uint32) {
	completions = make([][]uint32, len(c.link.queues))
	for i, q := range c.link.queues {
		for _, r := range q.batch[:q.filled] {
			if q.posted++; r.Flags&ibv.Signaled != 0 {
				completions[i] = append(completions[i], q.posted)
			}
			at := int(r.Addr-q.ours.addr) - c.link.half
			slots = append(slots, binary.LittleEndian.Uint64(c.link.tx[at+useAt:])-1)
		}
		q.filled = 0
	}
	return slots, completions
}

// finish has the device say that it is done with the requests up to a position.
func (q *queue) finish(position uint32) { q.take(&ibv.Completion{ID: q.requestID(position)}) }

// perish is the end of a QP on both sides, as both know.
func (l *link) perish(q *queue) {
	q.broken, l.broke = true, true
	l.live--
	q.theirs, q.redone = true, true
	l.redo(q)
}

// TestSlotWaitsForItsReplay: what a QP had delivered before it failed is written twice, and its credit may come before the second time by
// another QP is over. Nothing new may be written there until then: the old bytes would come down on it.
func TestSlotWaitsForItsReplay(t *testing.T) {
	for _, again := range []bool{false, true} {
		c := replayLink(3)
		l := c.link
		n := &l.lanes[0]
		c.accept(8)
		written := func(want ...uint64) [][]uint32 {
			slots, completions := c.hand()
			require.ElementsMatch(t, want, slots)
			return completions
		}
		require.True(t, c.pieces())
		written(0, 1, 2, 3, 4, 5, 6, 7)

		l.perish(l.queues[0])
		require.True(t, c.repeat())
		under := written(0, 3, 6) // what the first QP carried goes by the others
		require.NoError(t, n.credited(8, countMask), "all of it had arrived")

		c.accept(8)
		require.False(t, c.pieces(), "slot 0 is still being written")
		written()
		require.True(t, c.sendable(), "it is the devices' turn, not the peer's")
		first, last := l.queues[1], l.queues[2]
		if len(under[1]) < len(under[2]) {
			first, last = last, first
		}
		require.Len(t, under[first.index], 2)
		require.Len(t, under[last.index], 1)

		last.finish(under[last.index][0])
		require.False(t, c.pieces(), "two are under way by the other QP")
		first.finish(under[first.index][0])
		require.False(t, c.pieces(), "one is")
		if again { // and that fails, too
			first.broken = true
			require.False(t, c.pieces(), "until the peer's end is in ERR it may still write")
			l.perish(first)
			c.repeat()
			written() // of what there is credit for nothing is sent a third time
		} else {
			first.finish(under[first.index][1])
		}
		require.True(t, c.pieces())
		written(8, 9, 10, 11, 12, 13, 14, 15)
	}
}
