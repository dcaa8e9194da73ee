//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// sealedSlot is a slot as a sender writes it.
func sealedSlot(h header, data string) []byte {
	slot := make([]byte, headerSize+len(data))
	h.bytes, h.length = uint32(len(data)), uint32(len(data))
	h.put(slot)
	copy(slot[headerSize:], data)
	binary.LittleEndian.PutUint32(slot, sealOf(slot, len(data)))
	return slot
}

// TestUC101_Seal: a short piece is taken when all its bytes are there, in whatever order they come and whatever was there before.
func TestUC101_Seal(t *testing.T) {
	random := rand.New(rand.NewPCG(101, 1))
	for _, data := range []string{"", "8 bytes!", "a piece of many bytes, as many as a sealed one may have, and then some: 80 bytes"} {
		want := sealedSlot(header{number: 1 << 40, tag: 7, credit: 3, use: 9}, data)
		require.LessOrEqual(t, len(data), sealMost)
		for round := range 100 {
			slot := make([]byte, 1<<10)
			if round%2 == 1 { // the piece that was there last
				copy(slot, sealedSlot(header{number: 1<<40 - 8, tag: 7, use: 1}, data))
			}
			missing := 0
			for i := range want {
				if slot[i] != want[i] {
					missing++
				}
			}
			for _, i := range random.Perm(len(want)) {
				if slot[i] != want[i] {
					require.False(t, sealed(slot, 9), "%d bytes are missing", missing)
					slot[i] = want[i]
					missing--
				}
			}
			require.True(t, sealed(slot, 9))
			require.False(t, sealed(slot, 17), "the next use")
			slot[len(want)]++
			require.True(t, sealed(slot, 9), "what lies behind does not matter")
		}
	}
	long := sealedSlot(header{use: 1}, string(make([]byte, sealMost+1)))
	require.False(t, sealed(long, 1), "of a longer one the completion is waited for")
	binary.LittleEndian.PutUint32(long[lengthAt:], ^uint32(0))
	require.False(t, sealed(long, 1))
}

// TestSealBeforeCompletion: what was read before its completion was taken is not free for the peer, and its completion counts once.
func TestSealBeforeCompletion(t *testing.T) {
	l := bare(1)
	l.conn = &conn{e: l.e, link: l, busy: true}
	n := &l.lanes[0]
	for k := range uint64(100) {
		for i := range uint64(6) {
			copy(l.rx[l.slot(0, 6*k+i):], sealedSlot(header{use: 6*k + i + 1}, "short"))
			require.True(t, l.peek(0))
			require.EqualValues(t, 1, n.arrived.count-n.consumed)
			l.read(0)
			require.False(t, l.peek(0))
		}
		require.False(t, l.owe(0), "no completion was taken")
		require.Equal(t, 6*k, n.free())
		for i := range uint64(6) {
			l.hear(immediate(immPiece, 0, 6*k+i))
			require.NoError(t, l.failed)
			require.Equal(t, 6*k+i+1, n.free())
			require.Equal(t, i >= 3, l.conn.toCredit == 1, "once half of the slots are free")
		}
		require.Equal(t, 6*k+6, n.arrived.count)
		n.told, l.conn.toCredit = n.free(), 0
	}
	l.hear(immediate(immPiece, 0, n.consumed-1))
	require.ErrorIs(t, l.failed, transport.ErrCorrupt, "a completion that was taken already")
}

// TestPieceOverSeveralSlots: a long piece takes the slots behind its own, and leaves none of their words looking like news.
func TestPieceOverSeveralSlots(t *testing.T) {
	l := bare(1)
	c, n := &l.e.config, &l.lanes[0]
	put := func(slot uint64, length int) {
		h := header{bytes: uint32(length), length: uint32(length), use: slot + 1}
		at := l.slot(0, slot)
		for i := range length {
			l.rx[at+headerSize+i] = 0xff
		}
		h.put(l.rx[at:])
		l.hear(immediate(immPiece, 0, slot))
	}
	put(0, c.holds(3))
	require.NoError(t, l.failed)
	require.EqualValues(t, 3, n.arrived.count)
	put(3, c.holds(2)+1)
	require.NoError(t, l.failed)
	require.EqualValues(t, 6, n.arrived.count)
	l.read(0)
	require.EqualValues(t, 3, n.consumed)
	for i := range uint64(2) {
		require.Zero(t, binary.LittleEndian.Uint64(l.rx[l.slot(0, i+1)+useAt:]))
	}
	l.read(0)
	require.EqualValues(t, 6, n.consumed)
	n.told = 6
	put(7, 10) // by another QP, ahead of the one in front of it
	require.EqualValues(t, 6, n.arrived.count)
	put(6, c.holds(1))
	require.EqualValues(t, 8, n.arrived.count)

	for name, length := range map[string]int{"beyond the end of the lane": c.holds(2) + 1, "in slots that are not free": c.holds(2)} {
		l = bare(1)
		at := uint64(6)
		if name != "beyond the end of the lane" {
			at = 0
			l.lanes[0] = newLane(8)
			l.lanes[0].arrived.count, l.lanes[0].noticed.count, l.lanes[0].consumed, l.lanes[0].told = 8, 8, 8, 1
			at = 8
		}
		h := header{bytes: uint32(length), length: uint32(length)}
		h.put(l.rx[l.slot(0, at):])
		l.hear(immediate(immPiece, 0, at))
		require.ErrorIs(t, l.failed, transport.ErrCorrupt, name)
		require.ErrorContains(t, l.failed, "are free", name)
	}
	for n := range 5000 {
		k := c.takes(n)
		require.GreaterOrEqual(t, c.holds(k), n)
		require.True(t, k == 1 || c.holds(k-1) < n)
	}
}

// TestExtent: how a message is cut.
func TestExtent(t *testing.T) {
	cut := func(queues int, under bool, slots, n int) (pieces []int) {
		c := Config{Slot: 1 << 10, Slots: slots}
		l := &link{e: &endpoint{config: c}, lanes: []lane{newLane(slots)}}
		for range queues {
			l.queues = append(l.queues, &queue{})
		}
		if under {
			l.queues[0].bulk = 1
		}
		s := &stream{conn: &conn{e: l.e, link: l}}
		m := &outgoing{data: make([]byte, n)}
		for m.offset < n {
			k := s.extent(m)
			pieces = append(pieces, k)
			m.offset = min(n, m.offset+c.holds(k))
			l.queues[0].bulk = 1 // now it is
			l.lanes[0].posted += uint64(k)
			l.lanes[0].credit = l.lanes[0].posted
		}
		return pieces
	}
	require.Equal(t, []int{1}, cut(1, false, 128, 1<<10))
	require.Equal(t, []int{1, 1, 2, 4, 8}, cut(1, false, 128, 16<<10), "alone, in the order of two")
	require.Equal(t, []int{16}, cut(1, true, 128, 16<<10), "behind others, at once")
	require.Equal(t, []int{4, 4, 4, 4}, cut(4, true, 128, 16<<10), "a piece for each QP")
	require.Equal(t, []int{2, 2, 2, 2, 2, 2, 2, 2}, cut(1, true, 8, 16<<10), "a quarter of the slots at most")
	// As many as are free or none, and never more than to the end of the lane.
	c := Config{Slot: 1 << 10, Slots: 16}
	for free := range 17 {
		for at := range uint64(16) {
			l := &link{e: &endpoint{config: c}, lanes: []lane{newLane(16)}, queues: []*queue{{bulk: 1}}}
			l.lanes[0].posted, l.lanes[0].credit = 32+at, 16+at+uint64(free)
			s := &stream{conn: &conn{e: l.e, link: l}}
			want := min(4, 16-int(at))
			if want > free {
				want = 0
			}
			require.Equal(t, want, s.extent(&outgoing{data: make([]byte, 16<<10)}), "%d free at %d", free, at)
			require.Equal(t, min(1, free), s.extent(&outgoing{data: make([]byte, 5)}))
		}
	}
	require.Equal(t, []int{32, 32, 12}, cut(1, true, 128, 80<<10), "the places of headers in between hold bytes, too")
}
