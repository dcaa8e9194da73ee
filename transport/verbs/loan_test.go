//go:build linux && cgo

package verbs

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// lendingLink is a connection of so many QPs without a device, and registered memory whose bytes are those of message.
func lendingLink(t *testing.T, queues int) (c *conn, s *span, memory []byte) {
	c = replayLink(queues)
	for _, q := range c.link.queues {
		q.gathers = true
	}
	c.e.cache, _ = pinning(1, 0)
	memory = pages(t, 2)
	copy(memory, message(len(memory)))
	s, err := c.e.cache.declare(kernels.MemOf(memory))
	require.NoError(t, err)
	return c, s, memory
}

// acceptLent gives the stream a message that lies in registered memory.
func (c *conn) acceptLent(data []byte) {
	t := &c.streams[0].tx
	m := t.at(t.accepted)
	*m = outgoing{data: data, tag: 1, span: c.e.cache.lend(unsafe.Pointer(&data[0]), int64(len(data))), lend: true}
	t.accepted++
	c.toSend |= 1
}

// TestLoansEnd: a lent message is its owner's again when the devices are done with all requests that read it and those before it, in
// whatever order; the memory stays registered until then.
func TestLoansEnd(t *testing.T) {
	c, s, memory := lendingLink(t, 2)
	c.acceptLent(memory[:500])
	c.accept(1)
	c.acceptLent(memory[500:1000])
	require.True(t, c.pieces())
	for i, q := range c.link.queues {
		for _, r := range q.batch[:q.filled] {
			if i == 1 {
				require.Zero(t, r.Bytes2, "a message that is not lent")
				continue
			}
			require.EqualValues(t, headerSize, r.Bytes)
			require.EqualValues(t, 500, r.Bytes2)
			require.Contains(t, []uint64{uint64(s.addr()), uint64(s.addr()) + 500}, r.Addr2)
			require.EqualValues(t, 1, r.LKey2)
		}
	}
	_, completions := c.hand()
	require.Len(t, completions[0], 2, "each lent one asks for its completion")
	first, other := c.link.queues[0], c.link.queues[1]
	require.EqualValues(t, 2, s.holds.Load())
	l := &c.link.lanes[0]
	l.credit = l.posted
	require.False(t, c.idle(), "a QP that reads is not parked")
	done := func(want uint64, holds int64) {
		t.Helper()
		require.Equal(t, want, c.streams[0].tx.done)
		require.Equal(t, holds, s.holds.Load())
	}
	other.finish(1)
	done(0, 2)
	first.finish(completions[0][0])
	done(2, 1)
	first.finish(completions[0][1])
	done(3, 0)
	require.False(t, c.lends())
	require.True(t, c.idle())
}

// TestShortEndsAreCopied: the last piece of a lent message may be so short that it has a seal, which is of what its slot holds.
func TestShortEndsAreCopied(t *testing.T) {
	c, _, memory := lendingLink(t, 2)
	n := c.e.config.holds(1)
	c.acceptLent(memory[:n+sealMost])
	require.True(t, c.pieces())
	first, last := c.link.queues[0], c.link.queues[1]
	require.Equal(t, []int{1, 1}, []int{first.filled, last.filled})
	require.EqualValues(t, n, first.batch[0].Bytes2)
	require.Zero(t, last.batch[0].Bytes2)
	slot := c.link.tx[c.link.slot(0, 1):]
	require.True(t, sealed(slot, 2))
	require.Equal(t, memory[n:n+sealMost], slot[headerSize:headerSize+sealMost])
}

// TestSpoiltMessagesAreNotLent: a bit that is flipped on the way is not flipped in the user's memory, and what is sent twice is a copy.
func TestSpoiltMessagesAreNotLent(t *testing.T) {
	c, _, _ := lendingLink(t, 1)
	for fate, lend := range map[transport.Fate]bool{{}: true, {Flip: 1}: false, {Twice: true}: false} {
		c.e.options.Hook = func(transport.Frame) transport.Fate { return fate }
		m := outgoing{data: []byte{1}, lend: true}
		require.True(t, c.streams[0].suffer(&m))
		require.Equal(t, lend, m.lend, "%+v", fate)
	}
}

// TestLoansOfAFailedQP: what a QP was to read when it failed is copied to its slot and sent again from there, so that it is its owner's
// again; but for what the peer has read, or its device is known to have.
func TestLoansOfAFailedQP(t *testing.T) {
	c, s, memory := lendingLink(t, 3)
	l := c.link
	for i := range 6 {
		c.acceptLent(memory[500*i:][:500])
	}
	require.True(t, c.pieces())
	c.hand() // QP 0 has slots 0 and 3, 1 has 1 and 4, 2 has 2 and 5
	require.EqualValues(t, 6, s.holds.Load())
	l.queues[1].finish(1) // slot 1 is at the peer's
	l.queues[0].finish(1) // slot 0 is, too
	require.NoError(t, l.lanes[0].credited(1, countMask))
	l.perish(l.queues[1])
	l.perish(l.queues[0])
	require.EqualValues(t, 4, s.holds.Load())
	require.EqualValues(t, 2, c.streams[0].tx.done, "the third is under way")
	want := bytes.Clone(memory)
	clear(memory[1500:2500]) // nothing reads the fourth and fifth any more, though they count only after the third
	require.True(t, c.repeat())
	q := l.queues[2]
	for _, r := range q.batch[:q.filled] {
		require.Zero(t, r.Bytes2)
		require.EqualValues(t, headerSize+500, r.Bytes)
	}
	slots, completions := c.hand()
	require.ElementsMatch(t, []uint64{3, 4}, slots, "slot 0 was read, slot 1 delivered")
	for _, k := range slots {
		slot := l.tx[l.slot(0, k):]
		require.EqualValues(t, k, binary.LittleEndian.Uint64(slot[8:]))
		require.True(t, bytes.Equal(want[500*k:][:500], slot[headerSize:headerSize+500]), "slot %d", k)
	}
	q.finish(completions[2][len(completions[2])-1])
	require.EqualValues(t, 6, c.streams[0].tx.done)
	require.Zero(t, s.holds.Load())
}

// TestLoansOfReadSlots: the peer may have read a piece, and its slot have another, before the device says that it is done with the first.
func TestLoansOfReadSlots(t *testing.T) {
	c, _, memory := lendingLink(t, 2)
	l := c.link
	n := &l.lanes[0]
	for i := range 8 {
		c.acceptLent(memory[500*i:][:500])
	}
	require.True(t, c.pieces())
	_, completions := c.hand() // slots by turns
	require.NoError(t, n.credited(8, countMask))
	c.accept(8)
	require.True(t, c.pieces())
	c.hand()
	by, tx := bytes.Clone(n.by), bytes.Clone(l.tx)
	l.queues[0].finish(completions[0][len(completions[0])-1])
	require.Equal(t, by, n.by)
	l.queues[1].materialise()
	require.True(t, bytes.Equal(tx, l.tx))
	require.EqualValues(t, 16, c.streams[0].tx.done)
}

// TestLoansOfALostConnection: they end when there is no QP any more, with what was accepted and not begun.
func TestLoansOfALostConnection(t *testing.T) {
	c, s, memory := lendingLink(t, 1)
	c.e.conns = []*conn{c}
	for i := range 10 { // more than there are slots
		c.acceptLent(memory[500*i:][:500])
	}
	require.True(t, c.pieces())
	c.hand()
	c.link.queues[0].finish(1)
	require.EqualValues(t, 9, s.holds.Load())
	c.lose(errReset)
	require.Zero(t, s.holds.Load())
	sent, err := c.streams[0].Sent()
	require.Error(t, err, "two were not begun")
	require.EqualValues(t, 8, sent, "no device reads the others any more")
	require.NoError(t, c.e.cache.withdraw(s, 0))
}

// TestLoansOfABegunMessage: a message that waits for slots is being read as far as it got; when that is over its memory is its owner's again,
// if what is left was copied, however long that waits.
func TestLoansOfABegunMessage(t *testing.T) {
	c, s, memory := lendingLink(t, 2)
	c.e.conns = []*conn{c}
	n := c.e.config.holds(1) * 5
	for range 2 {
		c.acceptLent(memory[:n])
	}
	require.True(t, c.pieces())
	_, completions := c.hand()
	tx := &c.streams[0].tx
	require.Less(t, tx.handed, tx.accepted)
	first, other := c.link.queues[0], c.link.queues[1]
	other.finish(completions[1][1])
	first.finish(completions[0][1])
	require.Equal(t, tx.handed, tx.done)
	require.Equal(t, 2, tx.at(tx.handed).loans, "of the second message")
	tx.takeBack()
	require.True(t, c.lends())
	first.finish(completions[0][2])
	require.True(t, c.lends())
	other.finish(completions[1][2])
	require.False(t, c.lends())
	c.reclaim()
	require.EqualValues(t, 0, s.holds.Load())
	require.Less(t, tx.done, tx.accepted)
	require.NoError(t, c.e.cache.withdraw(s, 0))
}

// TestLendPins: memory that is registered and cannot be pinned now is not lent, nor is what is registered in part.
func TestLendPins(t *testing.T) {
	k, pins := pinning(1, 0)
	a, b := pages(t, 2), pages(t, 1)
	whole, err := k.declare(kernels.MemOf(a))
	require.NoError(t, err)
	lend := func(b []byte, from, n int) *span { return k.lend(unsafe.Pointer(&b[from]), int64(n)) }
	require.Equal(t, whole, lend(a, 100, len(a)-100))
	require.Nil(t, lend(a, 100, len(a)-99))
	require.Nil(t, lend(b, 0, 100))
	_, err = k.declare(kernels.MemOf(b))
	require.Error(t, err, "the first is held")
	k.letGo(whole)
	other, err := k.declare(kernels.MemOf(b))
	require.NoError(t, err)
	require.Nil(t, whole.mrs)
	require.NoError(t, k.hold(other))
	require.Nil(t, lend(a, 0, 1), "no room")
	k.letGo(other)
	require.Equal(t, whole, lend(a, 0, 1))
	require.Len(t, pins, 1)
	k.mu.Lock() // somebody registers memory, which takes long
	require.Nil(t, lend(a, 0, 1))
	k.letGo(whole)
	k.mu.Unlock()
	require.Zero(t, whole.holds.Load())
	require.True(t, k.owns(unsafe.Pointer(&b[0]), 1))
}

// TestClosedWhileLent: whoever closes a connection has back at once what was lent, though the wire is cut; the peer gets what was sent or an
// error.
func TestClosedWhileLent(t *testing.T) {
	one, other := rails(t)
	one.Devices, other.Devices = only("rxe1"), only("rxe2")
	one.Slots, other.Slots = 16, 16
	d := newDuo(t, testOptions(), one, other)
	d.pass(0, message(1000))
	const n = 40_000
	p, err := d.eps[0].Alloc(n)
	require.NoError(t, err)
	memory := unsafe.Slice((*byte)(p), n)
	copy(memory, message(n))
	heal := cut(t)
	ok, err := d.conns[0].Stream(0).Send(1, transport.Buf{Ptr: p, N: n, Shared: true})
	require.NoError(t, err)
	require.True(t, ok)
	sent, err := d.conns[0].Stream(0).Sent()
	require.NoError(t, err)
	require.EqualValues(t, 1, sent, "the first; the device is still reading the other")
	require.Error(t, d.eps[0].Free(p), "it is being read")
	began := time.Now()
	require.NoError(t, d.conns[0].Close())
	require.Less(t, time.Since(began), patience)
	clear(memory)
	require.NoError(t, d.eps[0].Free(p))
	heal()
	got := make([]byte, n)
	d.until("the message or an error", func() bool {
		if ok, err = d.conns[1].Stream(0).Recv(1, bufOf(got)); ok {
			require.Equal(t, message(n), got)
		}
		return ok || err != nil
	})
	require.ErrorIs(t, err, transport.ErrGone)
}
