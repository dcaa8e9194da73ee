package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// whole checks that a session of n ranks works in all its ways.
func whole(t testing.TB, ctx context.Context, s bootstrap.Session, n int) {
	assert.Equal(t, n, s.Size())
	gatherMany(t, ctx, s, 2)
	next, prev := (s.Rank()+1)%n, (s.Rank()+n-1)%n
	assert.NoError(t, s.Send(ctx, next, 1, []byte{byte(s.Rank())}))
	got, err := s.Recv(ctx, prev, 1)
	assert.NoError(t, err)
	assert.Equal(t, []byte{byte(prev)}, got)
	assert.NoError(t, s.Barrier(ctx))
}

func TestSubOfOddRanks(t *testing.T) {
	run := func(ctx context.Context, s bootstrap.Session) {
		if s.Rank()%2 == 1 {
			sub, err := s.Sub(ctx, []int{7, 1, 5, 3}) // in any order
			if assert.NoError(t, err) {
				assert.Equal(t, map[int]int{7: 0, 1: 1, 5: 2, 3: 3}[s.Rank()], sub.Rank())
				assert.NotEqual(t, s.ID(), sub.ID())
				whole(t, ctx, sub, 4)
				nested, err := sub.Sub(ctx, []int{sub.Rank() % 2, sub.Rank()%2 + 2}) // 7 and 5, 1 and 3
				if assert.NoError(t, err) {
					whole(t, ctx, nested, 2)
					assert.NoError(t, nested.Close())
				}
				whole(t, ctx, sub, 4)
				assert.NoError(t, sub.Close())
			}
		}
		whole(t, ctx, s, s.Size())
	}
	job(t, 9, func(s bootstrap.Session) { run(bg, s) })
	checkLeaks(t)
	loopback(t, 9, run)
}

// Ranks that made other subs before, several subs at once from several goroutines, and several of the same ranks.
func TestUC27_SubsDoNotDependOnEarlierOnes(t *testing.T) {
	job(t, 4, func(s bootstrap.Session) {
		var subs []bootstrap.Session
		add := func(ranks ...int) {
			sub, err := s.Sub(bg, ranks)
			if assert.NoError(t, err) {
				subs = append(subs, sub)
			}
		}
		if s.Rank() < 2 {
			add(0, 1)
			add(0, 1)
		}
		add(0, 1, 2, 3)
		add(s.Rank()&^1, s.Rank()|1)
		each(2, func(k int) { // two at once, which share this rank
			ranks := [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}}[k]
			sub, err := s.Sub(bg, ranks)
			if assert.NoError(t, err) {
				whole(t, bg, sub, 4)
				sub.Close()
			}
		})
		ids := map[uint64]bool{s.ID(): true}
		for _, sub := range subs {
			assert.False(t, ids[sub.ID()])
			ids[sub.ID()] = true
			whole(t, bg, sub, sub.Size())
			sub.Close()
		}
	})
}

func TestSubOutlivesItsParent(t *testing.T) {
	job(t, 3, func(s bootstrap.Session) {
		sub, err := s.Sub(bg, []int{0, 1, 2})
		if !assert.NoError(t, err) {
			return
		}
		assert.NoError(t, s.Close())
		whole(t, bg, sub, 3)
		again, err := sub.Sub(bg, []int{2, 1, 0})
		if assert.NoError(t, err) {
			whole(t, bg, again, 3)
			again.Close()
		}
		sub.Close()
	})
}

func TestAbortOfASubIsItsOwn(t *testing.T) {
	job(t, 4, func(s bootstrap.Session) {
		sub, err := s.Sub(bg, []int{0, 1, 2, 3})
		if !assert.NoError(t, err) {
			return
		}
		assert.NoError(t, s.Barrier(bg)) // else the abort may overtake the others' Sub
		if sub.Rank() == 2 {
			sub.Abort(errors.New("enough"))
		}
		_, err = sub.Recv(bg, (sub.Rank()+1)%4, 1)
		assert.ErrorIs(t, err, bootstrap.ErrAborted)
		sub.Close()
		whole(t, bg, s, 4)
	})
}

func TestBadSubs(t *testing.T) {
	job(t, 3, func(s bootstrap.Session) {
		for says, ranks := range map[string][]int{
			"is not in":                              {(s.Rank() + 1) % 3},
			"is not in []":                           {},
			"rank 1 stands twice":                    {0, 1, 1, 2},
			"rank 3; this session has ranks 0 to 2":  {0, 1, 2, 3},
			"rank -1; this session has ranks 0 to 2": {-1, 0, 1, 2},
		} {
			_, err := s.Sub(bg, ranks)
			assert.ErrorContains(t, err, says)
		}
		assert.NoError(t, s.Barrier(bg))
	})
}

// Members that disagree about the list, or one that never calls: the time-out names the key and whom it waited for.
func TestUC27_SubThatNeverMeets(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		sessions := joinAll(t, n, id, 4)
		start := time.Now()
		each(4, func(r int) {
			if r == 2 {
				time.Sleep(10 * time.Second)
				return
			}
			ctx, cancel := context.WithTimeout(bg, 3*time.Second)
			defer cancel()
			_, err := sessions[r].Sub(ctx, []int{0, 1, 2, 3})
			assert.ErrorContains(t, err, "ranks 2 have not called Sub with this list of ranks", "rank %d", r)
			assert.ErrorContains(t, err, "its key")
			var blames interface{ Culprits() []int } // who found out, and who was told
			if assert.ErrorAs(t, err, &blames, "rank %d", r) {
				assert.Equal(t, []int{2}, blames.Culprits(), "rank %d: %v", r, err)
			}
			assert.True(t, errors.Is(err, bootstrap.ErrTimeout) || errors.Is(err, bootstrap.ErrAborted) || errors.Is(err, context.DeadlineExceeded), "%v", err)
			assert.Less(t, time.Since(start), 9*time.Second)
			// The parent is as it was.
			assert.NoError(t, sessions[r].Send(bg, 2, 1, nil))
		})
		each(4, func(r int) { assert.NoError(t, sessions[r].Barrier(bg)) })
		closeAll(sessions)
		require.Zero(t, n.Conns())
	})
}

func TestManySubsAtOnce(t *testing.T) {
	checkLeaks(t)
	loopback(t, 8, func(ctx context.Context, s bootstrap.Session) {
		for range 5 {
			half, err := s.Sub(ctx, []int{s.Rank() % 4, s.Rank()%4 + 4})
			if !assert.NoError(t, err) {
				return
			}
			quarter, err := s.Sub(ctx, []int{s.Rank() &^ 3, s.Rank()&^3 + 1, s.Rank()&^3 + 2, s.Rank()&^3 + 3})
			if !assert.NoError(t, err) {
				return
			}
			whole(t, ctx, half, 2)
			whole(t, ctx, quarter, 4)
			half.Close()
			quarter.Close()
		}
		assert.NoError(t, s.Barrier(ctx))
	})
}

// Members that wait in a Sub for one that has called Agree instead, for it had the bad news before them, hear so, and all come together.
func TestSubWhileAnotherAgrees(t *testing.T) {
	for _, aborted := range []bool{true, false} {
		for n := 2; n <= 5; n++ {
			t.Run(fmt.Sprintf("%d/aborted=%v", n, aborted), func(t *testing.T) {
				inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
					s := joinAll(t, net, id, n)
					if aborted {
						s[0].Abort(errors.New("bad news"))
						for r := range s {
							<-s[r].Aborted()
						}
					}
					all := make([]int, n)
					for r := range all {
						all[r] = r
					}
					each(n, func(r int) {
						ctx, cancel := context.WithTimeout(bg, time.Minute)
						defer cancel()
						if r != n-1 {
							_, err := s[r].Sub(ctx, all)
							assert.ErrorIs(t, err, bootstrap.ErrAborted)
							if aborted {
								assert.ErrorContains(t, err, "bad news")
							} else {
								assert.ErrorContains(t, err, fmt.Sprintf("ranks %d have called Agree instead", n-1))
							}
						}
						sub, alive, err := s[r].Regroup(ctx)
						if assert.NoError(t, err) {
							assert.Equal(t, all, alive)
							assert.NoError(t, sub.Barrier(ctx))
							sub.Close()
						}
					})
					closeAll(s)
				})
			})
		}
	}
}

// A member that comes late to a Sub is waited for, and who has been in it may call Agree at once.
func TestSubThenAgree(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		net.Delay(func() time.Duration { return 300 * time.Millisecond })
		s := joinAll(t, net, id, 4)
		each(4, func(r int) {
			if r == 2 {
				time.Sleep(20 * time.Second)
			}
			sub, err := s[r].Sub(bg, []int{0, 1, 2, 3})
			if assert.NoError(t, err) {
				defer sub.Close()
			}
			alive, err := s[r].Agree(bg)
			assert.NoError(t, err)
			assert.Len(t, alive, 4)
		})
		closeAll(s)
	})
}

// A rank whose Agree ended before it came to a Sub is in the Sub, and all wait there for a member that comes late.
func TestSubAfterAnAgreeThatEnded(t *testing.T) {
	for late := range 4 {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
				s := joinAll(t, net, id, 4)
				each(4, func(r int) {
					if r != late {
						ctx, cancel := context.WithTimeout(bg, time.Second)
						defer cancel()
						_, err := s[r].Agree(ctx)
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					} else {
						time.Sleep(20 * time.Second)
					}
					sub, err := s[r].Sub(bg, []int{0, 1, 2, 3})
					if assert.NoError(t, err) {
						assert.NoError(t, sub.Barrier(bg))
						sub.Close()
					}
				})
				closeAll(s)
			})
		})
	}
}
