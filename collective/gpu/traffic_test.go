package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who is closed is waited for no longer, and a launch that crowds is remembered until then.
func TestTrafficForgets(t *testing.T) {
	const ordinal = -7 // no GPU's
	a, b := &links{}, &links{}
	launching.Lock()
	on := trafficOf(ordinal)
	require.Same(t, on, trafficOf(ordinal))
	on.note(a, 11, true)
	on.note(b, 22, false)
	on.note(b, 22, false)
	require.Equal(t, []launch{{a, 11}, {b, 22}}, on.last)
	require.Same(t, a, on.crowd)
	launching.Unlock()
	forget(a)
	require.Equal(t, []launch{{b, 22}}, on.last)
	require.Nil(t, on.crowd)
	require.Equal(t, -1, on.find(a))
	forget(b)
	delete(launching.traffic, ordinal)
}

// Lines fit a stage whatever the number of GPUs, and so do the slots of every cut.
func TestStageHolds(t *testing.T) {
	require.LessOrEqual(t, int64(stageBytes), int64(32<<20))
	for n := 2; n <= 8; n++ {
		l := &links{sites: make([]site, n), crowd: 1}
		require.LessOrEqual(t, l.linesShare()*int64(n-1), int64(stageLines))
		for piece := int64(16); piece <= 4<<30; piece *= 4 {
			f := l.fifo(piece)
			require.LessOrEqual(t, int64(f.Stripes)*int64(f.Chunk)*int64(f.Depth), f.Share, "%d sites: %+v", n, f)
			require.LessOrEqual(t, f.At+f.Share*int64(n-1), int64(stageBytes))
			require.GreaterOrEqual(t, f.Depth, 3)
			require.GreaterOrEqual(t, f.Stripes, 1)
			require.LessOrEqual(t, f.Stripes*n, 132)
			require.Zero(t, f.Chunk%16)
		}
	}
}
