//go:build linux

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// hosted is the job of a rank on one of several made-up hosts: every kind by every algorithm, on all channels.
func hosted(r *cluster.Rank) {
	cfg := r.Config()
	cfg.MaxMessage = 4096
	var c *comm.Comm
	r.Case("join", func(report *cluster.Case) (err error) {
		if c, err = comm.New(background, cfg); err != nil {
			return err
		}
		report.Fact("channels", int64(len(c.Site().Orders)))
		for _, p := range c.Paths() {
			report.Fact("over "+p.Transport, 1)
		}
		return nil
	})
	if c == nil {
		return
	}
	defer c.Close()
	for i, d := range deeds([]kernels.RedOp{kernels.Sum, kernels.Avg}) {
		for _, count := range []int{1, 20_000} {
			s := d.spec(kernels.Int32, count, uint64(i))
			s.memory = mixedMemory
			r.Case(fmt.Sprintf("%v %d", s, i), func(report *cluster.Case) error {
				g, err := newGround(c, []spec{s})
				if err != nil {
					return err
				}
				return s.run(c, g, report)
			})
		}
	}
}

// TestOnMadeUpHosts: ranks as processes, in shared memory on each host and over TCP between them, come to right results whatever
// algorithm goes along whatever channels.
func TestOnMadeUpHosts(t *testing.T) {
	for _, hosts := range []string{"aabb", "abaab"} {
		t.Run(hosts, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "hosted", Ranks: len(hosts), Env: []string{"GCCL_TRANSPORT=auto"},
				Only: func(r int) []string { return []string{"GCCL_HOSTID=" + hosts[r:r+1]} }})
			for r := range len(hosts) {
				for fact, want := range map[string]int64{"channels": 2, "over shm": 1, "over tcp": 1} {
					got, _ := res.Fact("join", r, fact)
					require.Equal(t, want, got, "rank %d: %s", r, fact)
				}
			}
		})
	}
}
