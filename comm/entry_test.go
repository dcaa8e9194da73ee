package comm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// entry is a history of ranks that enter an operation at any time around the failure of their communicator, in virtual time.
type entry struct {
	*hosts
	t    *testing.T
	seed uint64
	n    int
	odd  int // the rank at which it begins
	kill bool
	when time.Duration
	naps []time.Duration // of each rank before it enters
	busy []bool          // it enters an AllReduce first
}

// enter plays one history: the odd rank kills itself or aborts, all others do op.
func enter(t *testing.T, seed uint64, op func(e *entry, r int)) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		e := &entry{t: t, seed: seed, n: 2 + rng.IntN(4)}
		var mu sync.Mutex
		late, lates := time.Duration(1+rng.IntN(60))*time.Millisecond, rand.New(rand.NewPCG(seed, 1))
		e.hosts = newLateHosts(t, e.n, func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(lates.Int64N(int64(late)))
		})
		e.odd, e.kill, e.when = rng.IntN(e.n), rng.IntN(3) == 0, time.Duration(rng.IntN(300))*time.Millisecond
		for range e.n {
			e.naps = append(e.naps, time.Duration(rng.IntN(300))*time.Millisecond)
			e.busy = append(e.busy, rng.IntN(4) == 0)
		}
		each(e.n, func(r int) {
			if r == e.odd && e.kill {
				time.Sleep(e.when)
				e.hosts.kill(r)
				return
			}
			if r == e.odd {
				defer time.AfterFunc(e.when, func() { e.comms[r].Abort(errors.New("enough")) }).Stop()
			}
			time.Sleep(e.naps[r])
			if e.busy[r] {
				x := []int64{1}
				_ = comm.AllReduce(background, e.comms[r], x, x, kernels.Sum)
			}
			op(e, r)
		})
	})
}

// left is how many ranks are alive at the end, at the most and at the least: one may die when all is done.
func (e *entry) left() (least, most int) {
	if e.kill {
		return e.n - 1, e.n
	}
	return e.n, e.n
}

func (e *entry) failf(format string, args ...any) {
	e.t.Errorf("seed %d, %d ranks, odd %d, kills %v after %v, naps %v, busy %v: "+format, append([]any{e.seed, e.n, e.odd, e.kill, e.when, e.naps, e.busy}, args...)...)
}

// shrinks has a rank shrink until ten calls went well: once, but for a death after the first.
func (e *entry) shrinks(r int, within time.Duration) {
	began := time.Now()
	small, err := e.comms[r].Shrink(background)
	least, most := e.left()
	if took := time.Since(began); err != nil || took > within {
		e.failf("rank %d: Shrink after %v: %v", r, took, err)
		return
	}
	defer small.Close()
	if small.Size() < least || small.Size() > most {
		e.failf("rank %d: %d ranks after Shrink, want %d to %d", r, small.Size(), least, most)
	}
	for range 10 {
		one := []int64{1}
		if err := comm.AllReduce(background, small, one, one, kernels.Sum); err != nil || one[0] != int64(small.Size()) {
			if small.Size() > least && errors.Is(err, comm.ErrAborted) {
				return // the rank died when it was in already
			}
			e.failf("rank %d: %d, %v after Shrink to %d", r, one[0], err, small.Size())
			return
		}
	}
}

const histories = 600

// Shrink gives all ranks that are left the same, whether each has heard of the failure when it enters, hears of it there, or after.
func TestShrinkAroundAFailure(t *testing.T) {
	for seed := range uint64(histories) {
		enter(t, seed, func(e *entry, r int) { e.shrinks(r, 12*time.Second) })
	}
}

// A Split or an excluding Shrink around a failure ends soon on every rank; where it ended well on some, what they have fails, too. Then Shrink
// works, whoever had got what.
func TestSplitAroundAFailure(t *testing.T) {
	for seed := range uint64(histories) {
		var mu sync.Mutex
		made := 0
		enter(t, seed, func(e *entry, r int) {
			began := time.Now()
			var child *comm.Comm
			var err error
			if seed%2 == 0 {
				child, err = e.comms[r].Split(background, 0, 0)
			} else if e.n > 2 && r != (e.odd+1)%e.n {
				child, err = e.comms[r].Shrink(background, (e.odd+1)%e.n)
			}
			if took := time.Since(began); took > 12*time.Second {
				e.failf("rank %d: Split after %v: %v", r, took, err)
			}
			if err != nil && !errors.Is(err, comm.ErrAborted) {
				e.failf("rank %d: %v, want ErrAborted", r, err)
			}
			if child != nil {
				mu.Lock()
				made++
				mu.Unlock()
				one := []int64{1}
				began := time.Now()
				err := comm.AllReduce(background, child, one, one, kernels.Sum)
				if took := time.Since(began); took > 12*time.Second {
					e.failf("rank %d: a call on the child after %v: %v", r, took, err)
				}
				child.Close()
			}
			e.shrinks(r, 24*time.Second) // others may be in all that for so long
		})
	}
}

// A rank that closes while others shrink is left out, or goes with them and is closed there: nobody waits for it.
func TestShrinkAroundAClose(t *testing.T) {
	for seed := range uint64(histories) {
		enter(t, seed, func(e *entry, r int) {
			if r != (e.odd+1)%e.n {
				began := time.Now()
				small, err := e.comms[r].Shrink(background)
				if took := time.Since(began); err != nil || took > 12*time.Second {
					e.failf("rank %d: Shrink after %v: %v", r, took, err)
				}
				if err == nil {
					small.Close()
				}
				return
			}
			ctx, cancel := context.WithCancel(background)
			var shrinking sync.WaitGroup
			shrinking.Go(func() {
				began := time.Now()
				small, err := e.comms[r].Shrink(ctx)
				if took := time.Since(began); took > 12*time.Second {
					e.failf("rank %d, which closes: Shrink after %v: %v", r, took, err)
				}
				if err == nil {
					small.Close()
				}
			})
			time.Sleep(e.naps[(r+1)%e.n])
			e.comms[r].Close()
			shrinking.Wait()
			cancel()
		})
	}
}

// Abort and Close may come from any goroutine, any number of times, in the middle of anything: calls, a Split or a Shrink under way and calls
// that are only started. All of it returns on all ranks, soon; nothing is left running, which the bubble would see.
func TestAbortAndCloseAnywhere(t *testing.T) {
	for seed := range uint64(histories) {
		enter(t, seed, func(e *entry, r int) {
			same, own := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3+uint64(r)))
			var others sync.WaitGroup
			for range own.IntN(4) {
				at, closes := time.Duration(own.IntN(800))*time.Millisecond, own.IntN(2) == 0
				others.Go(func() {
					time.Sleep(at)
					began := time.Now()
					if closes {
						e.comms[r].Close()
					} else {
						e.comms[r].Abort(errors.New("no more"))
					}
					if took := time.Since(began); took > 12*time.Second {
						e.failf("rank %d: an Abort or Close (%v) after %v took %v", r, closes, at, took)
					}
				})
			}
			var err error
			for err == nil {
				began := time.Now()
				x := make([]int64, 1+same.IntN(2000))
				var made *comm.Comm
				do := same.IntN(5)
				switch do {
				case 0:
					made, err = e.comms[r].Split(background, same.IntN(2), 0)
				case 1:
					made, err = e.comms[r].Shrink(background)
				case 2:
					m := kernels.MemOf(x)
					p := e.comms[r].Start(comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: len(x), DType: kernels.Int64})
					time.Sleep(time.Duration(own.IntN(40)) * time.Millisecond)
					err = p.Wait(background)
				default:
					err = comm.AllReduce(background, e.comms[r], x, x, kernels.Sum)
				}
				if made != nil {
					made.Close()
				}
				if took := time.Since(began); took > 12*time.Second {
					e.failf("rank %d: operation %d took %v: %v", r, do, took, err)
				}
			}
			others.Wait()
			e.comms[r].Close()
			if err := e.comms[r].Barrier(background); !errors.Is(err, comm.ErrAborted) && !errors.Is(err, comm.ErrClosed) {
				e.failf("rank %d: a call on what is closed: %v", r, err)
			}
		})
	}
}

// A Grow that a failure comes into ends soon on all old ranks, early and late ones, and on the new one; then Shrink works.
func TestGrowAroundAFailure(t *testing.T) {
	for seed := range 8 {
		comms := world(t, 3, nil)
		id, err := comms[1].Invite(background, 1)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		naps := []time.Duration{0, 0, 0, 0, 0}
		for i := range naps {
			naps[i] = time.Duration(rng.IntN(40)) * time.Millisecond
		}
		errs, shrunk := make([]error, 4), make([]error, 4)
		began := time.Now()
		each(4, func(r int) {
			time.Sleep(naps[r])
			var grown *comm.Comm
			if r == 3 {
				grown, errs[r] = comm.New(background, comm.Config{ID: id, Rank: 3, Size: 4, InitTimeout: 5 * time.Second}) // nobody may be there any more who could tell it
			} else {
				if r == 2 {
					defer time.AfterFunc(naps[4], func() { comms[r].Abort(errors.New("enough")) }).Stop()
				}
				grown, errs[r] = comms[r].Grow(background)
				var e *comm.Error
				if errs[r] != nil && (!errors.As(errs[r], &e) || !errors.Is(errs[r], comm.ErrAborted)) {
					t.Errorf("seed %d: rank %d: %v, want ErrAborted", seed, r, errs[r])
				}
			}
			if errs[r] == nil {
				grown.Close()
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("seed %d: rank %d: Grow after %v: %v", seed, r, took, errs[r])
			}
			if r < 3 {
				small, err := comms[r].Shrink(background)
				if shrunk[r] = err; err == nil {
					if small.Size() != 3 {
						t.Errorf("seed %d: rank %d: %d ranks after Shrink", seed, r, small.Size())
					}
					shrunk[r] = errors.Join(small.Barrier(background), small.Close())
				}
			}
		})
		require.NoError(t, errors.Join(shrunk...), "seed %d", seed)
		if slices.Contains(errs, nil) {
			t.Logf("seed %d: %v", seed, errs)
		}
	}
}
