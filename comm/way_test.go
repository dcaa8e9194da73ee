package comm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Way says where a call goes: what links do not take goes by host memory, and calls on host memory have no way of this sort.
func TestDeviceLinksWay(t *testing.T) {
	const n = 100
	t.Setenv("GCCL_TEST_LINKED", "") // which would link those that are to be apart
	fused := newDeviceWorld(t, 2, 4*n, nil)
	require.Equal(t, comm.WayFused, fused.comms[0].Way(fused.call(0, n)))
	proxied := apartWorld(t, 2, 4*n, nil)
	require.Equal(t, comm.WayProxied, proxied.comms[1].Way(proxied.call(1, n)))
	linked := linkedWorld(t, 2)
	call := linked.call(0, n)
	require.Equal(t, comm.WayLinked, linked.comms[0].Way(call))
	call.Algorithm = "ring"
	require.Equal(t, comm.WayProxied, linked.comms[0].Way(call))
	require.Equal(t, comm.WayLinked, linked.comms[0].Way(comm.Call{Kind: comm.KindSend, Src: call.Src, Peer: 1, Count: n, DType: kernels.Float32}))
	require.Equal(t, comm.WayLinked, linked.comms[0].Way(comm.Call{Kind: comm.KindBarrier, Src: call.Src}))
	require.Equal(t, comm.WayProxied, linked.comms[0].Way(comm.Call{Kind: comm.KindSend, Src: call.Src, Peer: 0, Count: n, DType: kernels.Float32}), "to oneself")
	require.Empty(t, linked.comms[0].Way(comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(make([]float32, n)), Dst: kernels.MemOf(make([]float32, n)), Count: n}))
	call.Src.Device.Ordinal, call.Dst.Device.Ordinal = 77, 77
	require.Empty(t, linked.comms[0].Way(call))
	require.Empty(t, world(t, 2, nil)[0].Way(call), "no device")
}
