//go:build linux

package faults

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// paused is the job of a rank in a loop in which ranks are stopped for less than it takes to give them up.
func paused(r *cluster.Rank) {
	p, err := openPage(os.Getenv(pageVar))
	if err != nil {
		r.Fatal(err)
	}
	before := baseline()
	c := join(r, nil)
	r.Case("no error", func(report *cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		b, err := newBuffers(c, mostBytes)
		if err != nil {
			return err
		}
		for i := 0; ; i++ {
			if err := good(ctx, c, b, uint64(i), 10, mostBytes); err != nil {
				return err
			}
			p.put(of(r.Rank, wordStage), looping)
			x := []int64{p.get(wordWoken)} // of any rank: then all stop
			if err := comm.AllReduce(ctx, c, x, x, kernels.Sum); err != nil {
				return err
			}
			if x[0] > 0 {
				report.Fact("calls", int64(11*i))
				return nil
			}
		}
	})
	r.Case("close", func(*cluster.Case) error { return errors.Join(c.Close(), settles(before, 0)) })
}

// TestPausedRank: a rank that is stopped for two seconds and goes on has only been slow, one after the other, and all at once.
func TestPausedRank(t *testing.T) {
	t.Parallel() // it waits more than it works
	over := func(name string) {
		t.Run(name, func(t *testing.T) {
			p, path := newPage(t)
			cluster.Run(t, cluster.Launch{Job: "paused", Ranks: 3, Env: []string{"GCCL_TRANSPORT=" + name, pageVar + "=" + path},
				Started: func(ps []*os.Process) {
					p.awaitStage(looping, patience, 0, 1, 2)
					for _, who := range [][]*os.Process{ps[1:2], ps[:1], ps} {
						pause := 2 * time.Second
						if len(who) == len(ps) {
							pause = 7 * time.Second // who was stopped oneself blames nobody
						}
						for _, rank := range who {
							rank.Signal(syscall.SIGSTOP)
						}
						time.Sleep(pause)
						for _, rank := range who {
							rank.Signal(syscall.SIGCONT)
						}
						time.Sleep(200 * time.Millisecond)
					}
					p.put(wordWoken, 1)
				}})
		})
	}
	for _, name := range transports() {
		over(name)
	}
}
