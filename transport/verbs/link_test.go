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
	e := &endpoint{config: Config{Slot: 1 << 10, Slots: 8}}
	return &link{e: e, id: 3, sq: 64, rx: &region{bytes: make([]byte, streams*8<<10)}, lanes: make([]lane, streams)}
}

func (l *link) hear(imm uint32) {
	l.take(&ibv.Completion{ID: l.requestID(0) | 1, Op: ibv.WCRecvWriteWithImm, Imm: imm, Flags: ibv.WithImm})
}

// TestHostileImmediates: what a peer may say only when it is true is an error when it is not.
func TestHostileImmediates(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*link)
		imm    uint32
	}{
		"there are 2": {nil, immediate(immPiece, 2, 0)},
		"want 0":      {nil, immediate(immPiece, 1, 1)},
		"8 are in use": {func(l *link) {
			for k := range uint64(8) {
				l.hear(immediate(immPiece, 0, k))
			}
		}, immediate(immPiece, 0, 8)},
		"read 1 slots of the 0": {nil, immediate(immCredit, 0, 1)},
		"read 4 slots of the 3": {func(l *link) { l.lanes[1].posted = 3 }, immediate(immCredit, 1, 4)},
		"unknown immediate":     {nil, 5},
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

func (h header) putFor(l *link) { h.put(l.rx.bytes) }

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

// TestSendQueueCounts: completions of some requests stand for those before them, across the wrap of their positions.
func TestSendQueueCounts(t *testing.T) {
	l := bare(1)
	l.posted, l.done = 1<<31-40, 1<<31-40
	for range 20 {
		for range 60 {
			l.posted++
		}
		l.take(&ibv.Completion{ID: l.requestID(l.posted - 20)})
		require.EqualValues(t, 20, l.posted-l.done)
		require.True(t, l.room(0))
		l.take(&ibv.Completion{ID: l.requestID(l.posted)})
		require.Zero(t, l.posted-l.done)
	}
}

// TestFirstFailureStays: the device's own words count, not those of what it flushes afterwards.
func TestFirstFailureStays(t *testing.T) {
	l := bare(1)
	l.take(&ibv.Completion{ID: l.requestID(1), Status: ibv.RetryExceeded, Vendor: 0x81})
	l.take(&ibv.Completion{ID: l.requestID(0) | 1, Status: ibv.Flushed})
	require.ErrorIs(t, l.failed, ibv.RetryExceeded)
	require.ErrorIs(t, l.failed, transport.ErrGone)
	require.ErrorContains(t, l.failed, "0x81")
}
