package comm_test

import (
	"context"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// TestDeviceProxyGroups: what one rank groups another makes call by call, calls of a group that need others' results have them, and streams that
// differ keep the order.
func TestDeviceProxyGroups(t *testing.T) {
	const ranks, n, m = 2, 700000, 300000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	ctx := context.Background()
	for round := range 6 {
		sum := w.fill(n, round)
		twice := make([]float32, n)
		for i := range twice {
			twice[i] = ranks * sum[i]
		}
		each(ranks, func(r int) {
			first := w.call(r, n) // src -> dst
			then := w.call(r, n)  // dst -> v, the sum of sums
			then.Src, then.Dst = w.dst[r], v.src[r]
			short := w.call(r, m)
			short.Dst = v.dst[r]
			calls := []comm.Call{first, then, short}
			if round%2 == 1 {
				then.Stream = v.streams[r] // behind what is on another stream
				calls[1] = then
			}
			var err error
			if round%3 == r {
				for _, c := range calls {
					if err == nil {
						err = w.comms[r].Do(ctx, c)
					}
				}
			} else {
				err = comm.Group(ctx, calls...)
			}
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		for r := range ranks {
			require.NoError(t, w.on(r).Wait(v.streams[r]))
		}
		w.check(sum)
		for r := range ranks {
			require.Equal(t, twice, w.read(r, v.src[r], n), "rank %d", r)
			require.Equal(t, sum[:m], w.read(r, v.dst[r], m), "rank %d", r)
		}
	}
}

// TestDeviceProxyDependentGroups: of calls of one Group that need others' results, on two communicators and of several ranks of this process.
func TestDeviceProxyDependentGroups(t *testing.T) {
	const ranks, n = 2, 700000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	split := w.split()
	for round := range 6 {
		m := []int{1000, n}[round%2]
		sum := w.fill(m, round)
		twice := make([]float32, m)
		for i := range twice {
			twice[i] = ranks * sum[i]
		}
		group := func(r int) []comm.Call {
			first, then := w.call(r, m), w.call(r, m)
			then.Src, then.Dst = w.dst[r], v.dst[r]
			if round%3 == 0 {
				then.Comm = split[r]
			}
			return []comm.Call{first, then}
		}
		if round < 3 {
			each(ranks, func(r int) {
				if err := comm.Group(context.Background(), group(r)...); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		} else {
			require.NoError(t, comm.Group(context.Background(), append(group(0), group(1)...)...))
		}
		w.check(sum)
		for r := range ranks {
			require.Equal(t, twice, w.read(r, v.dst[r], m), "round %d, rank %d", round, r)
		}
	}
}

// TestDeviceProxyUnlikeGroups: what one rank has in a group, another one has in calls that wait for each other, longer than what is under way at once.
func TestDeviceProxyUnlikeGroups(t *testing.T) {
	const ranks, n = 3, 600000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	for round := range 3 {
		w.fill(n, round)
		each(ranks, func(r int) {
			switch r {
			case 0:
				other := w.message(0, comm.KindRecv, 2, v.dst[0], n)
				other.Stream = []cuda.Stream{w.streams[0], v.streams[0]}[round%2]
				if err := comm.Group(context.Background(), w.message(0, comm.KindRecv, 1, w.dst[0], n), other); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			case 1:
				w.oneByOne(w.message(1, comm.KindSend, 0, w.src[1], n), w.message(1, comm.KindSend, 2, w.src[1], n))
			case 2:
				w.oneByOne(w.message(2, comm.KindRecv, 1, w.dst[2], n), w.message(2, comm.KindSend, 0, w.src[2], n))
			}
		})
		require.NoError(t, w.on(0).Wait(v.streams[0]))
		require.Equal(t, w.read(1, w.src[1], n), w.read(0, w.dst[0], n))
		require.Equal(t, w.read(2, w.src[2], n), w.read(0, v.dst[0], n))
		require.Equal(t, w.read(1, w.src[1], n), w.read(2, w.dst[2], n))
	}
}

// TestDeviceProxyUnlikeLong is the same of messages longer than what a stream takes at once.
func TestDeviceProxyUnlikeLong(t *testing.T) {
	const ranks, n = 2, 14 << 20
	w := apartWorld(t, ranks, 4*n, nil)
	w.fill(n, 1)
	each(ranks, func(r int) {
		send, recv := w.message(r, comm.KindSend, 1-r, w.src[r], n), w.message(r, comm.KindRecv, 1-r, w.dst[r], n)
		if r == 1 {
			w.oneByOne(recv, send)
		} else if err := comm.Group(context.Background(), send, recv); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	for r := range ranks {
		require.Equal(t, w.read(1-r, w.src[1-r], n), w.read(r, w.dst[r], n))
	}
}

// TestDeviceProxyGroupsOfSeveral: calls of two communicators in one Group, which ranks make in different orders, or one by one.
func TestDeviceProxyGroupsOfSeveral(t *testing.T) {
	const ranks, most = 2, 2 << 20
	w := apartWorld(t, ranks, 4*most, nil)
	v := w.more(4 * most)
	split := w.split()
	for _, n := range []int{100, 300000, most} {
		for round := range 4 {
			want := w.fill(n, round)
			each(ranks, func(r int) {
				x, y := w.call(r, n), w.call(r, n)
				y.Comm, y.Dst = split[r], v.dst[r]
				switch {
				case round == 0 && r == 1:
					w.oneByOne(x, y)
					return
				case round%2 == 1 && r == 1 && !linked(): // kernels wait for each other in the order in which they are queued
					x, y = y, x
				}
				if err := comm.Group(context.Background(), x, y); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			w.check(want)
			for r := range ranks {
				require.Equal(t, want, w.read(r, v.dst[r], n))
			}
		}
	}
}

// message is a send from m or a receive to it.
func (w *deviceWorld) message(r int, kind comm.Kind, peer int, m kernels.Mem, n int) comm.Call {
	c := comm.Call{Comm: w.comms[r], Kind: kind, Count: n, DType: kernels.Float32, Peer: peer, Stream: w.streams[r]}
	if kind == comm.KindSend {
		c.Src = m
	} else {
		c.Dst = m
	}
	return c
}

// split is another communicator of the same ranks.
func (w *deviceWorld) split() []*comm.Comm {
	comms := make([]*comm.Comm, len(w.comms))
	each(len(comms), func(r int) {
		var err error
		if comms[r], err = w.comms[r].Split(context.Background(), 0, r); err != nil {
			w.t.Errorf("rank %d: %v", r, err)
		}
	})
	require.False(w.t, w.t.Failed())
	w.t.Cleanup(func() { each(len(comms), func(r int) { comms[r].Close() }) })
	return comms
}

// oneByOne makes calls without a Group.
func (w *deviceWorld) oneByOne(calls ...comm.Call) {
	for _, c := range calls {
		if err := c.Comm.Do(context.Background(), c); err != nil {
			w.t.Errorf("rank %d: %v", c.Comm.Rank(), err)
		}
	}
}

// TestDeviceProxyFactorOfGroup: a factor is what an earlier call of the Group makes of it.
func TestDeviceProxyFactorOfGroup(t *testing.T) {
	const ranks, n = 2, 100000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(16)
	for round := range 5 {
		want := w.fill(n, round)
		each(ranks, func(r int) {
			one := []float32{float32(round + 1)}
			if err := w.on(r).CopyAny(w.streams[r], v.src[r].Ptr, unsafe.Pointer(&one[0]), 4); err != nil {
				t.Error(err)
			}
			factor, scaled := w.call(r, 1), w.call(r, n)
			factor.Src, factor.Dst = v.src[r], v.dst[r]
			scaled.Factor = kernels.FactorAt(v.dst[r].Ptr)
			if err := comm.Group(context.Background(), factor, scaled); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		for i := range want {
			want[i] *= float32(ranks * (round + 1))
		}
		w.check(want)
	}
}
