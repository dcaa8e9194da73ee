package bootstrap_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// fates collects what a session says about others for a time.
func fates(s bootstrap.Session, d time.Duration) map[int]bootstrap.Fate {
	all := map[int]bootstrap.Fate{}
	end := time.After(d)
	for {
		select {
		case f, ok := <-s.Fates():
			if !ok {
				return all
			}
			all[f.Rank] = f
		case <-end:
			return all
		}
	}
}

// A rank that is frozen, or whose host is cut off, is dead for all within the limit, though no connection breaks. When it comes back
// it hears that it was given up, its session ends, and it gets in nowhere.
func TestSilentRankIsGivenUp(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/cut=%v", n, cut), func(t *testing.T) {
				inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
					s := joinAll(t, net, id, n)
					time.Sleep(20 * time.Second) // quiet, and nobody is missed
					silent := n - 1
					if cut {
						net.Cut(host(silent))
					} else {
						net.Freeze(host(silent))
					}
					each(n, func(r int) {
						if r == silent {
							return
						}
						got := fates(s[r], bootstrap.DefaultSilentAfter+bootstrap.DefaultHeartbeat)
						if assert.Len(t, got, 1) {
							assert.Equal(t, bootstrap.Dead, got[silent].Status)
							assert.Regexp(t, `^silent for 4\.\ds \(frozen or cut off\)$`, got[silent].Reason)
						}
						_, err := s[r].AllGather(bg, nil)
						assert.ErrorIs(t, err, bootstrap.ErrDead)
					})
					if cut {
						net.Heal(host(silent))
					} else {
						net.Thaw(host(silent))
					}
					var notice bootstrap.Notice
					select {
					case notice = <-s[silent].Aborted():
					case <-time.After(time.Minute):
					}
					assert.Contains(t, notice.Reason, "it gave this rank up: silent for 4.")
					for _, err := range []error{
						s[silent].Barrier(bg), s[silent].Send(bg, 0, 1, nil),
						func() error { _, err := s[silent].Agree(bg); return err }(),
						func() error { _, err := s[silent].Ask(bg, 0, nil); return err }(),
						func() error { _, err := s[silent].Sub(bg, []int{silent, 0}); return err }(),
					} {
						assert.ErrorIs(t, err, bootstrap.ErrAborted)
					}
					for r := range silent {
						assert.Empty(t, fates(s[r], 0))
						assert.NoError(t, s[r].Send(bg, (r+1)%silent, 2, nil), "the others are not disturbed")
					}
					closeAll(s)
					require.Zero(t, net.Conns())
				})
			})
		}
	}
}

// Bytes of a message that takes long are signs of life, and so is a rank that does nothing in its own part for a long time.
func TestBusyRanksAreNotSilent(t *testing.T) {
	job(t, 5, func(s bootstrap.Session) {
		time.Sleep(time.Duration(s.Rank()) * time.Minute)
		assert.NoError(t, s.Barrier(bg))
		sub, err := func() (bootstrap.Session, error) {
			time.Sleep(time.Duration(s.Rank()) * 10 * time.Second) // a Sub whose members come late
			return s.Sub(bg, []int{4, 3, 2, 1, 0})
		}()
		if assert.NoError(t, err) {
			time.Sleep(time.Minute)
			assert.NoError(t, sub.Barrier(bg))
			for _, f := range fates(sub, 0) {
				assert.Equal(t, bootstrap.Closed, f.Status)
			}
			assert.Empty(t, fates(s, 0))
			sub.Close()
		}
	})
}

// Any ranks die at once, however many pieces the ring falls in: within a second every survivor knows all of them, and an abort by one
// survivor reaches the others.
func TestUC04_NewsReachesAllSurvivors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		n := 3 + rng.IntN(14)
		order := rng.Perm(n)
		dead := order[:1+rng.IntN(n-2)]
		alive := order[len(dead):]
		t.Run(fmt.Sprintf("%d without %v", n, dead), func(t *testing.T) {
			inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
				s := joinAll(t, net, id, n)
				time.Sleep(time.Duration(rng.IntN(1200)) * time.Millisecond)
				for _, r := range dead {
					net.Kill(host(r))
				}
				each(len(alive), func(i int) {
					got := fates(s[alive[i]], time.Second)
					for _, r := range dead {
						assert.Equal(t, bootstrap.Dead, got[r].Status, "rank %d about %d", alive[i], r)
					}
					assert.Len(t, got, len(dead))
				})
				s[alive[0]].Abort(errors.New("the disk is full"))
				each(len(alive), func(i int) {
					select {
					case notice := <-s[alive[i]].Aborted():
						assert.Equal(t, alive[0], notice.From)
					case <-time.After(time.Second):
						assert.Fail(t, "no notice", "rank %d", alive[i])
					}
				})
				closeAll(s)
				require.Zero(t, net.Conns())
			})
		})
	}
}

// What a rank knows from elsewhere about another counts as any death does; who was reported though it lives is told to end.
func TestReport(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		s := joinAll(t, net, id, 6)
		require.ErrorContains(t, s[0].Report(6, "x"), "rank 6; this session has ranks 0 to 5")
		require.ErrorContains(t, s[0].Report(0, "x"), "rank 0 is this rank, which is alive")
		require.NoError(t, s[0].Report(3, "its pidfd says so"))
		require.NoError(t, s[0].Report(3, "twice"))
		for _, r := range []int{0, 1, 2, 4, 5} {
			require.Equal(t, map[int]bootstrap.Fate{3: {Rank: 3, Status: bootstrap.Dead, By: 0, Reason: "its pidfd says so"}}, fates(s[r], time.Second))
		}
		require.Equal(t, bootstrap.Notice{From: 0, Reason: "it gave this rank up: its pidfd says so"}, <-s[3].Aborted())
		_, err := s[4].Ask(bg, 3, nil)
		require.ErrorContains(t, err, "its pidfd says so, seen by rank 0")

		s[5].Close()
		require.Equal(t, map[int]bootstrap.Fate{5: {Rank: 5, Status: bootstrap.Closed, By: 5, Reason: "it closed its session"}}, fates(s[1], time.Second))
		require.ErrorIs(t, s[5].Report(1, "x"), bootstrap.ErrClosed)
		closeAll(s)
		fates(s[1], 0)
		for range s[1].Fates() { // ends, for it is closed
		}
	})
}
