package comm_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// TestDeviceProxyRenewal: a call on a stream that has the handle of one which was destroyed comes behind what is still queued there, of all lengths.
func TestDeviceProxyRenewal(t *testing.T) {
	const ranks, long = 2, 700000
	w := apartWorld(t, ranks, 4*long, nil)
	if w.share() {
		t.Skip("ranks that share a GPU wait for their streams")
	}
	v := w.more(4 * long)
	for round, n := range []int{1000, 100000, long} {
		sums := [][]float32{w.fill(n, round), v.fill(n, round+20)}
		for r := range ranks {
			require.NoError(t, w.on(r).Wait(w.streams[r]))
			require.NoError(t, w.on(r).Wait(v.streams[r]))
		}
		x := cudatest.NewRenewal(t, w.on(1), w.streams[1])
		each(ranks, func(r int) {
			if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		w.streams[1] = x.Renew(w.streams[1])
		each(ranks, func(r int) {
			c := v.call(r, n)
			c.Stream = w.streams[r]
			if err := w.comms[r].Do(context.Background(), c); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		time.Sleep(20 * time.Millisecond) // what does not wait goes wrong
		x.End()
		for r := range ranks {
			require.Eventually(t, func() bool {
				done, err := w.on(r).Done(w.streams[r])
				return err == nil && done
			}, time.Minute, time.Millisecond, "rank %d", r)
		}
		w.check(sums[0])
		v.check(sums[1])
	}
}
