//go:build linux

package e2e

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// held is what a process holds beside memory.
type held struct{ goroutines, descriptors, mappings int }

func holding(t *testing.T) held {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return held{runtime.NumGoroutine(), len(entries), strings.Count(string(maps), "gccl-")}
}

// settles waits until no more is held than before. The Go runtime keeps a descriptor of epoll once it has opened one, and goroutines
// need a moment to end.
func settles(t *testing.T, before held, what string) {
	t.Helper()
	var now held
	for start := time.Now(); time.Since(start) < soon; time.Sleep(10 * time.Millisecond) {
		if now = holding(t); now.goroutines <= before.goroutines && now.descriptors <= before.descriptors && now.mappings <= before.mappings {
			return
		}
	}
	var stacks strings.Builder
	pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	t.Fatalf("%s: %+v before, %+v after\n%s", what, before, now, stacks.String())
}

// TestNothingIsLeft: after Close nothing of a communicator is left, whatever happened before.
func TestNothingIsLeft(t *testing.T) {
	const n = 3
	stories := []struct {
		name string
		tell func(t *testing.T, comms []*comm.Comm)
	}{
		{"unused", func(*testing.T, []*comm.Comm) {}},
		{"used", func(t *testing.T, comms []*comm.Comm) {
			perRank(t, comms, func(c *comm.Comm) error { return right(c, mixedMemory) })
		}},
		{"split", func(t *testing.T, comms []*comm.Comm) {
			perRank(t, comms, func(c *comm.Comm) error {
				part, err := c.Split(background, c.Rank()%2, 0)
				if err != nil {
					return err
				}
				return errors.Join(right(part, sliceMemory), part.Close(), part.Close(), right(c, sliceMemory))
			})
		}},
		{"aborted", func(t *testing.T, comms []*comm.Comm) {
			perRank(t, comms, func(c *comm.Comm) error {
				if c.Rank() == 1 {
					time.Sleep(20 * time.Millisecond)
					c.Abort(errors.New("enough"))
					return nil
				}
				return blames(c.Barrier(background), nil)
			})
		}},
		{"context ended in a call", func(t *testing.T, comms []*comm.Comm) {
			perRank(t, comms, func(c *comm.Comm) error {
				if c.Rank() == 1 {
					return nil
				}
				ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
				defer cancel()
				return blames(c.Barrier(ctx), nil)
			})
		}},
		{"started and left", func(t *testing.T, comms []*comm.Comm) {
			each(n, func(r int) {
				if r != 1 {
					comms[r].Start(comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(make([]int32, 9)), Dst: kernels.MemOf(make([]int32, 9)), Count: 9, DType: kernels.Int32})
				}
			})
			time.Sleep(20 * time.Millisecond)
		}},
	}
	reach := reaches(t)
	close := func(t *testing.T, comms []*comm.Comm) {
		each(n, func(r int) {
			if err := timely(func() error { comms[r].Close(); return comms[r].Close() }); err != nil && r == 1 {
				t.Logf("close: %v", err)
			}
		})
	}
	// What the process opens once and keeps.
	for _, edit := range reach {
		close(t, open(t, n, edit))
	}
	runtime.GC()
	before := holding(t)
	for name, edit := range reach {
		for _, story := range stories {
			t.Run(name+"/"+story.name, func(t *testing.T) {
				for range 2 {
					comms := open(t, n, edit)
					story.tell(t, comms)
					close(t, comms)
				}
				before := before
				before.goroutines += 1 // of the subtest
				settles(t, before, "after Close")
			})
		}
	}
}

// TestFailedNewLeavesNothing: neither does a communicator that never came to be.
func TestFailedNewLeavesNothing(t *testing.T) {
	before := holding(t)
	for range 3 {
		for _, transport := range []string{"shm", "tcp"} {
			root := rootFor(t, time.Minute)
			ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
			_, err := comm.New(ctx, comm.Config{Rank: 1, Size: 3, ID: root.ID(), Transport: transport, Logger: quiet})
			require.Error(t, err)
			cancel()
			require.NoError(t, root.Close())

			// Ranks that do not agree about their configuration.
			root = rootFor(t, time.Minute)
			errs := make([]error, 3)
			each(3, func(r int) {
				_, errs[r] = comm.New(background, comm.Config{Rank: r, Size: 3, ID: root.ID(), Transport: transport, Logger: quiet, Lanes: 2 + r/2})
			})
			for r, err := range errs {
				require.Error(t, err, "rank %d", r)
			}
			require.ErrorContains(t, errors.Join(errs...), "Config.Lanes")
			require.NoError(t, root.Close())
		}
	}
	settles(t, before, "after New failed")
}
