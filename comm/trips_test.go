package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// TestDeviceProxyGraph: calls that each rank captures in a graph of its own, replayed with fresh data, between calls of all lengths that are not.
// Where ranks share a GPU, and for what is too long between GPUs that are not linked, that is refused, and nothing is lost.
func TestDeviceProxyGraph(t *testing.T) {
	const ranks, n, long = 2, 5000, 700000
	w := apartWorld(t, ranks, 4*long, nil)
	v := w.more(4 * long)
	ctx := context.Background()
	shared := w.on(0).Device() == w.on(1).Device()
	graphs := make([]*cuda.Graph, ranks)
	each(ranks, func(r int) {
		exchange := comm.Call{Comm: w.comms[r], Kind: comm.KindAllToAll, Src: w.dst[r], Dst: v.src[r], Count: n / 2, DType: kernels.Float32, Stream: w.streams[r]}
		send := comm.Call{Comm: w.comms[r], Kind: comm.KindSend, Src: w.src[r], Count: n, DType: kernels.Float32, Peer: 1 - r, Stream: w.streams[r]}
		recv := comm.Call{Comm: w.comms[r], Kind: comm.KindRecv, Dst: v.dst[r], Count: n, DType: kernels.Float32, Peer: 1 - r, Stream: w.streams[r]}
		g, err := w.on(r).Capture(w.streams[r], func() error {
			if err := w.comms[r].Do(ctx, w.call(r, long)); !linked() && (!errors.Is(err, comm.ErrUnsupported) || !strings.Contains(err.Error(), "graph")) {
				return fmt.Errorf("a long call in a capture: %w", err)
			}
			if r == 0 { // the others need not capture as often
				g, err := w.on(r).Capture(v.streams[r], func() error {
					c := w.call(r, n)
					c.Stream = v.streams[r]
					if err := w.comms[r].Do(ctx, c); err != nil && !shared {
						return err
					}
					return nil
				})
				if err = errors.Join(err, g.Destroy()); err != nil {
					return err
				}
			}
			err := w.comms[r].Do(ctx, w.call(r, n))
			if err == nil {
				err = w.comms[r].Do(ctx, exchange)
			}
			if err == nil {
				err = comm.Group(ctx, send, recv)
			}
			if w.on(0).Device() == w.on(1).Device() && errors.Is(err, comm.ErrUnsupported) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		graphs[r] = g
	})
	if t.Failed() {
		return
	}
	for round := range 30 {
		sum := w.fill(n, round)
		if !shared {
			each(ranks, func(r int) {
				if err := graphs[r].Launch(w.streams[r]); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			w.check(sum)
			for r := range ranks {
				half := sum[r*n/2 : (r+1)*n/2]
				require.Equal(t, slices.Concat(half, half), w.read(r, v.src[r], n), "round %d, rank %d", round, r)
				require.Equal(t, w.read(1-r, w.src[1-r], n), w.read(r, v.dst[r], n), "round %d, rank %d", round, r)
			}
		}
		m := []int{1, n, long}[round%3]
		sum = w.fill(m, round+7)
		each(ranks, func(r int) {
			for range 2 {
				if err := w.comms[r].Do(ctx, w.call(r, m)); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
		w.check(sum)
		each(ranks, func(r int) {
			if err := errors.Join(w.comms[r].Barrier(ctx), w.comms[r].Err()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	for _, g := range graphs {
		require.NoError(t, g.Destroy())
	}
}
