//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

const reinits = 50

// again is the job of a rank that joins after joining was given up, again and again.
func again(r *cluster.Rank) {
	before := baseline()
	var early held
	var start int64
	rng := rand.New(rand.NewPCG(9, 0)) // the same on all ranks
	for i := range reinits {
		how, patience := rng.IntN(3), time.Duration(5+rng.IntN(120))*time.Millisecond
		r.Case(fmt.Sprintf("again %d", i), func(report *cluster.Case) error {
			cfg := r.World(2 * i)
			cfg.Logger = quiet
			ctx, cancel := context.WithTimeout(background, patience)
			defer cancel()
			absent := i % r.Size
			switch {
			case r.Rank == absent && how == 0: // never comes
				<-ctx.Done()
			case r.Rank == absent && how == 1: // loses patience first
				short, cancel := context.WithTimeout(ctx, patience/4)
				defer cancel()
				if c, err := comm.New(short, cfg); err == nil {
					c.Close()
				}
				<-ctx.Done()
			default:
				if r.Rank == absent { // comes when it is late
					time.Sleep(patience * 3 / 4)
				}
				c, err := comm.New(ctx, cfg)
				if err == nil {
					if how == 0 {
						return fmt.Errorf("joined without rank %d", absent)
					}
					c.Abort(errors.New("enough"))
					c.Close()
				} else {
					report.Fact("refused", 1)
				}
			}
			cfg = r.World(2*i + 1)
			cfg.Logger = quiet
			long, cancel := within()
			defer cancel()
			c, err := comm.New(long, cfg)
			if err != nil {
				return fmt.Errorf("the second time: %w", err)
			}
			defer c.Close()
			b, err := newBuffers(c, 64<<10)
			if err != nil {
				return err
			}
			return good(long, c, b, uint64(i), 5, 64<<10)
		})
		if i == 5 {
			time.Sleep(100 * time.Millisecond)
			early = holding()
			_, start = weight()
		}
	}
	r.Case("flat", func(*cluster.Case) error {
		if _, now := weight(); now > start+64<<20 {
			return fmt.Errorf("%d MiB resident after %d inits, %d after 5", now>>20, 2*reinits, start>>20)
		}
		if err := settles(before, 2); err != nil {
			return err
		}
		return settles(early, 2)
	})
}

// TestUC09_AgainAfterAbortedInit: 50 of 50 inits after one that was given up, at random moments, in the same processes.
func TestUC09_AgainAfterAbortedInit(t *testing.T) {
	for _, over := range transports() {
		t.Run(over, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "again", Ranks: 4, Worlds: 2 * reinits, Timeout: 5 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + over}})
			refused := 0
			for i := range reinits {
				n, _ := res.Fact(fmt.Sprintf("again %d", i), (i+1)%4, "refused")
				refused += int(n)
			}
			t.Logf("%d of %d first inits failed, all second ones passed", refused, reinits)
			require.Greater(t, refused, reinits/4)
		})
	}
}

// tasks and resident memory of this process.
func weight() (threads int, resident int64) {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			switch f[0] {
			case "Threads:":
				threads = int(n)
			case "VmRSS:":
				resident = n << 10
			}
		}
	}
	return threads, resident
}

// cycles is how often communicators are made and closed.
func cycles() int {
	if full {
		return 500
	}
	return 100
}

// coming is the job of a rank that makes and closes communicators.
func coming(r *cluster.Rank) {
	before := baseline()
	n, world := cycles(), 0
	next := func() comm.Config {
		cfg := r.World(world)
		cfg.Logger = quiet
		world++
		return cfg
	}
	once := func() error {
		ctx, cancel := within()
		defer cancel()
		c, err := comm.New(ctx, next())
		if err != nil {
			return err
		}
		x := make([]float32, 1000)
		err = comm.AllReduce(ctx, c, x, x, kernels.Sum)
		return errors.Join(err, c.Close())
	}
	var rss, start int64
	var threads, early int
	r.Case("cycles", func(report *cluster.Case) error {
		for i := range n {
			if err := once(); err != nil {
				return fmt.Errorf("cycle %d: %w", i, err)
			}
			if i == n/4 {
				early, start = weight()
			}
		}
		threads, rss = weight()
		report.Fact("KiB per 100", (rss-start)/1024*100/int64(n-n/4))
		report.Fact("threads", int64(threads-early))
		if threads > early+8 {
			return fmt.Errorf("%d threads after %d cycles, %d after %d", threads, n, early, n/4)
		}
		return settles(before, 0)
	})
	r.Case("close again", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		for _, abort := range []bool{false, true} {
			c, err := comm.New(ctx, next())
			if err != nil {
				return err
			}
			if err := c.Barrier(ctx); err != nil && !(abort && errors.Is(err, comm.ErrAborted)) { // the other may be ahead
				return err
			}
			if abort {
				c.Abort(errors.New("enough"))
				c.Abort(nil)
			}
			err = errors.Join(c.Close(), c.Close())
			if err != nil && !abort {
				return err
			}
			c.Abort(errors.New("too late"))
			want := comm.ErrClosed
			if abort {
				want = comm.ErrAborted
			}
			if err := c.Barrier(ctx); !errors.Is(err, want) {
				return fmt.Errorf("a call after Close: %w", err)
			}
			if _, err := c.Split(ctx, 0, 0); err == nil {
				return errors.New("Split after Close succeeded")
			}
			if _, err := c.Shrink(ctx); err == nil {
				return errors.New("Shrink after Close succeeded")
			}
			if _, err := c.Grow(ctx); err == nil {
				return errors.New("Grow after Close succeeded")
			}
			c.Record()
			c.Stats()
			c.Paths()
		}
		return settles(before, 0)
	})
}

// TestUC12_CloseAgainAndAgain: 500 communicators (100 by default) made and closed leave nothing, and closing twice, after an abort, and using what is
// closed are harmless.
func TestUC12_CloseAgainAndAgain(t *testing.T) {
	for _, over := range transports() {
		t.Run(over, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "coming", Ranks: 2, Worlds: cycles() + 2, Timeout: 5 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + over}})
			for rank := range 2 {
				kib, ok := res.Fact("cycles", rank, "KiB per 100")
				require.True(t, ok)
				threads, _ := res.Fact("cycles", rank, "threads")
				t.Logf("rank %d: resident memory grew by %d KiB in 100 cycles, threads by %d", rank, kib, threads)
				if full {
					require.Less(t, kib, int64(1024))
				}
			}
		})
	}
}

// leaving is the job of a rank in worlds of several sizes, which must leave nothing.
func leaving(r *cluster.Rank) {
	before := baseline()
	for i, size := range []int{1, 2, 4} {
		r.Case(fmt.Sprintf("world of %d", size), func(*cluster.Case) error {
			if r.Rank >= size {
				return nil
			}
			ctx, cancel := within()
			defer cancel()
			var early int
			for k := range 100 {
				cfg := r.World(i*100 + k)
				cfg.Size, cfg.Logger = size, quiet
				c, err := comm.New(ctx, cfg)
				if err != nil {
					return err
				}
				if err := errors.Join(c.Barrier(ctx), c.Close()); err != nil {
					return err
				}
				switch threads, _ := weight(); {
				case k == 20:
					early = threads
				case k == 99 && threads > early+8:
					return fmt.Errorf("%d threads after %d worlds, %d after 20", threads, k+1, early)
				}
			}
			return settles(before, 0)
		})
	}
}

// TestUC92_NothingStays: after Close no descriptor and goroutine is left and no thread more than before, a hundred times.
func TestUC92_NothingStays(t *testing.T) {
	for _, over := range transports() {
		t.Run(over, func(t *testing.T) {
			cluster.Run(t, cluster.Launch{Job: "leaving", Ranks: 4, Worlds: 300, Timeout: 5 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + over}})
		})
	}
}
