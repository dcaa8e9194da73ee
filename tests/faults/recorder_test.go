//go:build linux

package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/cmd/gccl/recorder"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// recorded is the job of a rank that writes records; rank 2 does not make the third call.
func recorded(r *cluster.Rank) {
	c := join(r, nil) // GCCL_RECORDER and GCCL_CALL_TIMEOUT are in the environment
	p, err := openPage(os.Getenv(pageVar))
	if err != nil {
		r.Fatal(err)
	}
	r.Case("running", func(*cluster.Case) error {
		// While the test signals: calls go on.
		ctx, cancel := within()
		defer cancel()
		x := make([]float32, 100_000)
		for i := 0; ; i++ {
			if i == 5 {
				p.put(of(r.Rank, wordStage), looping)
			}
			x[0] = float32(p.get(wordWoken)) // of any rank: then all stop
			if err := comm.AllReduce(ctx, c, x[:1], x[:1], kernels.Sum); err != nil {
				return err
			}
			if x[0] != 0 {
				return nil
			}
			if err := comm.AllReduce(ctx, c, x, x, kernels.Sum); err != nil {
				return err
			}
		}
	})
	r.Case("one is late", func(*cluster.Case) error {
		defer c.Close()
		ctx, cancel := within()
		defer cancel()
		p.put(of(r.Rank, wordStage), finished)
		for !p.awaitStage(ended, patience, 0) {
		}
		if r.Rank == 2 {
			time.Sleep(4 * time.Second)
		}
		x := make([]float32, 100_000)
		return blames(comm.AllReduce(ctx, c, x, x, kernels.Sum), comm.ErrTimeout, 2)
	})
}

// records reads a record of each rank, when they are there.
func records(t *testing.T, dir string, ranks int) (all []comm.Record) {
	t.Helper()
	var files []string
	require.Eventually(t, func() bool {
		files, _ = filepath.Glob(filepath.Join(dir, "gccl-*.json"))
		return len(files) == ranks
	}, 20*time.Second, 5*time.Millisecond, "records of all ranks: %v", files)
	for _, f := range files {
		rec, err := recorder.Read(f)
		require.NoError(t, err)
		all = append(all, rec)
		require.NoError(t, os.Remove(f))
	}
	return all
}

// TestRecorder: at a SIGUSR1 each rank of a running job writes a record, and when a call fails because one rank did not make it the
// records together name that rank.
func TestRecorder(t *testing.T) {
	t.Parallel() // it waits more than it works
	for _, name := range transports() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, path := newPage(t)
			var running []comm.Record
			cluster.Run(t, cluster.Launch{Job: "recorded", Ranks: 4,
				Env: []string{"GCCL_TRANSPORT=" + name, "GCCL_RECORDER=" + dir, "GCCL_CALL_TIMEOUT=3s", pageVar + "=" + path},
				Started: func(ps []*os.Process) {
					p.awaitStage(looping, patience, 0, 1, 2, 3)
					for _, rank := range ps {
						rank.Signal(syscall.SIGUSR1)
					}
					running = records(t, dir, 4)
					p.put(wordWoken, 1)
					p.awaitStage(finished, patience, 0, 1, 2, 3)
					p.put(of(0, wordStage), ended)
				}})
			seen := map[int]bool{}
			for _, rec := range running {
				seen[rec.Rank] = true
				require.Empty(t, rec.Failure)
				require.NotEmpty(t, rec.Calls)
			}
			require.Len(t, seen, 4)

			worlds := recorder.Join(records(t, dir, 4))
			require.Len(t, worlds, 1)
			var out bytes.Buffer
			worlds[0].Print(&out)
			t.Log("\n" + out.String())
			require.Equal(t, []int{2}, worlds[0].Blame)
			require.Contains(t, out.String(), "others wait for ranks [2], which wait for nobody: begin there")
			for rank, rec := range worlds[0].Ranks {
				require.Equal(t, []int{2}, rec.Culprit, "rank %d", rank)
				require.NotEmpty(t, rec.Failure)
				if rank != 2 {
					require.NotEmpty(t, rec.Lanes, "rank %d", rank)
					require.Contains(t, out.String(), fmt.Sprintf("rank %d (%s): in all_reduce of 100000 float", rank, rec.Place))
				}
			}
		})
	}
}
