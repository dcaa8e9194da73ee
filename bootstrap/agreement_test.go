package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

func TestAgreeOfAll(t *testing.T) {
	run := func(ctx context.Context, s bootstrap.Session) {
		want := make([]int, s.Size())
		for r := range want {
			want[r] = r
		}
		for k := range 5 {
			if k == 3 && s.Rank() == 1 {
				s.Abort(errors.New("agreements go on"))
			}
			alive, err := s.Agree(ctx)
			assert.NoError(t, err)
			assert.Equal(t, want, alive)
		}
		if s.Size() > 1 {
			time.Sleep(100 * time.Millisecond) // the last word may be on its way
		}
	}
	for n := 1; n <= 9; n++ {
		job(t, n, func(s bootstrap.Session) { run(bg, s) })
	}
	checkLeaks(t)
	loopback(t, 5, run)
}

// Any ranks die before or while the others agree: rank 0, leaders one after the other, several at once.
func TestSurvivorsAgree(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n := 2 + rng.IntN(10)
		order := rng.Perm(n)
		if rng.IntN(2) == 0 { // leaders die
			for r := range order {
				order[r] = r
			}
		}
		dead := order[:1+rng.IntN(n-1)]
		alive := order[len(dead):]
		when := make([]time.Duration, len(dead))
		for i := range when {
			if rng.IntN(3) > 0 {
				when[i] = time.Duration(rng.IntN(30_000)) * time.Microsecond
			}
		}
		aborted := rng.IntN(2) == 0
		late := make([]time.Duration, n)
		for r := range late {
			if rng.IntN(3) > 0 {
				late[r] = time.Duration(rng.IntN(11)) * time.Millisecond
			}
		}
		t.Run(fmt.Sprintf("seed=%d/%d without %v", seed, n, dead), func(t *testing.T) {
			inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
				s := joinAll(t, net, id, n)
				if aborted {
					s[n-1].Abort(errors.New("before all"))
				}
				start := time.Now()
				for i, r := range dead {
					time.AfterFunc(when[i], func() { net.Kill(host(r)) })
				}
				lists := make([][]int, n)
				each(n, func(r int) {
					time.Sleep(late[r])
					ctx, cancel := context.WithTimeout(bg, 20*time.Second)
					defer cancel()
					sub, list, err := s[r].Regroup(ctx)
					for _, a := range alive {
						if a == r {
							assert.NoError(t, err, "rank %d", r)
							assert.Less(t, time.Since(start), 5*time.Second)
							assert.Subset(t, list, alive)
							lists[r] = list
						}
					}
					if sub != nil {
						time.Sleep(time.Second)
						sub.Close()
					}
				})
				for _, r := range alive {
					assert.Equal(t, lists[alive[0]], lists[r])
				}
				closeAll(s)
				require.Zero(t, net.Conns())
			})
		})
		if t.Failed() {
			return
		}
	}
}

// Ranks that are silent, the leader among them, are given up, and the list is without them. When they come back, they get an error.
func TestAgreeWithoutSilentRanks(t *testing.T) {
	for _, silent := range [][]int{{0}, {1}, {0, 1}, {0, 3}, {2, 5}} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/cut=%v", silent, cut), func(t *testing.T) {
				inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
					const n = 6
					s := joinAll(t, net, id, n)
					lost := map[int]bool{}
					for _, r := range silent {
						lost[r] = true
						if cut {
							net.Cut(host(r))
						} else {
							net.Freeze(host(r))
						}
					}
					var want []int
					for r := range n {
						if !lost[r] {
							want = append(want, r)
						}
					}
					each(n, func(r int) {
						ctx, cancel := context.WithTimeout(bg, 2*time.Minute)
						defer cancel()
						if lost[r] {
							time.Sleep(30 * time.Second) // as a frozen rank would
							if cut {
								net.Heal(host(r))
							} else {
								net.Thaw(host(r))
							}
							time.Sleep(5 * time.Second)
							_, err := s[r].Agree(ctx)
							assert.ErrorIs(t, err, bootstrap.ErrAborted, "rank %d", r)
							assert.ErrorContains(t, err, "it gave this rank up")
							return
						}
						sub, list, err := s[r].Regroup(ctx)
						assert.NoError(t, err)
						assert.Equal(t, want, list)
						if sub != nil {
							time.Sleep(time.Minute)
							assert.NoError(t, sub.Barrier(ctx))
							time.Sleep(time.Second)
							sub.Close()
						}
					})
					closeAll(s)
					require.Zero(t, net.Conns())
				})
			})
		}
	}
}

// A rank that lives and does not call is named by all who wait for it; called again, the agreement goes on where it was.
func TestAgreeNamesWhoDoesNotCall(t *testing.T) {
	job(t, 5, func(s bootstrap.Session) {
		if s.Rank() == 3 {
			time.Sleep(time.Minute)
		} else {
			ctx, cancel := context.WithTimeout(bg, 30*time.Second)
			defer cancel()
			_, err := s.Agree(ctx)
			var late *bootstrap.LateError
			if assert.ErrorAs(t, err, &late) {
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				if s.Rank() == 0 { // the leader knows
					assert.Equal(t, []int{3}, late.Missing)
				}
			}
		}
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		alive, err := s.Agree(ctx)
		assert.NoError(t, err)
		assert.Equal(t, []int{0, 1, 2, 3, 4}, alive)
	})
}

// Whoever has the list may close at once; the news that it did must not overtake the list on its way to others.
func TestAgreeAndCloseAtOnce(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		n := 2 + rng.IntN(7)
		inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
			s := joinAll(t, net, id, n)
			var mu sync.Mutex
			net.Delay(func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rng.IntN(2000)) * time.Microsecond
			})
			want := make([]int, n)
			for r := range want {
				want[r] = r
			}
			each(n, func(r int) { assert.NoError(t, s[r].Send(bg, (r+n/2)%n, 1, nil)) }) // more links, which are slower
			each(n, func(r int) {
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				alive, err := s[r].Agree(ctx)
				assert.NoError(t, err, "seed %d rank %d", seed, r)
				assert.Equal(t, want, alive, "seed %d rank %d", seed, r)
				s[r].Close()
			})
			require.Zero(t, net.Conns())
		})
		if t.Failed() {
			return
		}
	}
}
