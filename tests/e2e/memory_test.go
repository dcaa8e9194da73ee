//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
)

const (
	memoryRanks = 8
	memoryComms = 8
)

// uses are what is done with each communicator before it is weighed.
var uses = map[string]func(*comm.Comm) error{
	"light": func(c *comm.Comm) error { return c.Barrier(background) },
	"chosen": func(c *comm.Comm) error {
		for _, n := range []int{2, 16_000, 250_000} {
			if err := allReduce(c, "", n); err != nil {
				return err
			}
		}
		return nil
	},
	"heavy": func(c *comm.Comm) error { // long messages between all pairs
		for _, algorithm := range []string{"oneshot", "ring", "tree"} {
			if err := allReduce(c, algorithm, 100_000); err != nil {
				return err
			}
		}
		return nil
	},
}

const useVar = "GCCL_E2E_USE"

// weigh is the job of a rank that makes communicators one after the other, uses each, keeps them, and says what it and the host
// hold after each.
func weigh(r *cluster.Rank) {
	var comms []*comm.Comm
	for i := range memoryComms {
		r.Case(fmt.Sprint("communicator ", i), func(report *cluster.Case) error {
			c, err := comm.New(background, r.World(i))
			if err != nil {
				return err
			}
			comms = append(comms, c)
			if err := uses[os.Getenv(useVar)](c); err != nil {
				return err
			}
			if err := c.Barrier(background); err != nil {
				return err
			}
			return errors.Join(weighNow(report, comms), c.Barrier(background)) // nobody goes on before all have looked
		})
	}
	r.Case("close", func(*cluster.Case) (err error) {
		for _, c := range comms {
			err = errors.Join(err, c.Close())
		}
		return err
	})
}

func weighNow(report *cluster.Case, comms []*comm.Comm) error {
	debug.FreeOSMemory()
	sizes, err := status()
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(os.Getenv("GCCL_SHM_DIR"), &fs); err != nil {
		return err
	}
	var stats int64
	for _, c := range comms {
		stats += c.Stats().Memory()
	}
	report.Fact("anonymous", sizes["RssAnon"])
	report.Fact("files", int64(fs.Blocks-fs.Bfree)*fs.Bsize)
	report.Fact("stats", stats)
	return nil
}

// status reads the sizes of this process, in bytes.
func status() (map[string]int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, line := range strings.Split(string(b), "\n") {
		name, value, _ := strings.Cut(line, ":")
		if number, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			if sizes[name], err = strconv.ParseInt(number, 10, 64); err != nil {
				return nil, err
			}
			sizes[name] *= 1024
		}
	}
	return sizes, nil
}

// TestMemoryOfCommunicators: 8 ranks on one host, 8 communicators. What one more costs the whole host, in pages of the processes' own and
// in shared memory (which is counted once, where it is: in its file system), is less than 16 MiB in ordinary use, and Comm.Stats is
// within 20 % of the growth: of shared memory where that is used, else of the processes.
func TestMemoryOfCommunicators(t *testing.T) {
	if raced() {
		t.Skip("the race detector keeps several times the memory of what it looks at")
	}
	if !cluster.Isolated(t) {
		return
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4g"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	for _, transport := range []string{"shm", "tcp"} {
		for _, use := range []string{"light", "chosen", "heavy"} {
			t.Run(transport+"/"+use, func(t *testing.T) {
				res := cluster.Run(t, cluster.Launch{Job: "weigh", Ranks: memoryRanks, Worlds: memoryComms, ShmDir: dir,
					Env: []string{"GCCL_TRANSPORT=" + transport, useVar + "=" + use}})
				first, last := weightAt(t, res, 0), weightAt(t, res, memoryComms-1)
				grown := func(a, b int64) int64 { return (b - a) / (memoryComms - 1) }
				own, files, stats := grown(first.own, last.own), grown(first.files, last.files), grown(first.stats, last.stats)
				t.Logf("one more communicator: %d KiB of the processes' own, %d KiB of shared memory, Stats %d KiB", own>>10, files>>10, stats>>10)
				if use != "heavy" {
					require.Less(t, own+files, int64(16<<20))
				}
				if transport == "shm" {
					require.InEpsilon(t, files, stats, 0.2, "Stats against growth of shared memory")
				} else if use == "heavy" {
					require.InEpsilon(t, own, stats, 0.2, "Stats against growth of the processes")
				}
			})
		}
	}
}

// weight is what all ranks together hold.
type weight struct{ own, files, stats int64 }

func weightAt(t *testing.T, res *cluster.Result, communicator int) (w weight) {
	name := fmt.Sprint("communicator ", communicator)
	for rank := range memoryRanks {
		own, ok := res.Fact(name, rank, "anonymous")
		require.True(t, ok, "%s: rank %d", name, rank)
		files, _ := res.Fact(name, rank, "files")
		stats, _ := res.Fact(name, rank, "stats")
		w.own, w.files, w.stats = w.own+own, max(w.files, files), w.stats+stats
	}
	return w
}
