//go:build linux && cgo

package verbs

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// crowd is several ranks, each connected to all others, that the test's goroutine drives.
type crowd struct {
	testing.TB
	eps   []*endpoint
	conns [][]transport.Conn
}

func newCrowd(t *testing.T, n int, c Config) *crowd {
	needDevices(t, 1)
	w := &crowd{TB: t, conns: make([][]transport.Conn, n)}
	for range n {
		e, err := Open(c, testOptions())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		w.eps = append(w.eps, e.(*endpoint))
	}
	for i := range n {
		w.conns[i] = make([]transport.Conn, n)
		for j := range n {
			if i != j {
				var err error
				w.conns[i][j], err = w.eps[i].Conn(transport.Key{Comm: 7, Self: int32(i), Peer: int32(j)}, w.eps[j].Address())
				require.NoError(t, err)
			}
		}
	}
	return w
}

func (w *crowd) until(what string, f func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		moved := false
		for _, e := range w.eps {
			moved = e.Progress() || moved
		}
		if !moved {
			time.Sleep(20 * time.Microsecond)
		}
		require.False(w, time.Now().After(deadline), "waited %v for %s", patience, what)
	}
}

// settle lets all endpoints come to their budgets.
func (w *crowd) settle(budget int) {
	w.until("the budgets to be kept", func() bool {
		for _, e := range w.eps {
			if e.qps() > budget {
				e.short.Store(int64(e.qps() - budget))
				return false
			}
		}
		return true
	})
}

// TestBudget: with fewer QPs than peers all messages arrive, in order and whole, whoever sends to whom, and idle connections are parked.
func TestBudget(t *testing.T) {
	const ranks, budget = 5, 4
	c := small()
	c.QPs, c.Budget = 2, budget
	w := newCrowd(t, ranks, c)
	random := rand.New(rand.NewPCG(6, 0))
	times := 60
	if testing.Short() {
		times = 20
	}
	links := map[*link]bool{}
	for k := range times {
		i := random.IntN(ranks)
		j := (i + 1 + random.IntN(ranks-1)) % ranks
		stream := random.IntN(2)
		b := message(1 + random.IntN(40_000))
		got := make([]byte, len(b))
		sent := false
		w.until("a message", func() bool {
			if !sent {
				ok, err := w.conns[i][j].Stream(stream).Send(uint32(k), bufOf(b))
				require.NoError(t, err)
				sent = ok
			}
			ok, err := w.conns[j][i].Stream(stream).Recv(uint32(k), bufOf(got))
			require.NoError(t, err)
			return ok
		})
		require.Equal(t, b, got)
		links[w.conns[i][j].(*conn).link] = true
	}
	t.Logf("%d messages between %d pairs needed %d links", times, ranks*(ranks-1)/2, len(links))
	require.Greater(t, len(links), ranks*(ranks-1)/2, "some were parked and connected again")
	w.settle(budget)
	for i, e := range w.eps {
		require.LessOrEqual(t, e.qps(), budget, "rank %d", i)
	}

	// A message that is under way keeps its connection, whatever is asked of it.
	_, err := w.conns[0][1].Stream(1).Send(1, bufOf(message(3000)))
	require.NoError(t, err)
	w.until("a message to arrive", func() bool {
		l := w.conns[1][0].(*conn)
		return l.ready() && l.link.lanes[1].arrived.count > l.link.lanes[1].consumed
	})
	w.eps[0].short.Store(100)
	w.eps[1].short.Store(100)
	for range 200 {
		for _, e := range w.eps {
			e.Progress()
		}
	}
	require.NotNil(t, w.conns[1][0].(*conn).link)
	got := make([]byte, 3000)
	ok, err := w.conns[1][0].Stream(1).Recv(1, bufOf(got))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, message(3000), got)
}

// TestParkedPeerGone: a receive finds out that a peer has gone also where its connection was parked.
func TestParkedPeerGone(t *testing.T) {
	w := newCrowd(t, 2, small())
	b := make([]byte, 100)
	_, err := w.conns[0][1].Stream(0).Send(1, bufOf(message(100)))
	require.NoError(t, err)
	w.until("a message", func() bool {
		ok, err := w.conns[1][0].Stream(0).Recv(1, bufOf(b))
		require.NoError(t, err)
		return ok
	})
	park := func() {
		w.until("both to be parked", func() bool {
			w.eps[0].short.Store(1)
			return w.conns[0][1].(*conn).link == nil && w.conns[1][0].(*conn).link == nil
		})
	}
	park()
	require.Zero(t, w.eps[0].qps()+w.eps[1].qps())
	require.NoError(t, w.eps[0].Close())
	start := time.Now()
	w.eps = w.eps[1:]
	w.until("an error", func() bool {
		_, err = w.conns[1][0].Stream(0).Recv(1, bufOf(b))
		return err != nil
	})
	t.Logf("after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, transport.ErrGone)
	require.NotContains(t, err.Error(), "not connected within", "it is known before the time for that is over")
}

// TestMetBeforeParking: that the peer's user was at the other end is not forgotten with the link.
func TestMetBeforeParking(t *testing.T) {
	c := replayLink(1)
	e := c.e
	e.ctx, e.event, e.pool, e.meets, e.closed = context.Background(), -1, &pool{}, map[transport.Key]*meet{}, true // so that nobody connects
	require.False(t, c.Met())
	c.link.memory.of = &chunk{}
	c.unlink()
	require.True(t, c.Met())
	require.False(t, c.takeUp())
	require.Equal(t, unparked, c.park)
	require.True(t, c.Met())
	c.arrived.Store(bare(1))
	require.True(t, c.takeUp())
	require.True(t, c.Met())
}
