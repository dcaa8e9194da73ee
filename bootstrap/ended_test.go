package bootstrap_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// endTogether has many ranks end at nearly the same time, as jobs do, soon after they met or later, and returns what the others get to know.
func endTogether(t *testing.T, seed uint64, end func(n *bootstraptest.Net, r int, s bootstrap.Session)) (fates []bootstrap.Fate) {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := 3 + rng.IntN(7)
	stay := 1 + rng.IntN(n-1) // so many do not end
	ranks := rng.Perm(n)
	later := rng.IntN(2) == 0
	pause := make([]time.Duration, n)
	for r := range pause {
		pause[r] = time.Duration(rng.IntN(2000)) * time.Microsecond
	}
	net := bootstraptest.New()
	var mu sync.Mutex
	net.Delay(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(1+rng.IntN(500)) * time.Microsecond
	})
	root, err := bootstrap.ListenRoot(bg, bootstrap.RootConfig{Address: host(99) + ":0", Network: net.Host(host(99))})
	require.NoError(t, err)
	defer root.Close()
	id := root.ID()
	sessions := make([]bootstrap.Session, n)
	each(n, func(r int) {
		c := config(net, id, r, n)
		c.Serve = false
		s, err := bootstrap.Join(bg, c)
		assert.NoError(t, err)
		sessions[r] = s
	})
	if later {
		time.Sleep(time.Second) // until everybody is linked to the one across the ring
	}
	each(n-stay, func(i int) {
		r := ranks[stay+i]
		time.Sleep(pause[r])
		end(net, r, sessions[r])
	})
	time.Sleep(15 * time.Second)
	for _, r := range ranks[:stay] {
		for range n - stay {
			select {
			case f := <-sessions[r].Fates():
				fates = append(fates, f)
				assert.Contains(t, ranks[stay:], f.Rank, "seed %d", seed)
			default:
				assert.Fail(t, "nothing heard of some", "seed %d, rank %d of %d, stay %v", seed, r, n, ranks[:stay])
			}
		}
	}
	each(stay, func(i int) { // what needs who ended does not wait for them
		begun := time.Now()
		err := sessions[ranks[i]].Barrier(bg)
		assert.ErrorAs(t, err, new(*bootstrap.PeerError), "seed %d", seed)
		assert.Less(t, time.Since(begun), time.Second, "seed %d", seed)
	})
	closeAll(sessions)
	return fates
}

func TestWhoCloseTogetherAreNotDead(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			fates := endTogether(t, seed, func(_ *bootstraptest.Net, _ int, s bootstrap.Session) { s.Close() })
			for _, f := range fates {
				assert.Equal(t, bootstrap.Closed, f.Status, "seed %d: %+v", seed, f)
			}
		})
	}
}

func TestWhoDieTogetherHaveNotClosed(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			fates := endTogether(t, seed, func(n *bootstraptest.Net, r int, _ bootstrap.Session) { n.Kill(host(r)) })
			for _, f := range fates {
				assert.Equal(t, bootstrap.Dead, f.Status, "seed %d: %+v", seed, f)
			}
		})
	}
}

// Ranks 1 and 3 of a ring of four are through and have closed, so nothing is left over which 2 could tell 0 why it gives up and closes. Who
// comes to ask hears it all the same.
func TestWhoAsksAfterTheEndHearsWhy(t *testing.T) {
	job(t, 5, func(s bootstrap.Session) {
		if s.Rank() == 4 {
			assert.NoError(t, s.Barrier(bg))
			return
		}
		sub, err := s.Sub(bg, []int{0, 1, 2, 3})
		if !assert.NoError(t, err) {
			return
		}
		defer sub.Close()
		switch sub.Rank() {
		case 1, 3:
			assert.NoError(t, sub.Close())
		case 2:
			for sub.Status(1) != bootstrap.Closed {
				time.Sleep(time.Microsecond)
			}
			sub.Abort(errors.New("it was not me"))
			assert.NoError(t, sub.Close())
		case 0:
			time.Sleep(100 * time.Millisecond)
			_, err := sub.Ask(bg, 2, nil)
			var gone *bootstrap.PeerError
			if assert.ErrorAs(t, err, &gone) {
				assert.Equal(t, bootstrap.Closed, gone.Status)
			}
			select {
			case n := <-sub.Aborted():
				assert.Equal(t, bootstrap.Notice{From: 2, Reason: "it was not me"}, n)
			default:
				assert.Fail(t, "no word of the abort came with that")
			}
		}
		assert.NoError(t, s.Barrier(bg))
	})
}

// The same where nobody can be asked afterwards, for 2 has no other session: it tells 0 itself, before it goes.
func TestWhoGoesTellsOfItsAbort(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		sessions := joinAll(t, n, id, 4)
		each(4, func(r int) {
			if s := sessions[r]; r%2 == 1 {
				assert.NoError(t, s.Close())
			} else if r == 2 {
				for s.Status(1) != bootstrap.Closed || s.Status(3) != bootstrap.Closed {
					time.Sleep(time.Microsecond)
				}
				s.Abort(errors.New("it was not me"))
				assert.NoError(t, s.Close())
			} else {
				select {
				case n := <-s.Aborted():
					assert.Equal(t, bootstrap.Notice{From: 2, Reason: "it was not me"}, n)
				case <-time.After(time.Second):
					assert.Fail(t, "no word of the abort")
				}
				assert.NoError(t, s.Close())
			}
		})
	})
}

// TestAbortOnceAllHaveMet: an abort by a rank that has met all others does not make the root refuse the world, although words of some of them may
// be on their way to it.
func TestAbortOnceAllHaveMet(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inMemory(t, func(t *testing.T, net *bootstraptest.Net, _ bootstrap.ID) {
				root, err := bootstrap.ListenRoot(bg, bootstrap.RootConfig{Address: host(99) + ":0", Network: net.Host(host(99))})
				require.NoError(t, err)
				defer root.Close()
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(seed, 8))
				net.Delay(func() time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Duration(rng.IntN(50)) * time.Millisecond
				})
				const n = 4
				each(n, func(r int) {
					c := config(net, root.ID(), r, n)
					c.Serve = false
					s, err := bootstrap.Join(bg, c)
					if !assert.NoError(t, err) {
						return
					}
					err = s.Barrier(bg) // whose end the abort may overtake
					if r == 1 {
						assert.NoError(t, err) // so every Join has returned
						s.Abort(errors.New("after all have met"))
					}
					<-s.Aborted()
					assert.NoError(t, s.Close())
				})
				assert.NoError(t, root.Wait(bg))
			})
		})
	}
}
