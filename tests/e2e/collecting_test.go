//go:build linux

package e2e

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

const collections = 40

// collecting is the job of a rank of two. The first collects garbage back to back, first while it makes no calls, then while calls of 8 bytes wait for
// the other one all the time.
func collecting(r *cluster.Rank) {
	r.Case("collections", func(report *cluster.Case) error {
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		if r.Rank == 0 {
			report.Fact("idle", int64(medianCollection()))
		}
		done := make(chan time.Duration, 1)
		if r.Rank == 0 {
			go func() { done <- medianCollection() }()
		}
		for sum := []int64{0}; ; {
			if sum[0] = 0; r.Rank == 0 && len(done) > 0 {
				sum[0] = 1
			} else if r.Rank == 1 {
				for start := time.Now(); time.Since(start) < 50*time.Microsecond; { // the other one waits as long
				}
			}
			if err := comm.AllReduce(background, c, sum, sum, kernels.Sum); err != nil {
				return err
			}
			if sum[0] > 0 {
				break
			}
		}
		if r.Rank == 0 {
			report.Fact("waiting", int64(<-done))
		}
		return nil
	})
}

func medianCollection() time.Duration {
	var took []time.Duration
	for range collections {
		start := time.Now()
		runtime.GC()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[collections/2]
}

// TestCollectionsAreNotHeldUp: a call that waits can be stopped by the garbage collector, which takes at most three times as long as without. A wait that
// could not would hold it up for as long as it lasts, which is up to hundreds of milliseconds.
func TestCollectionsAreNotHeldUp(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		res := cluster.Run(t, cluster.Launch{Job: "collecting", Ranks: 2, Env: []string{"GCCL_TRANSPORT=" + transport}})
		idle, ok := res.Fact("collections", 0, "idle")
		require.True(t, ok)
		waiting, _ := res.Fact("collections", 0, "waiting")
		t.Logf("%s: a collection takes %v, beside calls %v", transport, time.Duration(idle), time.Duration(waiting))
		require.Less(t, time.Duration(waiting), 3*time.Duration(idle)+5*time.Millisecond) // a machine that does other things gives no more
	}
}
