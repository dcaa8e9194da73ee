package transporttest

import (
	"fmt"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// testLeave: who leaves a communicator before it asked for a connection on it is to its peer one who asked and closed, whenever the peer came or comes;
// and what was sent by who leaves is read by who comes late.
func testLeave(t *testing.T, open Provider) {
	for name, order := range map[string]struct{ before, talk, closed bool }{
		"before we come":                   {before: true},
		"before we come, with words":       {before: true, talk: true},
		"when we are there":                {},
		"when we are there, with words":    {talk: true},
		"when we were there":               {closed: true},
		"when we were there, with words":   {closed: true, talk: true},
		"before we come and at once close": {before: true, closed: true},
	} {
		for peer := range 2 {
			t.Run(fmt.Sprintf("%s, rank %d", name, peer), func(t *testing.T) {
				w := newWorld(t, open, 2, defaults())
				was := w.held()
				comm := key(0, 1).Comm
				if order.before {
					w.eps[peer].Leave(comm)
				}
				ours := w.conn(1-peer, peer)
				if order.talk {
					w.try(patience/1000, func() bool {
						ok, err := ours.Stream(0).Send(1, lend(pattern(1, 20_000)))
						return ok || err != nil
					})
				}
				if order.closed {
					require.NoError(t, ours.Close())
				}
				if !order.before {
					w.eps[peer].Leave(comm)
				}
				if !order.closed {
					err := w.recvError(ours.Stream(1), 1, 8)
					require.ErrorIs(t, err, transport.ErrLeft)
					w.requirePeer(err, key(1-peer, peer))
					require.ErrorIs(t, w.sendError(ours.Stream(2), 1, 8), transport.ErrLeft)
					require.NoError(t, ours.Close())
				}
				w.eps[1-peer].Leave(comm)
				w.drive("nothing to be left", func() bool { return w.held() == was })
			})
		}
	}
	for peer := range 2 {
		t.Run(fmt.Sprintf("having sent, rank %d", peer), func(t *testing.T) {
			w := newWorld(t, open, 2, defaults())
			was := w.held()
			theirs := w.conn(peer, 1-peer)
			w.send(theirs.Stream(0), 1, pattern(2, 8))
			require.NoError(t, theirs.Close())
			w.eps[peer].Leave(key(0, 1).Comm)
			ours := w.conn(1-peer, peer)
			w.same(pattern(2, 8), w.receive(ours.Stream(0), 1, 8), "sent before")
			require.ErrorIs(t, w.recvError(ours.Stream(0), 1, 8), transport.ErrLeft)
			require.ErrorIs(t, w.sendError(ours.Stream(2), 1, 8), transport.ErrLeft)
			require.NoError(t, ours.Close())
			_, err := w.eps[peer].Conn(key(peer, 1-peer), w.eps[1-peer].Address())
			require.ErrorIs(t, err, transport.ErrClosed)
			w.drive("nothing to be left", func() bool { return w.held() == was })
		})
	}
	t.Run("in any order", func(t *testing.T) {
		w := newWorld(t, open, 2, defaults())
		a, b := w.pair()
		for range 2 {
			w.eps[0].Leave(12345)
		}
		w.send(a.Stream(0), 1, pattern(1, 8))
		w.same(pattern(1, 8), w.receive(b.Stream(0), 1, 8), "on another communicator")
		require.NoError(t, w.eps[0].Close())
		w.eps[0].Leave(12345)
		w.eps[0].Leave(key(0, 1).Comm)
	})
}

// holding is what a world's endpoints hold.
type holding struct {
	conns  int
	memory int64
}

func (w *world) held() (all holding) {
	for _, e := range w.eps {
		s := e.Stats()
		all.conns += s.Conns
		all.memory += s.Memory
	}
	return all
}

// testLeaveMany: communicators come and go, on which one end asks for a connection, sends, and closes, and the other never asks. Nothing stays.
func testLeaveMany(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	var was holding
	fds := 0
	for n := range 200 {
		k, from := key(n%2, 1-n%2), n%2
		k.Comm += uint64(1 + n)
		if n%5 == 4 { // before anybody comes
			w.eps[1-from].Leave(k.Comm)
		}
		c, err := w.eps[from].Conn(k, w.eps[1-from].Address())
		require.NoError(t, err)
		w.drive("a message to be sent, or the peer's leave to be known", func() bool {
			ok, err := c.Stream(0).Send(1, lend(pattern(1, []int{8, 20_000}[n/2%2])))
			return ok || err != nil
		})
		require.NoError(t, c.Close())
		for i := range 2 {
			w.eps[(n/4+i)%2].Leave(k.Comm)
		}
		if n == 9 { // what is kept for good, such as the pieces of pools, is there by now
			w.drive("the first connections to be over", func() bool { return w.held().conns == 0 })
			w.try(patience/300, func() bool { return false })
			was, fds = w.held(), descriptors()
		}
	}
	w.drive("nothing to be left", func() bool {
		now := w.held()
		return now.conns == 0 && now.memory <= was.memory && descriptors() <= fds
	})
}
