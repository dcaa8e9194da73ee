//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What is copied is right in both ways, and when they are compared.
func TestPuts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	src, dst, want := make([]byte, 1<<17), make([]byte, 1<<17), make([]byte, 1<<17)
	for i := range src {
		src[i] = byte(random.Uint32())
	}
	var p puts
	for k := range 3000 {
		p.far = k%2 == 0
		from, n := random.IntN(256), random.IntN(1<<(5+k%12))
		p.copy(unsafe.Pointer(&dst[from]), unsafe.Pointer(&src[from]), n)
		copy(want[from:from+n], src[from:])
		require.True(t, bytes.Equal(want, dst), "copy %d of %d bytes to %d", k, n, from)
	}
	require.Positive(t, p.ordinary)
	require.Positive(t, p.stream)
}

func perProbe(nsPerByte float64) time.Duration { return time.Duration(nsPerByte * probeBytes) }

// Distant and near processors are told apart by what the two ways take, one bad sample changes little for long, and lending alone leads to a probe.
func TestPutsLearn(t *testing.T) {
	var p puts
	take := func(ordinary, stream float64) {
		for range 6 {
			learn(&p.ordinary, perProbe(ordinary))
			learn(&p.stream, perProbe(stream))
		}
		p.decide()
	}
	take(0.35, 0.035) // measured between distant cores
	require.True(t, p.far)
	take(0.1, 0.045) // and between near ones
	require.False(t, p.far)
	take(0.35, 0.035)
	require.True(t, p.far)

	// What is made in lent memory is compared too: closely at first, then seldom; and put there past the caches where the peer is far.
	p = puts{}
	src, dst := make([]byte, 1<<13), make([]byte, 1<<13)
	fills := func(messages int) (n int) {
		for range messages {
			if p.wantsFill() {
				n++
				p.copy(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), len(src))
				p.ordinary, p.stream, p.far = 0, 0, false // near
			}
		}
		return n
	}
	require.Greater(t, fills(100), 10)
	seldom := fills(10 * probeEvery) // 10, and more where interrupts lie
	require.Greater(t, seldom, 2)
	require.Less(t, seldom, 10*probeEvery/8)
	p.far = true
	require.True(t, p.wantsFill())

	p = puts{}
	asked := 0
	for ; !p.wantsCopy(); asked++ {
		require.Less(t, asked, 2*probeEvery)
	}
}
