package bootstrap_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// A killed rank is known to all within a second, whatever they were doing, and messages between the others go on.
func TestUC04_DeadRankIsKnownToAll(t *testing.T) {
	for _, n := range []int{2, 3, 5, 16} {
		for _, idle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/idle=%v", n, idle), func(t *testing.T) {
				inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
					sessions := joinAll(t, net, id, n)
					dead := n / 2
					var killed time.Time
					each(n, func(r int) {
						s := sessions[r]
						if r == dead {
							time.Sleep(2 * time.Second)
							killed = time.Now()
							net.Kill(host(dead))
							return
						}
						if idle {
							time.Sleep(3 * time.Second)
							assert.Equal(t, bootstrap.Dead, s.Status(dead))
						}
						_, err := s.AllGather(bg, nil)
						var peer *bootstrap.PeerError
						if assert.ErrorAs(t, err, &peer) {
							assert.Equal(t, dead, peer.Rank)
							assert.Equal(t, bootstrap.Dead, peer.Status)
							assert.ErrorIs(t, err, bootstrap.ErrDead)
						}
						if !idle {
							assert.Less(t, time.Since(killed), time.Second)
						}
						_, err = s.Recv(bg, dead, 1)
						assert.ErrorIs(t, err, bootstrap.ErrDead)
						assert.ErrorIs(t, s.Send(bg, dead, 1, nil), bootstrap.ErrDead)
						for to := range n {
							if to != dead {
								assert.NoError(t, s.Send(bg, to, 2, []byte{byte(r)}))
							}
						}
						for from := range n {
							if from != dead {
								got, err := s.Recv(bg, from, 2)
								assert.NoError(t, err)
								assert.Equal(t, []byte{byte(from)}, got)
								if from != r {
									assert.Equal(t, bootstrap.Alive, s.Status(from))
								}
							}
						}
					})
					closeAll(sessions)
					require.Zero(t, net.Conns())
				})
			})
		}
	}
}

// Survivors of two deaths that cut the ring in two make a session of their own.
func TestSubOfSurvivors(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		sessions := joinAll(t, net, id, 8)
		alive := []int{1, 2, 3, 5, 6, 7} // rank 0, which served the root, and rank 4 die
		net.Kill(host(0))
		net.Kill(host(4))
		each(len(alive), func(i int) {
			s := sessions[alive[i]]
			_, err := s.AllGather(bg, nil)
			assert.True(t, errors.Is(err, bootstrap.ErrDead) || errors.Is(err, bootstrap.ErrAborted), "%v", err)
			s.Abort(errors.New("two ranks died"))
			sub, err := s.Sub(bg, alive)
			if assert.NoError(t, err) {
				got, err := sub.AllGather(bg, []byte{byte(alive[i])})
				assert.NoError(t, err)
				assert.Equal(t, [][]byte{{1}, {2}, {3}, {5}, {6}, {7}}, got)
				assert.NoError(t, sub.Close())
			}
		})
		closeAll(sessions)
		require.Zero(t, net.Conns())
	})
}

func TestAbortReachesAll(t *testing.T) {
	job(t, 9, func(s bootstrap.Session) {
		if s.Rank() == 3 {
			time.Sleep(time.Second)
			s.Abort(errors.New("the disk is full"))
			s.Abort(errors.New("a later reason"))
		}
		start := time.Now()
		var err error
		switch s.Rank() % 3 {
		case 0:
			_, err = s.AllGather(bg, nil)
		case 1:
			_, err = s.Recv(bg, (s.Rank()+4)%9, 1)
		case 2:
			n, ok := <-s.Aborted()
			assert.True(t, ok)
			assert.Equal(t, bootstrap.Notice{From: 3, Reason: "the disk is full"}, n)
			_, ok = <-s.Aborted()
			assert.False(t, ok, "closed after the notice")
			err = s.Send(bg, 0, 1, nil)
		}
		var aborted *bootstrap.AbortedError
		if assert.ErrorAs(t, err, &aborted) {
			assert.Equal(t, 3, aborted.Notice.From)
			assert.ErrorIs(t, err, bootstrap.ErrAborted)
			assert.ErrorContains(t, err, "aborted by rank 3: the disk is full")
		}
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
	})
	job(t, 2, func(s bootstrap.Session) {
		s.Abort(nil)
		assert.ErrorIs(t, s.Barrier(bg), bootstrap.ErrAborted)
	})
}

// A rank that closes while others still want something is named as closed, not as dead, by ranks that are not its neighbours, too.
func TestClosedRankIsNamed(t *testing.T) {
	job(t, 8, func(s bootstrap.Session) {
		if s.Rank() == 2 {
			s.Close()
			return
		}
		_, err := s.AllGather(bg, nil)
		var peer *bootstrap.PeerError
		if assert.ErrorAs(t, err, &peer) {
			assert.Equal(t, 2, peer.Rank)
			assert.Equal(t, bootstrap.Closed, peer.Status)
			assert.ErrorIs(t, err, bootstrap.ErrClosed)
			assert.NotErrorIs(t, err, bootstrap.ErrDead)
		}
		assert.Equal(t, bootstrap.Closed, s.Status(2))
		time.Sleep(time.Second)
	})
}

func TestCloseEndsCallsUnderWay(t *testing.T) {
	job(t, 3, func(s bootstrap.Session) {
		done := make(chan error, 2)
		go func() { _, err := s.Recv(bg, (s.Rank()+1)%3, 1); done <- err }()
		go func() { // rank 0 does not call, so it cannot complete
			if s.Rank() == 0 {
				done <- bootstrap.ErrClosed
				return
			}
			done <- s.Barrier(bg)
		}()
		if s.Rank() == 0 {
			time.Sleep(3 * time.Second)
			s.Close()
		} else {
			time.Sleep(time.Second)
			each(3, func(int) { assert.NoError(t, s.Close()) })
		}
		for range 2 {
			assert.ErrorIs(t, <-done, bootstrap.ErrClosed)
		}
		assert.ErrorIs(t, s.Send(bg, 0, 1, nil), bootstrap.ErrClosed)
		_, err := s.Sub(bg, []int{s.Rank()})
		assert.ErrorIs(t, err, bootstrap.ErrClosed)
		s.Abort(errors.New("too late"))
		_, ok := <-s.Aborted()
		assert.False(t, ok)
	})
}

// A rank dies at some moment: at each dial while the ranks meet, and between any two calls after that. Every survivor comes to
// an end that says so, in bounded time.
func TestDeathAtAnyMoment(t *testing.T) {
	const n, dialsOfAJoin = 5, 10
	ends := []error{bootstrap.ErrDead, bootstrap.ErrClosed, bootstrap.ErrAborted, bootstrap.ErrTimeout}
	good := func(err error) bool {
		for _, end := range ends {
			if errors.Is(err, end) {
				return true
			}
		}
		return false
	}
	for step := range dialsOfAJoin + 20 {
		inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
			start := time.Now()
			dead := 1 + step%(n-1)
			dials := 0 // under the network's lock
			net.Refuse(func(netip.AddrPort, netip.AddrPort) error {
				if dials++; dials == step+1 && step < dialsOfAJoin {
					go net.Kill(host(dead))
				}
				return nil
			})
			each(n, func(r int) {
				c := config(net, id, r, n)
				c.Timeout = 5 * time.Second
				s, err := bootstrap.Join(bg, c)
				if err != nil {
					assert.Less(t, step, dialsOfAJoin+3, "the first steps after it, for those that come last")
					assert.True(t, r == dead || good(err), "step %d rank %d: %v", step, r, err)
					return
				}
				for k := 0; err == nil; k++ {
					time.Sleep(time.Microsecond) // virtual time goes on only when all rest
					if r == dead && step >= dialsOfAJoin && k == (step-dialsOfAJoin)/3 {
						switch (step - dialsOfAJoin) % 3 {
						case 0:
							net.Kill(host(dead))
						case 1:
							go net.Kill(host(dead))
						case 2:
							time.AfterFunc(500*time.Nanosecond, func() { net.Kill(host(dead)) })
						}
					}
					if err = s.Send(bg, (r+2)%n, 1, make([]byte, 100_000)); err == nil {
						_, err = s.Recv(bg, (r+3)%n, 1)
					}
					if err == nil {
						_, err = s.AllGather(bg, make([]byte, 100_000))
					}
				}
				assert.True(t, good(err), "step %d rank %d: %v", step, r, err)
				if r != dead { // whose own dials find no network for as long as they may try
					assert.Less(t, time.Since(start), 10*time.Second, "step %d rank %d: %v", step, r, err)
				}
				s.Close()
			})
			net.Kill(host(dead))
			require.Zero(t, net.Conns(), "step %d", step)
		})
	}
}
