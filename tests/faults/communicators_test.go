//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// crossed is the job of a rank with two communicators in use at once.
func crossed(r *cluster.Rank) {
	var comms [2]*comm.Comm
	for i := range comms {
		cfg := r.World(i)
		cfg.Logger, cfg.CallTimeout = quiet, 30*time.Second
		var err error
		if comms[i], err = comm.New(background, cfg); err != nil {
			r.Fatal(err)
		}
		defer comms[i].Close()
	}
	rounds := 200
	if full {
		rounds = 1000
	}
	r.Case("goroutines", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		errs := make([]error, 2)
		var users sync.WaitGroup
		for i, c := range comms {
			users.Go(func() {
				b, err := newBuffers(c, 128<<10)
				if err == nil {
					err = good(ctx, c, b, uint64(i), rounds, 128<<10)
				}
				errs[i] = err
			})
		}
		users.Wait()
		return errors.Join(errs...)
	})
	r.Case("started in another order", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		for k := range rounds {
			rng := rand.New(rand.NewPCG(uint64(k), uint64(r.Rank)))
			var calls [2]comm.Call
			var x [2][]int64
			for i, c := range comms {
				x[i] = make([]int64, 1+k*37%5000)
				for j := range x[i] {
					x[i][j] = int64(r.Rank + i*10 + j)
				}
				calls[i] = comm.Call{Comm: c, Kind: comm.KindAllReduce, Src: kernels.MemOf(x[i]), Dst: kernels.MemOf(x[i]), Count: len(x[i]), DType: kernels.Int64}
			}
			first := rng.IntN(2)
			a, b := comms[first].Start(calls[first]), comms[1-first].Start(calls[1-first])
			if rng.IntN(2) == 0 {
				a, b = b, a
			}
			if err := errors.Join(a.Wait(ctx), b.Wait(ctx)); err != nil {
				return fmt.Errorf("round %d: %w", k, err)
			}
			for i := range x {
				for j, v := range x[i] {
					if want := int64(r.Size*(r.Size-1)/2 + r.Size*(i*10+j)); v != want {
						return fmt.Errorf("round %d: element %d on communicator %d is %d, want %d", k, j, i, v, want)
					}
				}
			}
		}
		return nil
	})
	r.Case("blocking in another order", func(*cluster.Case) error {
		// Two more, with little time: rank 0 calls on A then B, the others on B then A.
		var both [2]*comm.Comm
		for i := range both {
			cfg := r.World(2 + i)
			cfg.Logger, cfg.CallTimeout = quiet, 2*time.Second
			var err error
			if both[i], err = comm.New(background, cfg); err != nil {
				return err
			}
			defer both[i].Close()
		}
		order := both
		if r.Rank != 0 {
			order[0], order[1] = both[1], both[0]
		}
		ctx, cancel := within()
		defer cancel()
		x := make([]float32, 1000)
		err := comm.AllReduce(ctx, order[0], x, x, kernels.Sum)
		// Who is out of time first would take the other communicator away from the rest, who then blame that.
		if err := comms[0].Barrier(ctx); err != nil {
			return err
		}
		if err := blames(err, comm.ErrTimeout); err != nil {
			return err
		}
		for _, words := range []string{fmt.Sprintf("%016x", both[0].ID()), fmt.Sprintf("%016x", both[1].ID()), "equence 1"} {
			if !strings.Contains(err.Error(), words) {
				return fmt.Errorf("%q is missing in: %w", words, err)
			}
		}
		return nil
	})
}

// TestUC85_TwoCommunicatorsAtOnce: goroutines, and calls that are started, may use them in any order; who blocks in an order that cannot end is told
// which two they are.
func TestUC85_TwoCommunicatorsAtOnce(t *testing.T) {
	over(t, cluster.Launch{Job: "crossed", Ranks: 4, Worlds: 4, Timeout: 5 * time.Minute})
}

// splits is the job of a rank that splits in good and bad ways.
func splits(r *cluster.Rank) {
	c := join(r, func(cfg *comm.Config) { cfg.InitTimeout = 3 * time.Second })
	defer c.Close()
	const none = comm.NoColor
	for _, k := range []struct {
		name   string
		colors [4]int
		keys   [4]int
		want   map[int][]int // by colour, the old ranks in order
	}{
		{"two halves", [4]int{0, 0, 1, 1}, [4]int{}, map[int][]int{0: {0, 1}, 1: {2, 3}}},
		{"some without", [4]int{0, none, 0, none}, [4]int{}, map[int][]int{0: {0, 2}}},
		{"all without", [4]int{none, none, none, none}, [4]int{}, nil},
		{"keys reversed", [4]int{5, 5, 5, 5}, [4]int{3, 2, 1, 0}, map[int][]int{5: {3, 2, 1, 0}}},
		{"keys equal", [4]int{1, 1, 1, 1}, [4]int{7, 7, 7, 7}, map[int][]int{1: {0, 1, 2, 3}}},
		{"keys below zero and far apart", [4]int{1, 1, 1, 1}, [4]int{1 << 62, -1 << 62, -1 << 63, 1<<63 - 1}, map[int][]int{1: {2, 1, 0, 3}}},
		{"the largest colour", [4]int{1<<31 - 1, 1<<31 - 1, 0, 0}, [4]int{}, map[int][]int{1<<31 - 1: {0, 1}, 0: {2, 3}}},
	} {
		r.Case(k.name, func(*cluster.Case) error {
			ctx, cancel := within()
			defer cancel()
			part, err := c.Split(ctx, k.colors[r.Rank], k.keys[r.Rank])
			if err != nil {
				return err
			}
			members := k.want[k.colors[r.Rank]]
			if members == nil {
				if part != nil {
					return errors.New("a communicator for no colour")
				}
				return nil
			}
			defer part.Close()
			if part.Size() != len(members) || members[part.Rank()] != r.Rank {
				return fmt.Errorf("rank %d of %d, want the members %v", part.Rank(), part.Size(), members)
			}
			b, err := newBuffers(part, 4096)
			if err != nil {
				return err
			}
			return good(ctx, part, b, 1, 10, 4096)
		})
	}
	r.Case("a colour below none", func(*cluster.Case) error {
		color := 0
		if r.Rank == 3 {
			color = -2
		}
		part, err := c.Split(background, color, 0)
		if part != nil || !errors.Is(err, comm.ErrArgument) || !strings.Contains(err.Error(), "-2 of rank 3") {
			return fmt.Errorf("want a bad argument of rank 3: %w", err)
		}
		return c.Barrier(background) // nothing is broken
	})
	r.Case("one does not call", func(*cluster.Case) error {
		if r.Rank == 2 {
			time.Sleep(5 * time.Second)
			return nil
		}
		start := time.Now()
		_, err := c.Split(background, 0, 0)
		if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, comm.ErrTimeout) && !errors.Is(err, comm.ErrAborted) {
			return fmt.Errorf("want a timeout: %w", err)
		}
		if d := time.Since(start); d > 15*time.Second {
			return fmt.Errorf("took %v", d)
		}
		return blames(err, comm.ErrAborted, 2)
	})
}

// TestUC87_Splits: colours and keys mean what they say, a bad colour is an error on all, and who does not call is named.
func TestUC87_Splits(t *testing.T) {
	t.Parallel() // it waits more than it works
	over(t, cluster.Launch{Job: "splits", Ranks: 4})
}

// extra is the job of a rank where some have made a communicator before.
func extra(r *cluster.Rank) {
	r.Case("all four", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		if r.Rank < 2 {
			cfg := r.World(0)
			cfg.Size, cfg.Logger = 2, quiet
			c, err := comm.New(ctx, cfg)
			if err != nil {
				return err
			}
			defer c.Close()
			child, err := c.Split(ctx, 0, 0)
			if err != nil {
				return err
			}
			defer child.Close()
		}
		cfg := r.World(1)
		cfg.Logger = quiet
		c, err := comm.New(ctx, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		if r.Rank > 1 { // and splits made by some only
			part, err := c.Shrink(ctx, 0, 1)
			if err != nil {
				return err
			}
			defer part.Close()
		}
		part, err := c.Split(ctx, r.Rank%2, 0)
		if err != nil {
			return err
		}
		defer part.Close()
		b, err := newBuffers(part, 4096)
		if err != nil {
			return err
		}
		return errors.Join(good(ctx, part, b, 1, 10, 4096), c.Barrier(ctx))
	})
}

// TestUC27_ExtraCommunicators: that some ranks have made others before does not matter.
func TestUC27_ExtraCommunicators(t *testing.T) {
	over(t, cluster.Launch{Job: "extra", Ranks: 4, Worlds: 2})
}
