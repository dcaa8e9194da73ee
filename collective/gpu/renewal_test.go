package gpu

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// renewal queues two calls of two ranks. The second rank's stream stands still, and is destroyed between them; the next one has its handle.
func renewal(t *testing.T, first, second *rig, calls [2][]Call, queue func(calls []Call)) {
	t.Helper()
	first.waitAll()
	second.waitAll()
	x := cudatest.NewRenewal(t, first.devices[1], first.streams[1])
	queue(calls[0])
	first.streams[1] = x.Renew(first.streams[1])
	for r := range calls[1] {
		calls[1][r].Stream = first.streams[r]
	}
	queue(calls[1])
	time.Sleep(20 * time.Millisecond) // what does not wait goes wrong
	x.End()
	first.waitAll()
}

// TestRenewal: calls on a stream that has the handle of one which was destroyed come behind those that are still queued there, whichever way they go.
func TestRenewal(t *testing.T) {
	first := newRigOn(t, several(t, 2, 2), 1<<20)
	second := newRigOn(t, first.devices, 1<<20)
	each := func(t *testing.T, queue func(calls []Call)) {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.AllGather} {
			for _, count := range []int{3, 20000} {
				a := newSample(Call{Kind: kind, DType: kernels.Float32, Count: count}, 2, 1)
				b := newSample(a.Call, 2, 2)
				calls := [2][]Call{a.lay(first), b.lay(second)}
				renewal(t, first, second, calls, queue)
				a.compare(first, calls[0])
				b.compare(second, calls[1])
			}
		}
	}
	c, err := New(first.devices)
	require.NoError(t, err)
	ways(t, func(name string) {
		t.Run(name, func(t *testing.T) {
			each(t, func(calls []Call) { require.NoError(t, c.Group(calls)) })
		})
	})
	require.NoError(t, c.Close())
	parts := partsOn(t, first.devices)
	t.Run("parts", func(t *testing.T) {
		each(t, func(calls []Call) { queueAll(t, parts, calls, 1) })
	})
	for _, count := range []int{3, 20000, 200000} {
		a := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: count}, 2, 1)
		b := newSample(a.Call, 2, 2)
		calls := [2][]Call{a.lay(first), b.lay(second)}
		renewal(t, first, second, calls, func(calls []Call) {
			for r, c := range calls {
				require.NoError(t, parts[r].Post([]Message{
					{Send: true, Rank: r, Peer: 1 - r, Ptr: c.Src, DType: c.DType, Count: count, Stream: c.Stream},
					{Rank: r, Peer: 1 - r, Ptr: c.Dst, DType: c.DType, Count: count, Stream: c.Stream},
				}))
			}
		})
		for r := range parts {
			require.True(t, bytes.Equal(a.inputs[1-r], first.down(r, calls[0][r].Dst, a.block())), "messages of %d, rank %d", count, r)
			require.True(t, bytes.Equal(b.inputs[1-r], first.down(r, calls[1][r].Dst, b.block())), "messages of %d behind, rank %d", count, r)
		}
	}
}

// Who has not come to old launches is named, though a stream of the same handle has come to a later one.
func TestRenewalBehind(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 100}, 2, 1)
	calls := s.lay(g)
	g.waitAll()
	x := cudatest.NewRenewal(t, g.devices[1], g.streams[1])
	for i := range fewMarks + 1 {
		if i == fewMarks/2 {
			g.streams[1] = x.Renew(g.streams[1])
			calls[1].Stream = g.streams[1]
		}
		require.NoError(t, c.Group(calls))
	}
	require.Eventually(t, func() bool { // rank 0's kernel has come
		launch, late := c.Behind()
		return launch == 1 && len(late) == 1 && late[0] == 1
	}, time.Minute, time.Millisecond)
	x.End()
	g.waitAll()
	s.check(g, calls)
}
