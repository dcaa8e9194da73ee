//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// program is random calls on several communicators. What is called on each, and in which order, is the same on all ranks, as it must
// be; how the calls of different communicators are mixed, from which goroutine they come and in which order they are waited for is
// every rank's own.
type program struct {
	common *rand.Rand // equal on all ranks
	own    *rand.Rand
	comms  []*comm.Comm
	whole  []bool // whether all ranks are in it
}

// batch makes some calls, all of which may be under way at once.
func (p *program) batch(report *cluster.Case) error {
	ds := deeds(kernels.RedOps())
	queues := make([][]*attempt, len(p.comms))
	var all []*attempt
	var frees []func() error
	for range 1 + p.common.IntN(7) {
		which := p.common.IntN(len(p.comms))
		c := p.comms[which]
		size := [...]int{0, 1, 5, 700, 700, 9_000, 9_000, 120_000}[p.common.IntN(8)]
		s := ds[p.common.IntN(len(ds))].spec(kernels.DTypes()[p.common.IntN(len(kernels.DTypes()))], size, p.common.Uint64()>>8)
		s.special, s.shift = p.common.IntN(4) == 0, p.common.IntN(3)
		root := p.common.IntN(1 << 20)
		if c == nil {
			continue // of ranks that are not with us; the random numbers are the same
		}
		if s.kind == comm.KindBroadcast || s.kind == comm.KindReduce {
			s.root = root % c.Size()
		}
		s.place, s.memory = place(p.own.IntN(int(places))), memory(p.own.IntN(int(memories)))
		g, free, err := newGroundOf(c, s)
		if err != nil {
			return err
		}
		frees = append(frees, free)
		a, err := s.try(c, g)
		if err != nil {
			return err
		}
		queues[which] = append(queues[which], a)
		all = append(all, a)
	}
	var err error
	if p.own.IntN(3) == 0 {
		err = p.concurrently(queues)
	} else {
		err = p.interleaved(queues, len(all))
	}
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := a.judge(); err != nil {
			return fmt.Errorf("%v on a communicator of %d: %w", a.spec, a.comm.Size(), err)
		}
		if a.kind == comm.KindAllReduce && p.isWhole(a.comm) {
			report.Same(a.dst)
		}
	}
	for _, free := range frees {
		err = errors.Join(err, free())
	}
	return err
}

func (p *program) isWhole(c *comm.Comm) bool {
	for i, d := range p.comms {
		if c == d {
			return p.whole[i]
		}
	}
	return false
}

// interleaved starts all calls from one goroutine, communicators mixed, and waits in any order.
func (p *program) interleaved(queues [][]*attempt, total int) error {
	type started struct {
		*comm.Pending
		spec spec
	}
	var pending []started
	wait := func(i int) error {
		ctx, cancel := patient()
		defer cancel()
		s := pending[i]
		pending[i] = pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if err := s.Wait(ctx); err != nil {
			return fmt.Errorf("%v: %w", s.spec, err)
		}
		return nil
	}
	for total > 0 {
		which := p.own.IntN(len(queues))
		if len(queues[which]) == 0 {
			continue
		}
		a := queues[which][0]
		queues[which] = queues[which][1:]
		total--
		for _, call := range a.calls() {
			pending = append(pending, started{a.comm.Start(call), a.spec})
		}
		// Waiting early is safe only where no call of the others can wait for one that we have not begun; it is not, with several
		// communicators in any order. So nothing is waited for before all are begun, but time passes.
		if p.own.IntN(6) == 0 {
			time.Sleep(time.Duration(p.own.IntN(3000)) * time.Microsecond)
		}
	}
	for len(pending) > 0 {
		if err := wait(p.own.IntN(len(pending))); err != nil {
			return err
		}
	}
	return nil
}

// concurrently makes the calls of each communicator from a goroutine of its own, one after the other.
func (p *program) concurrently(queues [][]*attempt) error {
	errs := make([]error, len(queues))
	var wg sync.WaitGroup
	for i, q := range queues {
		wg.Go(func() {
			for _, a := range q {
				ctx, cancel := patient()
				var err error
				if calls := a.calls(); len(calls) == 1 {
					err = a.comm.Do(ctx, calls[0])
				} else {
					err = comm.Group(ctx, calls...)
				}
				cancel()
				if err != nil {
					errs[i] = fmt.Errorf("%v: %w", a.spec, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

const (
	seedVar    = "GCCL_E2E_SEED"
	batchesVar = "GCCL_E2E_BATCHES"
)

// unusual are settings that change how messages are cut and numbered. Seed 0 leaves them alone.
func unusual(c comm.Config, seed uint64) comm.Config {
	if seed == 0 {
		return c
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	c.Lanes = 1 + rng.IntN(9)
	c.MaxMessage = [...]int{1000, 4097, 65_536, 1 << 20, 8 << 20}[rng.IntN(5)]
	c.Checksum = rng.IntN(2) == 0
	c.FirstSeq = -uint64(rng.IntN(200)) // numbers pass 0 soon
	return c
}

// random is the job of a rank that runs a random program, on the world, on two that are split from it, and one of another New.
func random(r *cluster.Rank) {
	seed, _ := strconv.ParseUint(os.Getenv(seedVar), 10, 64)
	batches, _ := strconv.Atoi(os.Getenv(batchesVar))
	p := &program{common: rand.New(rand.NewPCG(seed, 1)), own: rand.New(rand.NewPCG(seed, 100+uint64(r.Rank)))}
	ok := r.Case("new", func(*cluster.Case) error {
		world, err := comm.New(background, unusual(r.World(0), seed))
		if err != nil {
			return err
		}
		reversed, err := world.Split(background, 0, -r.Rank)
		if err != nil {
			return err
		}
		half, err := world.Split(background, r.Rank%2, 0)
		if err != nil {
			return err
		}
		color := comm.NoColor
		if r.Rank > 0 {
			color = 5
		}
		some, err := reversed.Split(background, color, 0)
		if err != nil {
			return err
		}
		other, err := comm.New(background, unusual(r.World(1), seed))
		p.comms, p.whole = []*comm.Comm{world, reversed, half, some, other}, []bool{true, true, false, false, true}
		return err
	})
	for i := 0; ok && i < batches; i++ {
		ok = r.Case(fmt.Sprint("batch ", i), p.batch)
	}
	r.Case("close", func(*cluster.Case) (err error) {
		for _, i := range p.own.Perm(len(p.comms)) {
			if p.comms[i] != nil {
				err = errors.Join(err, p.comms[i].Close())
			}
		}
		return err
	})
}

// TestRandomPrograms runs random programs of many calls in flight on several communicators.
func TestRandomPrograms(t *testing.T) {
	seeds, batches := uint64(3), 40
	if full() {
		seeds, batches = 20, 500
	}
	if s := os.Getenv(seedVar); s != "" {
		seeds = 1
	}
	for _, w := range ways {
		for seed := range seeds {
			if s, err := strconv.ParseUint(os.Getenv(seedVar), 10, 64); err == nil {
				seed = s
			}
			n := 3 + int(seed)%3
			t.Run(fmt.Sprintf("%s-%d/seed%d", w.name, n, seed), func(t *testing.T) {
				l := cluster.Launch{Job: "random", Ranks: n, Worlds: 2, Timeout: 10 * time.Minute,
					Env: []string{"GCCL_TRANSPORT=" + w.transport, fmt.Sprintf("%s=%d", seedVar, seed), fmt.Sprintf("%s=%d", batchesVar, batches)}}
				if w.host != nil {
					l.Only = func(rank int) []string { return []string{"GCCL_HOSTID=" + w.host(rank)} }
				}
				cluster.Run(t, l)
			})
		}
	}
}
