package transporttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

func testSameValues(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, _ := w.pair()
	again, err := w.eps[0].Conn(key(0, 1), w.eps[1].Address())
	require.NoError(t, err)
	require.True(t, a == again, "a key has one connection")
	for i := range w.options.Streams {
		require.True(t, a.Stream(i) == a.Stream(i), "stream %d is always the same value", i)
	}
	require.True(t, a.Stream(0) != a.Stream(1))
	require.Contains(t, a.Peer(), "rank 1")
	require.NotEmpty(t, w.eps[0].Name())
	require.NotEmpty(t, w.eps[0].Address())
	require.LessOrEqual(t, len(w.eps[0].Address()), 1<<10)
	require.Equal(t, w.eps[0].Address(), w.eps[0].Address(), "an address is constant")
	require.NotEqual(t, w.eps[0].Address(), w.eps[1].Address())
	_, err = w.eps[0].Conn(key(0, 2), []byte("no address"))
	require.Error(t, err)
	require.Error(t, w.eps[0].Reach(context.Background(), []byte("no address")))
	require.Error(t, w.eps[0].Reach(context.Background(), nil))
}

// testChannels joins one pair by connections of several communicators and
// channels and mixes none of them up.
func testChannels(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	type both struct{ a, b transport.Conn }
	var all []both
	for comm := range uint64(3) {
		for _, channel := range []int32{transport.PointToPoint, 0, 1, 2} {
			k := transport.Key{Comm: comm << 61, Channel: channel, Self: 0, Peer: 1}
			a, err := w.eps[0].Conn(k, w.eps[1].Address())
			require.NoError(t, err)
			k.Self, k.Peer = 1, 0
			b, err := w.eps[1].Conn(k, w.eps[0].Address())
			require.NoError(t, err)
			all = append(all, both{a, b})
		}
	}
	for i, c := range all {
		w.send(c.a.Stream(0), 1, pattern(uint64(i), 5000))
		w.send(c.b.Stream(0), 1, pattern(uint64(i+100), 40))
	}
	for i := range all {
		c := all[len(all)-1-i]
		seed := uint64(len(all) - 1 - i)
		w.same(pattern(seed, 5000), w.receive(c.b.Stream(0), 1, 5000), "connection %d", seed)
		w.same(pattern(seed+100, 40), w.receive(c.a.Stream(0), 1, 40), "connection %d back", seed)
	}
}

// testConnectOrders lets one end begin long before the other knows the key, and
// also send before.
func testConnectOrders(t *testing.T, open Provider) {
	for _, first := range []int{0, 1} {
		for _, pause := range []time.Duration{0, 30 * time.Millisecond} {
			t.Run(fmt.Sprintf("rank %d first, %v", first, pause), func(t *testing.T) {
				w := newWorld(t, open, 2, defaults())
				x := w.conn(first, 1-first)
				var early, ok bool
				var err error
				m := pattern(1, 20000)
				w.try(pause, func() bool {
					if !early {
						early, err = x.Stream(0).Send(1, lend(m))
						require.NoError(t, err)
					}
					return false
				})
				b := make([]byte, 10)
				ok, err = x.Stream(0).Recv(2, lend(b))
				require.NoError(t, err)
				require.False(t, ok)
				y := w.conn(1-first, first)
				w.send(y.Stream(0), 2, pattern(2, 10))
				w.recv(x.Stream(0), 2, b)
				w.same(pattern(2, 10), b, "to the first")
				if !early {
					w.send(x.Stream(0), 1, m)
				}
				w.same(m, w.receive(y.Stream(0), 1, len(m)), "from the first")
			})
		}
	}
}

// testMet: an end that nobody uses is not met, though its endpoint answers; one from which something came is, also when it was closed since.
func testMet(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a := w.conn(0, 1)
	got := make([]byte, 8)
	w.try(50*time.Millisecond, func() bool {
		_, err := a.Stream(0).Recv(1, lend(got))
		require.NoError(t, err)
		require.False(t, a.Met())
		return false
	})
	b := w.conn(1, 0)
	w.send(b.Stream(0), 1, pattern(1, 8))
	require.NoError(t, b.Close())
	w.recv(a.Stream(0), 1, got)
	w.same(pattern(1, 8), got, "before it closed")
	require.True(t, a.Met())
	require.ErrorIs(t, w.recvError(a.Stream(0), 1, 8), transport.ErrGone)
	require.True(t, a.Met())
}

// testConnectSimultaneously begins many connections at both ends at the same
// time, from two goroutines that each own an endpoint.
func testConnectSimultaneously(t *testing.T, open Provider) {
	const conns = 40
	w := newWorld(t, open, 2, defaults())
	side := func(self int) error {
		e, peer := w.eps[self], w.eps[1-self]
		for i := range conns {
			k := key(self, 1-self)
			k.Channel = int32(i)
			c, err := e.Conn(k, peer.Address())
			if err != nil {
				return err
			}
			out, in := pattern(uint64(2*i+self), 300), make([]byte, 300)
			if err := exchange(e, c.Stream(i%4), uint32(i), out, in); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			want := pattern(uint64(2*i+1-self), 300)
			if string(want) != string(in) {
				return fmt.Errorf("connection %d: wrong bytes", i)
			}
		}
		return nil
	}
	atOnce(t, 2, side)
}

// atOnce runs f for ranks 0…n-1, each in its goroutine, and wants no error.
func atOnce(t *testing.T, n int, f func(rank int) error) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err, "rank %d", i)
	}
}

// exchange sends out and receives in on one stream, driving e, until out is ours
// again. All messages sent on s before must have been counted by Sent.
func exchange(e transport.Endpoint, s transport.Stream, tag uint32, out, in []byte) error {
	before, err := s.Sent()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	var sent, got, ours bool
	for n := 0; !sent || !got || !ours; n++ {
		if !sent {
			if sent, err = s.Send(tag, lend(out)); err != nil {
				return err
			}
		}
		if !got {
			if got, err = s.Recv(tag, lend(in)); err != nil {
				return err
			}
		}
		if sent && !ours {
			done, err := s.Sent()
			if err != nil {
				return err
			}
			ours = done > before
		}
		e.Progress()
		if n > 100 {
			time.Sleep(20 * time.Microsecond)
			if time.Now().After(deadline) {
				return fmt.Errorf("no exchange in %v: accepted %v, counted as sent %v, received %v", patience, sent, ours, got)
			}
		}
	}
	return nil
}

// testFullMesh connects every pair of 8 ranks and passes a message each way.
func testFullMesh(t *testing.T, open Provider) {
	const n = 8
	w := newWorld(t, open, n, defaults())
	var conns [n][n]transport.Conn
	for i := range n {
		for j := range n {
			if i != j {
				conns[i][j] = w.conn(i, j)
			}
		}
	}
	for round := range 3 {
		length := 40 + 5000*round
		for i := range n {
			for j := range n {
				if i != j {
					w.send(conns[i][j].Stream(round), uint32(round), pattern(uint64(100*i+j), length))
				}
			}
		}
		for i := range n {
			for j := range n {
				if i != j {
					w.same(pattern(uint64(100*j+i), length), w.receive(conns[i][j].Stream(round), uint32(round), length), "round %d, %d to %d", round, j, i)
				}
			}
		}
	}
}

// testFullMeshGoroutines is the same with a goroutine for each rank.
func testFullMeshGoroutines(t *testing.T, open Provider) {
	const n, rounds = 8, 20
	w := newWorld(t, open, n, defaults())
	atOnce(t, n, func(self int) error {
		e := w.eps[self]
		for k := range rounds {
			for d := 1; d < n; d++ {
				peer := (self ^ d) // pairs meet in the same order: no cycle of waits
				c, err := e.Conn(key(self, peer), w.eps[peer].Address())
				if err != nil {
					return err
				}
				length := 8 + k*3000
				out, in := pattern(uint64(1000*k+100*self+peer), length), make([]byte, length)
				if err := exchange(e, c.Stream(1), uint32(k), out, in); err != nil {
					return fmt.Errorf("round %d, peer %d: %w", k, peer, err)
				}
				if string(in) != string(pattern(uint64(1000*k+100*peer+self), length)) {
					return fmt.Errorf("round %d, peer %d: wrong bytes", k, peer)
				}
			}
		}
		return nil
	})
}

// testOptionsDiffer wants an error naming the field that the ends disagree on.
func testOptionsDiffer(t *testing.T, open Provider) {
	for field, change := range map[string]func(*transport.Options){
		"MaxMessage": func(o *transport.Options) { o.MaxMessage *= 2 },
		"Streams":    func(o *transport.Options) { o.Streams++ },
		"Checksum":   func(o *transport.Options) { o.Checksum = true },
	} {
		t.Run(field, func(t *testing.T) {
			other := defaults()
			change(&other)
			w := &world{TB: t, options: defaults(), eps: open(t, []transport.Options{defaults(), other})}
			t.Cleanup(w.close)
			err := func() error {
				var conns [2]transport.Conn
				for i := range 2 {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					err := w.eps[i].Reach(ctx, w.eps[1-i].Address())
					cancel()
					if err != nil {
						return err
					}
					if conns[i], err = w.eps[i].Conn(key(i, 1-i), w.eps[1-i].Address()); err != nil {
						return err
					}
				}
				b := make([]byte, 8)
				return w.fails("ends with other options", func() error {
					for _, c := range conns {
						if _, err := c.Stream(0).Recv(1, lend(b)); err != nil {
							return err
						}
					}
					_, err := conns[0].Stream(0).Send(1, lend(b))
					return err
				})
			}()
			require.ErrorContains(t, err, field)
			require.ErrorIs(t, err, transport.ErrMismatch)
		})
	}
}
