//go:build linux && cgo

package verbs

import (
	"math/rand/v2"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// bare is a link without a device: what completions do to it.
func bare(streams int) *link {
	e := &endpoint{config: Config{Slot: 1 << 10, Slots: 8}, options: transport.Options{Streams: streams}}
	l := &link{e: e, live: 2, rx: make([]byte, e.config.layout(streams))}
	for range streams {
		l.lanes = append(l.lanes, newLane(8))
	}
	for i := range 2 {
		l.queues = append(l.queues, &queue{link: l, nic: &nic{}, id: uint32(3 + i), sq: 64})
	}
	return l
}

// hear lets an immediate come by a queue.
func (l *link) hear(imm uint32, by ...int) {
	q := l.queues[0]
	if len(by) > 0 {
		q = l.queues[by[0]]
	}
	q.unposted = 0 // there is no QP that receives could be posted to
	q.take(&ibv.Completion{ID: q.requestID(0) | 1, Op: ibv.WCRecvWriteWithImm, Imm: imm, Flags: ibv.WithImm})
}

// TestHostileImmediates: what a peer may say only when it is true is an error when it is not.
func TestHostileImmediates(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*link)
		imm    uint32
	}{
		"there are 2": {nil, immediate(immPiece, 2, 0)},
		"want 0":      {nil, immediate(immPiece, 1, 8)},
		"want 1":      {func(l *link) { l.hear(immediate(immPiece, 0, 0)) }, immediate(immPiece, 0, 0)},
		"slot 3 of":   {func(l *link) { l.hear(immediate(immPiece, 0, 3)) }, immediate(immPiece, 0, 3)},
		"8 are in use": {func(l *link) {
			for k := range uint64(8) {
				l.hear(immediate(immPiece, 0, k))
			}
		}, immediate(immPiece, 0, 8)},
		"read 1 slots of the 0": {nil, immediate(immCredit, 0, 1)},
		"read 4 slots of the 3": {func(l *link) { l.lanes[1].posted = 3 }, immediate(immCredit, 1, 4)},
		"unknown immediate":     {nil, immediate(immWord, 63, 0)},
		"news of QP 2":          {nil, immediate(immWord, wordBroken, 2)},
	} {
		l := bare(2)
		if c.before != nil {
			c.before(l)
		}
		require.NoError(t, l.failed, name)
		l.hear(c.imm)
		require.ErrorIs(t, l.failed, transport.ErrCorrupt)
		require.ErrorContains(t, l.failed, name)
	}
	l := bare(1)
	header{credit: 9}.putFor(l)
	l.hear(immediate(immPiece, 0, 0))
	require.ErrorIs(t, l.failed, transport.ErrCorrupt, "credit in a header is checked, too")
}

func (h header) putFor(l *link) { h.put(l.rx[l.slot(0, 0):]) }

// TestLaneCountsWrap: credit is right across the wraps of what is on the wire.
func TestLaneCountsWrap(t *testing.T) {
	for _, start := range []uint64{0, 1<<24 - 5, 1<<32 - 5, 1<<63 - 1} {
		n := lane{posted: start, credit: start}
		random := rand.New(rand.NewPCG(1, start))
		for range 1000 {
			n.posted += random.Uint64N(8 - (n.posted - n.credit) + 1)
			read := n.credit + random.Uint64N(n.posted-n.credit+1)
			mask := uint32(countMask)
			if random.IntN(2) == 0 {
				mask = ^uint32(0)
			}
			require.NoError(t, n.credited(uint32(read)&mask, mask))
			require.Equal(t, read, n.credit)
		}
	}
}

// TestSlotsOfSeveralQPs: slots that other QPs carried come in any order, and count without a gap; credit that was overtaken is no news.
func TestSlotsOfSeveralQPs(t *testing.T) {
	for _, start := range []uint64{0, 5, 1<<24 - 3} {
		l := bare(1)
		n := &l.lanes[0]
		n.arrived.count, n.noticed.count, n.consumed, n.told = start, start, start, start
		random := rand.New(rand.NewPCG(7, start))
		for range 300 {
			order := random.Perm(8)
			for i, k := range order {
				l.hear(immediate(immPiece, 0, n.consumed+uint64(k)), i%2)
				require.NoError(t, l.failed)
				came := map[int]bool{}
				for _, j := range order[:i+1] {
					came[j] = true
				}
				whole := 0
				for came[whole] {
					whole++
				}
				require.EqualValues(t, whole, n.arrived.count-n.consumed)
			}
			n.consumed = n.arrived.count
			n.told = n.free()
		}
	}
	l := bare(1)
	l.lanes[0].posted = 8
	l.hear(immediate(immCredit, 0, 7))
	l.hear(immediate(immCredit, 0, 3), 1)
	require.NoError(t, l.failed)
	require.EqualValues(t, 7, l.lanes[0].credit)
}

// TestGoodbyeWaitsForWhatIsUnderWay: a goodbye that overtakes pieces does not end the link before they are here.
func TestGoodbyeWaitsForWhatIsUnderWay(t *testing.T) {
	l := bare(2)
	l.hear(immediate(immPiece, 0, 1), 1)
	l.hear(immediate(immBye, 1, 0))
	l.hear(immediate(immBye, 0, 2))
	l.hear(immediate(immBye, 0, 2)) // twice, where there are more QPs than streams
	require.False(t, l.left())
	l.hear(immediate(immPiece, 0, 0), 1)
	require.True(t, l.left())
}

// TestSendQueueCounts: completions of some requests stand for those before them, across the wrap of their positions.
func TestSendQueueCounts(t *testing.T) {
	q := bare(1).queues[1]
	q.posted, q.done = 1<<31-40, 1<<31-40
	for range 20 {
		for range 60 {
			q.posted++
		}
		q.take(&ibv.Completion{ID: q.requestID(q.posted - 20)})
		require.EqualValues(t, 20, q.posted-q.done)
		require.True(t, q.room())
		q.take(&ibv.Completion{ID: q.requestID(q.posted)})
		require.Zero(t, q.posted-q.done)
	}
	q.posted += 64
	require.False(t, q.room())
}

// TestFirstFailureStays: the device's own words count, not those of what it flushes afterwards.
func TestFirstFailureStays(t *testing.T) {
	l := bare(1)
	l.fail(transport.ErrGone)
	l.fail(transport.ErrCorrupt)
	require.Equal(t, transport.ErrGone, l.failed)
}
