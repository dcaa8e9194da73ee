package comm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
)

// TestDeviceProxyPinned: calls that are larger and larger, or captured again and again, take no more and more memory.
func TestDeviceProxyPinned(t *testing.T) {
	w := apartWorld(t, 2, 4000, nil)
	for room := int64(1 << 20); room < 8<<20; room += 256 << 10 {
		require.NoError(t, comm.Reserve(w.comms[0], room, room))
	}
	all, used, _ := comm.Pinned(w.comms[0])
	require.LessOrEqual(t, all, 2*used)
	if w.on(0).Device() == w.on(1).Device() {
		return // nothing can be captured
	}
	for i := range 20 {
		call := w.call(0, 500)
		if i%2 == 1 {
			call.Src, call.Dst = call.Dst, call.Src // elsewhere
		}
		g, err := w.on(0).Capture(w.streams[0], func() error { return w.comms[0].Do(context.Background(), call) })
		require.NoError(t, err)
		require.NoError(t, g.Destroy())
	}
	_, _, captured := comm.Pinned(w.comms[0])
	require.LessOrEqual(t, captured, 1)
}
