//go:build linux

package faults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// mismatch is a call that rank odd makes in another way than the rest.
type mismatch struct {
	usual, odd comm.Call // without memory
	what       string    // differs
	words      [2]string // what both called, as errors say it
	way        way
}

// way is how the calls are made.
type way int

const (
	alone  way = iota
	behind     // in a group, behind a right call
	beside     // in a group, with a right call on another communicator; the odd rank has them the other way round
	ways
)

func (m mismatch) String() string {
	alg := m.usual.Algorithm
	if alg == "" {
		alg = "any"
	}
	return fmt.Sprintf("%v/%s/%s/%d/%s", m.usual.Kind, alg, m.what, m.usual.Count, [...]string{"alone", "behind", "beside"}[m.way])
}

const (
	mismatchRanks = 4
	oddRank       = 2
	smallCount    = 24
	largeCount    = 300_000
)

// mismatches are all ways to differ, for every algorithm; without GCCL_TEST_FULL each in one size and way of calling, by turns.
func mismatches() (all []mismatch) {
	add := func(usual comm.Call, what string, edit func(*comm.Call), words func(comm.Call) string) {
		for i, count := range []int{smallCount, largeCount} {
			for w := range ways {
				if turn := len(all) + int(usual.Kind); !full && (turn%2 != i || way(turn%int(ways)) != w) && usual.Kind != comm.KindBarrier {
					continue
				}
				m := mismatch{usual: usual, what: what, way: w}
				if usual.Kind != comm.KindBarrier {
					m.usual.Count = count
				} else if i > 0 {
					continue
				}
				m.odd = m.usual
				edit(&m.odd)
				m.words = [2]string{words(m.usual), words(m.odd)}
				all = append(all, m)
			}
			if !full && len(all) > 0 && all[len(all)-1].what == what && all[len(all)-1].usual.Kind == usual.Kind && all[len(all)-1].usual.Algorithm == usual.Algorithm {
				return
			}
		}
	}
	for _, kind := range collective.Kinds() {
		for _, alg := range collective.Catalog(kind) {
			u := comm.Call{Kind: comm.Kind(kind), DType: kernels.Float32, Algorithm: alg.Name}
			barrier := u.Kind == comm.KindBarrier
			if !barrier {
				add(u, "count", func(c *comm.Call) { c.Count -= 2 }, func(c comm.Call) string { return fmt.Sprintf(" %d ", c.Count) })
				add(u, "type", func(c *comm.Call) { c.DType = kernels.Int32 }, func(c comm.Call) string { return c.DType.String() })
			}
			if kind.Reduces() && !barrier {
				add(u, "redop", func(c *comm.Call) { c.RedOp = kernels.Max }, func(c comm.Call) string { return c.RedOp.String() })
			}
			if kind.Rooted() {
				add(u, "root", func(c *comm.Call) { c.Root = 1 }, func(c comm.Call) string { return fmt.Sprintf("root %d", c.Root) })
			}
			add(u, "kind", func(c *comm.Call) {
				other := comm.KindAllGather
				if c.Kind == other {
					other = comm.KindAllReduce
				}
				*c = comm.Call{Kind: other, DType: c.DType, Count: max(c.Count, 1)}
			}, func(c comm.Call) string { return c.Kind.String() })
			for _, other := range collective.Catalog(kind) {
				if other.Name != alg.Name {
					add(u, "algorithm", func(c *comm.Call) { c.Algorithm = other.Name }, func(c comm.Call) string { return "by " + c.Algorithm })
					break
				}
			}
		}
	}
	p2p := comm.Call{Kind: comm.KindSend, DType: kernels.Float32}
	add(p2p, "count", func(c *comm.Call) { c.Count -= 2 }, func(c comm.Call) string { return fmt.Sprintf(" %d ", c.Count) })
	add(p2p, "type", func(c *comm.Call) { c.DType = kernels.Int32 }, func(c comm.Call) string { return c.DType.String() })
	return all
}

// together is how many mismatches are tried at the same time, each on communicators of its own.
const together = 6

// differ is the job of a rank where one rank makes another call than the rest.
func differ(r *cluster.Rank) {
	before := baseline()
	cfg := r.Config()
	cfg.Logger, cfg.CallTimeout = quiet, patience
	c, err := comm.New(background, cfg)
	if err != nil {
		r.Fatal(err)
	}
	for batch := range slices.Chunk(mismatches(), together) {
		errs := make([]error, len(batch))
		took := make([]time.Duration, len(batch))
		var running sync.WaitGroup
		for i, m := range batch {
			var children [2]*comm.Comm
			for k := range children {
				if children[k], err = c.Split(background, 0, 0); err != nil {
					r.Fatal(err)
				}
			}
			running.Go(func() {
				start := time.Now()
				errs[i] = m.try(children)
				took[i] = time.Since(start)
			})
		}
		running.Wait()
		for i, m := range batch {
			r.Case(m.String(), func(report *cluster.Case) error {
				report.Fact("µs", took[i].Microseconds())
				return errs[i]
			})
		}
	}
	r.Case("close", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		if err := c.Barrier(ctx); err != nil {
			return fmt.Errorf("the parent of communicators that failed: %w", err)
		}
		c.Close()
		return settles(before, 0)
	})
}

// try makes the calls on two communicators, of which the first sees the mismatch, and checks what comes of it.
func (m mismatch) try(c [2]*comm.Comm) error {
	defer c[0].Close()
	defer c[1].Close()
	ctx, cancel := within()
	defer cancel()
	mine := m.usual
	if c[0].Rank() == oddRank {
		mine = m.odd
	}
	calls := withMemory(c[0], mine)
	right := withMemory(c[m.way/beside], comm.Call{Kind: comm.KindAllReduce, Count: 100, DType: kernels.Float32})
	switch {
	case m.way == behind:
		calls = append(right, calls...)
	case m.way == beside && c[0].Rank() == oddRank:
		calls = append(right, calls...)
	case m.way == beside:
		calls = append(calls, right...)
	}
	err := comm.Group(ctx, calls...)
	needsAll := m.usual.Kind != comm.KindBroadcast && m.usual.Kind != comm.KindReduce && m.usual.Kind != comm.KindSend
	if err == nil && needsAll && c[0].Rank() != oddRank {
		return errors.New("a call that needs what all ranks give succeeded")
	}
	for range 20 { // who needed nothing of those who differ hears of it in a later call
		if err != nil {
			break
		}
		err = c[0].Barrier(ctx)
	}
	if m.way == beside {
		if err := c[1].Barrier(ctx); err != nil {
			return fmt.Errorf("the other communicator: %w", err)
		}
	}
	if m.usual.Kind == comm.KindSend {
		var e *comm.Error
		if errors.As(err, &e) && len(e.Ranks) == 1 && (e.Ranks[0] == oddRank || e.Ranks[0] == oddRank+1) {
			return errors.Join(blames(err, comm.ErrMismatch), m.tells(err))
		}
	}
	if err := blames(err, comm.ErrMismatch, oddRank); err != nil {
		return err
	}
	return m.tells(err)
}

// tells checks that an error says what both called.
func (m mismatch) tells(err error) error {
	said := strings.ReplaceAll(err.Error(), "(", " ")
	for _, w := range m.words {
		if !strings.Contains(said, w) {
			return fmt.Errorf("%q is missing in: %w", w, err)
		}
	}
	return nil
}

// withMemory gives a call memory; a send becomes one to the next rank, with a receive from the one before that is as all others'.
func withMemory(c *comm.Comm, call comm.Call) []comm.Call {
	n := c.Size()
	call.Comm = c
	if call.Kind == comm.KindBarrier {
		return []comm.Call{call}
	}
	call.Src, call.Dst = kernels.MemOf(make([]float32, n*call.Count)), kernels.MemOf(make([]float32, n*call.Count))
	if call.Kind != comm.KindSend {
		return []comm.Call{call}
	}
	recv := call
	recv.Kind, recv.Peer, recv.Src, recv.DType = comm.KindRecv, (c.Rank()+n-1)%n, kernels.Mem{}, kernels.Float32
	if call.Count < smallCount {
		recv.Count = smallCount
	} else if call.Count > smallCount && call.Count < largeCount {
		recv.Count = largeCount
	}
	recv.Dst = kernels.MemOf(make([]float32, recv.Count))
	call.Peer, call.Dst = (c.Rank()+1)%n, kernels.Mem{}
	return []comm.Call{call, recv}
}

// TestMismatches: one of four ranks makes another call than the rest: all get an error that blames it and says what both called.
func TestMismatches(t *testing.T) {
	for _, over := range transports() {
		t.Run(over, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "differ", Ranks: mismatchRanks, Timeout: 20 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + over}})
			var took []time.Duration
			for _, name := range res.Cases() {
				for rank := range mismatchRanks {
					if µs, ok := res.Fact(name, rank, "µs"); ok {
						took = append(took, time.Duration(µs)*time.Microsecond)
					}
				}
			}
			if slices.Sort(took); len(took) > 0 {
				t.Logf("%d mismatches; error on every rank after p50 %v, max %v", len(took)/mismatchRanks, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
			}
		})
	}
}

// shape is the job of a rank where rank 3 passes a tensor of another shape.
func shape(r *cluster.Rank) {
	cfg := r.Config()
	cfg.Logger = quiet
	parent, err := comm.New(background, cfg)
	if err != nil {
		r.Fatal(err)
	}
	defer parent.Close()
	for _, a := range collective.Catalog(collective.AllReduce) {
		c, err := parent.Split(background, 0, 0)
		if err != nil {
			r.Fatal(err)
		}
		r.Case(a.Name, func(*cluster.Case) error {
			n := 1024
			if r.Rank == 3 {
				n = 1022
			}
			x := make([]float32, n)
			for i := range x {
				x[i] = 2
			}
			m := kernels.MemOf(x)
			ctx, cancel := within()
			defer cancel()
			start := time.Now()
			err := c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: n, DType: kernels.Float32, Algorithm: a.Name})
			if d := time.Since(start); d > 5*time.Second {
				return fmt.Errorf("took %v: %w", d, err)
			}
			if err := blames(err, comm.ErrMismatch, 3); err != nil {
				return err
			}
			for _, word := range []string{"all_reduce", "rank 3 ", " 1024 ", " 1022 ", "sequence 1"} {
				if !strings.Contains(err.Error(), word) {
					return fmt.Errorf("%q is missing in: %w", word, err)
				}
			}
			return nil
		})
		c.Close()
	}
}

// TestUC01_AnotherShape: as users meet it: one rank passes a tensor that is two elements shorter.
func TestUC01_AnotherShape(t *testing.T) {
	for _, over := range transports() {
		t.Run(over, func(t *testing.T) {
			cluster.Run(t, cluster.Launch{Job: "shape", Ranks: 4, Env: []string{"GCCL_TRANSPORT=" + over}})
		})
	}
}
