//go:build linux && (amd64 || arm64)

package shm

import (
	"math"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// FuzzLanding: a peer that offers anything as the place of a message, and says of messages that they were made anywhere in our memory. We
// write to what is the peer's alone, and take a message from our own memory only where we offered it.
func FuzzLanding(f *testing.F) {
	good := uint64(1) << 20
	for _, off := range []uint64{good, 0, 1 << 12, math.MaxUint64, math.MaxUint64 - fieldBytes + 1, 1 << 62, good + 1} {
		for _, bytes := range []uint64{fieldBytes, 0, 8, math.MaxUint64} {
			f.Add(uint8(landingOffered), off, bytes, uint32(fieldBytes), uint64(0), uint32(fieldBytes))
		}
	}
	for state := range uint8(16) {
		f.Add(state, good, uint64(fieldBytes), uint32(fieldBytes), uint64(state)<<12, uint32(fieldBytes))
	}
	f.Add(uint8(landingOffered), good, uint64(8), uint32(8), uint64(0), uint32(8))
	f.Fuzz(func(t *testing.T, state uint8, off, bytes uint64, n uint32, where uint64, length uint32) {
		g := newField(t)
		at := g.b.tx.ring.landing() // what the receiver says to the sender
		atomic.StoreUint64(&at.off, off)
		atomic.StoreUint64(&at.bytes, bytes)
		atomic.StoreUint64(&at.state, (g.a.tx.seq+uint64(state>>2))<<2|uint64(state&3))
		wanted := int(n % (1 << 20))
		if p := g.a.Landing(wanted); p != nil {
			require.Equal(t, bytes, uint64(wanted))
			require.LessOrEqual(t, off, uint64(g.to.seg.size)-bytes)
			read := 0
			for i := range wanted {
				read += int(*(*byte)(unsafe.Add(p, i))) // it is mapped
			}
			require.GreaterOrEqual(t, read, 0)
		}
		// And what the sender says to the receiver, who offered one place.
		g.b.Land(0, g.at(0))
		offered, _ := g.to.seg.offset(g.at(0).Ptr, fieldBytes)
		l := unsafe.Slice(g.a.tx.ring.line(g.b.rx.seq), 8)
		l[2] = uint64(offered) + where
		l[1] = uint64(length)&lengthMask | farBit | landedBit
		atomic.StoreUint64(&l[0], uint64(uint32(g.b.rx.seq))<<32|uint64(g.tag))
		require.NoError(t, g.b.other(g.b.rx.ring.line(g.b.rx.seq), g.tag, fieldBytes), "it is there")
		ok, err := g.b.Recv(g.tag, g.at(0))
		if ok {
			require.Zero(t, where)
			require.Equal(t, uint64(fieldBytes), uint64(length)&lengthMask)
		} else {
			require.Error(t, err)
		}
	})
}
