//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/cmd/gccl/launch"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// rough is the job of a rank that joins, by its environment alone, in a storm of signals, and before its root is there.
func rough(r *cluster.Rank) {
	os.Unsetenv("GCCL_UNIQUE_ID")
	stop := storm()
	r.Case("join", func(report *cluster.Case) error {
		if r.Rank == 0 {
			time.Sleep(1500 * time.Millisecond) // the others are refused meanwhile: rank 0 serves the root
		}
		c, err := comm.New(background, comm.Config{Logger: quiet, Transport: os.Getenv("GCCL_TRANSPORT"), ShmDir: os.Getenv("GCCL_SHM_DIR")})
		if err != nil {
			return err
		}
		err = right(c, mixedMemory)
		report.Fact("signals", int64(stop()))
		return errors.Join(err, c.Close())
	})
}

// TestUC22_SignalsAndLateRoot: signals never surface as EINTR, and ranks that are up before their root wait for it.
func TestUC22_SignalsAndLateRoot(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			env, err := launch.NewEnvironment([]string{}, 3)
			require.NoError(t, err)
			defer env.Close()
			res := cluster.Run(t, cluster.Launch{Job: "rough", Ranks: 3, Env: []string{"GCCL_TRANSPORT=" + transport}, Only: env.Rank})
			for rank := range 3 {
				n, _ := res.Fact("join", rank, "signals")
				require.Greater(t, n, int64(100), "signals at rank %d", rank)
			}
		})
	}
}

// TestUC24_ManyJobsAtOnce: twenty jobs of two processes, with default settings, on one host.
func TestUC24_ManyJobsAtOnce(t *testing.T) {
	dir := shmDirOf(t)
	t.Run("jobs", func(t *testing.T) {
		for i := range 20 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				cluster.Run(t, cluster.Launch{Job: "brief", Ranks: 2, ShmDir: dir})
			})
		}
	})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestUC29_GapsAndDoublesInRankNumbers: a rank that is claimed twice ends the join at once for all; a missing one is named at the timeout.
func TestUC29_GapsAndDoublesInRankNumbers(t *testing.T) {
	joinAs := func(id bootstrap.ID, timeout time.Duration, ranks ...int) []error {
		errs := make([]error, len(ranks))
		var wg sync.WaitGroup
		for i, r := range ranks {
			wg.Go(func() {
				c, err := comm.New(background, comm.Config{Rank: r, Size: 6, ID: id, InitTimeout: timeout, Logger: quiet, Transport: "tcp"})
				if err == nil {
					err = errors.Join(errors.New("joined"), c.Close())
				}
				errs[i] = err
			})
		}
		wg.Wait()
		return errs
	}
	root := func(timeout time.Duration) bootstrap.ID {
		r, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "127.0.0.1:0", Timeout: timeout})
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r.ID()
	}
	start := time.Now()
	for _, err := range joinAs(root(time.Minute), time.Minute, 0, 1, 2, 4, 5, 5) {
		require.ErrorContains(t, err, "rank 5 ")
		require.ErrorContains(t, err, "twice")
	}
	require.Less(t, time.Since(start), 20*time.Second, "at once")
	for _, err := range joinAs(root(2*time.Second), 2*time.Second, 0, 1, 2, 4, 5) {
		require.ErrorContains(t, err, "missing: 3")
	}
}

// TestManyRanks: 64 ranks in one process, each with all its connections, sum over TCP.
func TestManyRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("64 ranks with -short")
	}
	const n = 64
	start := time.Now()
	comms := world(t, n, overTransport("tcp"))
	t.Logf("%d ranks met in %v", n, time.Since(start))
	for _, algorithm := range []string{"", "ring", "tree", "doubling"} {
		start = time.Now()
		perRank(t, comms, func(c *comm.Comm) error {
			s := spec{kind: comm.KindAllReduce, algorithm: algorithm, dtype: kernels.Int64, redop: kernels.Sum, count: 1003, seed: uint64(c.Rank())}
			s.seed = 64 // one for all, of which rank 0 is the judge
			g, err := newGround(c, []spec{s})
			if err != nil {
				return err
			}
			return s.run(c, g, &cluster.Case{})
		})
		t.Logf("all_reduce %q: %v", algorithm, time.Since(start))
	}
}

// TestInitEndsWithItsContext: a rank that waits for others leaves when it is told to.
func TestInitEndsWithItsContext(t *testing.T) {
	r, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer r.Close()
	ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = comm.New(ctx, comm.Config{Rank: 0, Size: 2, ID: r.ID(), Logger: quiet})
	require.Error(t, err)
	require.Less(t, time.Since(start), soon)
	require.True(t, strings.Contains(err.Error(), "missing: 1") || strings.Contains(err.Error(), "rank 1"), "%v", err)
}
