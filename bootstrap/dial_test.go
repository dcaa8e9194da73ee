package bootstrap_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// soon is when all ranks know of a silent one, with what it takes to tell them.
const soon = bootstrap.DefaultSilentAfter + time.Second

// lost is a Network that connects to any address but one, whose packets are dropped.
func lost(n bootstrap.Network, address string) bootstrap.Network {
	dial := n.Dial
	n.Dial = func(ctx context.Context, to string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(to); host != address {
			return dial(ctx, to)
		}
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	return n
}

// Who connects to a rank whose packets are dropped hears of its death as soon as all others.
func TestUC04_DialEndsWithDeath(t *testing.T) {
	for name, call := range map[string]func(s bootstrap.Session, to int) error{
		"send": func(s bootstrap.Session, to int) error { return s.Send(bg, to, 7, []byte("x")) },
		"ask":  func(s bootstrap.Session, to int) error { _, err := s.Ask(bg, to, nil); return err },
		"recv": func(s bootstrap.Session, to int) error { _, err := s.Recv(bg, to, 7); return err },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
				s := joinAll(t, n, id, 9)
				time.Sleep(2 * time.Second)
				n.Kill(host(7)) // from the first death on, a Recv makes a link of its own
				time.Sleep(2 * time.Second)
				n.Cut(host(2))
				start := time.Now()
				err := call(s[0], 2)
				assert.LessOrEqual(t, time.Since(start), soon)
				var peer *bootstrap.PeerError
				if assert.ErrorAs(t, err, &peer) {
					assert.Equal(t, 2, peer.Rank)
					assert.Equal(t, bootstrap.Dead, peer.Status)
				}
				n.Heal(host(2))
				closeAll(s)
				require.Zero(t, n.Conns())
			})
		})
	}
}

// An abort ends who connects, and who waits for another to, but not what goes on after an abort.
func TestDialEndsWithAbort(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		s := joinAll(t, n, id, 7)
		time.Sleep(2 * time.Second)
		n.Cut(host(2))
		start := time.Now()
		time.AfterFunc(time.Second, func() { s[0].Abort(errors.New("enough")) })
		each(3, func(k int) {
			switch k {
			case 0: // connects
				_, err := s[0].Ask(bg, 2, nil)
				assert.ErrorIs(t, err, bootstrap.ErrDead)
				assert.LessOrEqual(t, time.Since(start), soon)
			case 1: // waits for that
				time.Sleep(100 * time.Millisecond)
				assert.ErrorIs(t, s[0].Send(bg, 2, 7, nil), bootstrap.ErrAborted)
				assert.Equal(t, time.Second, time.Since(start))
			case 2:
				assert.ErrorIs(t, s[4].Send(bg, 2, 7, nil), bootstrap.ErrAborted)
				assert.Equal(t, time.Second, time.Since(start))
			}
		})
		n.Heal(host(2))
		closeAll(s)
		require.Zero(t, n.Conns())
	})
}

// A rank that cannot be reached, and reaches us, is spoken with over its own connection, by a call that has begun to connect, too.
func TestDialEndsWithLink(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		const world, far = 9, 3 // neither a neighbour of rank 0 nor across the ring
		s := make([]bootstrap.Session, world)
		each(world, func(r int) {
			c := config(n, id, r, world)
			if r == 0 {
				c.Network = lost(c.Network, host(far))
			}
			var err error
			s[r], err = bootstrap.Join(bg, c)
			require.NoError(t, err)
		})
		time.Sleep(2 * time.Second)
		n.Kill(host(7))
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(bg, 30*time.Second)
		defer cancel()
		each(3, func(k int) {
			switch k {
			case 0:
				got, err := s[0].Recv(ctx, far, 7)
				assert.NoError(t, err)
				assert.Equal(t, []byte("hello"), got)
			case 1:
				assert.NoError(t, s[0].Send(ctx, far, 8, []byte("welcome")))
			case 2:
				time.Sleep(time.Second)
				assert.NoError(t, s[far].Send(ctx, 0, 7, []byte("hello")))
				got, err := s[far].Recv(ctx, 0, 8)
				assert.NoError(t, err)
				assert.Equal(t, []byte("welcome"), got)
			}
		})
		closeAll(s)
		require.Zero(t, n.Conns())
	})
}

// A root that comes up late is found though packets to another of its addresses are dropped, and so is one whose name resolves to an
// address of the past at first.
func TestDialTriesAgain(t *testing.T) {
	const stale = "203.0.113.1"
	for name, roots := range map[string][]string{"two addresses": {stale + ":29500", host(0) + ":29500"}, "a name": {"root.test:29500"}} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
				start := time.Now()
				each(2, func(r int) {
					c := config(n, id, r, 2)
					if r == 0 {
						time.Sleep(time.Second)
					} else {
						c.Roots = roots
						direct, dropped := c.Network, lost(c.Network, stale)
						c.Network.Dial = func(ctx context.Context, to string) (net.Conn, error) {
							switch {
							case to != "root.test:29500":
								return dropped.Dial(ctx, to)
							case time.Since(start) < time.Second:
								return dropped.Dial(ctx, stale+":29500")
							}
							return direct.Dial(ctx, host(0)+":29500")
						}
					}
					s, err := bootstrap.Join(bg, c)
					if assert.NoError(t, err) {
						assert.Less(t, time.Since(start), 30*time.Second)
						s.Close()
					}
				})
			})
		})
	}
}
