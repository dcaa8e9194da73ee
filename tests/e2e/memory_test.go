//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	shared, err := segments()
	if err != nil {
		return err
	}
	var stats int64
	for _, c := range comms {
		stats += c.Stats().Memory()
	}
	report.Fact("anonymous", sizes["RssAnon"])
	report.Fact("shared", shared)
	report.Fact("stats", stats)
	return nil
}

// segments returns how much memory this process shares, in bytes: what its own segments hold.
func segments() (bytes int64, err error) {
	const open = "/proc/self/fd"
	list, err := os.ReadDir(open)
	for _, f := range list {
		path := filepath.Join(open, f.Name())
		var st unix.Stat_t
		if to, _ := os.Readlink(path); strings.HasPrefix(to, "/memfd:gccl") && unix.Stat(path, &st) == nil {
			bytes += st.Blocks * 512
		}
	}
	return bytes, err
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
// in shared memory (which is counted once, by the rank whose it is), is less than 16 MiB in ordinary use, and Comm.Stats is
// within 20 % of the growth: of shared memory where that is used, else of the processes.
func TestMemoryOfCommunicators(t *testing.T) {
	if raced() {
		t.Skip("the race detector keeps several times the memory of what it looks at")
	}
	for _, transport := range []string{"shm", "tcp"} {
		for _, use := range []string{"light", "chosen", "heavy"} {
			t.Run(transport+"/"+use, func(t *testing.T) {
				res := cluster.Run(t, cluster.Launch{Job: "weigh", Ranks: memoryRanks, Worlds: memoryComms,
					Env: []string{"GCCL_TRANSPORT=" + transport, useVar + "=" + use}})
				first, last := weightAt(t, res, 0), weightAt(t, res, memoryComms-1)
				grown := func(a, b int64) int64 { return (b - a) / (memoryComms - 1) }
				own, shared, stats := grown(first.own, last.own), grown(first.shared, last.shared), grown(first.stats, last.stats)
				t.Logf("one more communicator: %d KiB of the processes' own, %d KiB of shared memory, Stats %d KiB", own>>10, shared>>10, stats>>10)
				if use != "heavy" {
					require.Less(t, own+shared, int64(16<<20))
				}
				if transport == "shm" {
					require.InEpsilon(t, shared, stats, 0.2, "Stats against growth of shared memory")
				} else if use == "heavy" {
					require.InEpsilon(t, own, stats, 0.2, "Stats against growth of the processes")
				}
			})
		}
	}
}

// weight is what all ranks together hold.
type weight struct{ own, shared, stats int64 }

func weightAt(t *testing.T, res *cluster.Result, communicator int) (w weight) {
	name := fmt.Sprint("communicator ", communicator)
	for rank := range memoryRanks {
		own, ok := res.Fact(name, rank, "anonymous")
		require.True(t, ok, "%s: rank %d", name, rank)
		shared, _ := res.Fact(name, rank, "shared")
		stats, _ := res.Fact(name, rank, "stats")
		w.own, w.shared, w.stats = w.own+own, w.shared+shared, w.stats+stats
	}
	return w
}
