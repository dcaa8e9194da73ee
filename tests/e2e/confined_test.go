//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// confined is the job of a rank that may not look into other processes.
func confined(r *cluster.Rank) {
	r.Case("right", func(*cluster.Case) error {
		if err := cluster.Confine(); err != nil {
			return err
		}
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		for _, p := range c.Paths() {
			if p.Rank != c.Rank() && p.Transport != "shm" {
				return fmt.Errorf("rank %d is reached by %s (%s), want shm", p.Rank, p.Transport, p.Reason)
			}
		}
		for _, m := range []memory{sliceMemory, mixedMemory} {
			if err := right(c, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestUC36_ForbiddenToLookIntoPeers: where a filter forbids process_vm_readv and the like, ranks of a host share memory all the same and all
// calls are right.
func TestUC36_ForbiddenToLookIntoPeers(t *testing.T) {
	res := cluster.Run(t, cluster.Launch{Job: "confined", Ranks: 3, Env: []string{"GCCL_TRANSPORT=auto"}})
	require.Equal(t, []string{"right"}, res.Cases())
}

// TestUC36_ForbiddenBesideOthersThatCompute: nor do they take the filter for a dead peer where they outnumber the processors, and others compute
// on all of these.
func TestUC36_ForbiddenBesideOthersThatCompute(t *testing.T) {
	compute(t, "", runtime.NumCPU())
	res := cluster.Run(t, cluster.Launch{Job: "confined", Ranks: runtime.NumCPU() + 2, Env: []string{"GCCL_TRANSPORT=auto"}})
	require.Equal(t, []string{"right"}, res.Cases())
}

// compute starts processes that compute until the test ends, on the processors of that list (taskset's), or on all if it is empty.
func compute(t *testing.T, processors string, n int) {
	t.Helper()
	args := []string{"sh", "-c", "while :; do :; done"}
	if processors != "" {
		args = append([]string{"taskset", "-c", processors}, args...)
	}
	for range n {
		ctx, stop := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			stop()
			_ = cmd.Wait()
			used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			t.Logf("a process beside computed for %v", used)
			require.NotZero(t, used, "nothing computed beside the ranks")
		})
	}
}

// crowded is the job of a rank that shares one processor with all others.
func crowded(r *cluster.Rank) {
	err := stay(0)
	r.Case("calls", func(report *cluster.Case) error {
		if err != nil {
			return err
		}
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		var calls, yields []time.Duration
		var before, after unix.Rusage
		runtime.LockOSThread()
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
		src, dst := make([]float32, 256), make([]float32, 256)
		for i := range 1000 {
			for j := range src {
				src[j] = float32(i + j + c.Rank())
			}
			start := time.Now()
			if err := comm.AllReduce(context.Background(), c, dst, src, kernels.Sum); err != nil {
				return err
			}
			calls = append(calls, time.Since(start))
			for j := range dst {
				if want := float32(4*(i+j) + 6); dst[j] != want {
					return fmt.Errorf("call %d: element %d is %v, want %v", i, j, dst[j], want)
				}
			}
			start = time.Now()
			_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			yields = append(yields, time.Since(start))
		}
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
		runtime.UnlockOSThread()
		slices.Sort(calls)
		slices.Sort(yields)
		report.Fact("call", int64(calls[500]))
		report.Fact("yield", int64(yields[900]))
		report.Fact("sleeps", after.Nvcsw-before.Nvcsw)

		if err := c.Barrier(background); err != nil {
			return err
		}
		_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
		time.Sleep(time.Second)
		_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
		report.Fact("idle", after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano())
		return nil
	})
}

// TestUC38_FourRanksOnOneProcessor: ranks that share one processor let each other run: a short call takes less than 2 ms, which is half a slice of
// the scheduler's, or what some yields of the processor take where others compute on it too; and a communicator without calls takes no processor.
func TestUC38_FourRanksOnOneProcessor(t *testing.T) {
	res := cluster.Run(t, cluster.Launch{Job: "crowded", Ranks: 4, Env: []string{"GCCL_TRANSPORT=shm"}})
	for rank := range 4 {
		fact := func(name string) time.Duration {
			n, ok := res.Fact("calls", rank, name)
			require.True(t, ok)
			return time.Duration(n)
		}
		t.Logf("rank %d: a call takes %v, a yield %v, a second without calls %v of the processor", rank, fact("call"), fact("yield"), fact("idle"))
		require.Less(t, fact("call"), 2*time.Millisecond+20*fact("yield"))
		require.Less(t, fact("idle"), 50*time.Millisecond)
	}
}

// TestUC38_BesideOthersThatCompute: the same beside two processes that compute on the same processor. Ranks do not wait for these at each step: a call takes
// less than half of a yield, which is how long those two compute before the next rank has its turn.
func TestUC38_BesideOthersThatCompute(t *testing.T) {
	compute(t, "0", 2)
	res := cluster.Run(t, cluster.Launch{Job: "crowded", Ranks: 4, Env: []string{"GCCL_TRANSPORT=shm"}})
	for rank := range 4 {
		call, ok := res.Fact("calls", rank, "call")
		require.True(t, ok)
		yield, _ := res.Fact("calls", rank, "yield")
		sleeps, _ := res.Fact("calls", rank, "sleeps")
		t.Logf("rank %d: a call takes %v, a yield %v; in 1,000 calls it slept %d times", rank, time.Duration(call), time.Duration(yield), sleeps)
		require.Less(t, time.Duration(call), max(time.Duration(yield)/2, 2*time.Millisecond))
		require.Greater(t, sleeps, int64(500), "it yields instead, and waits for those that compute")
	}
}
