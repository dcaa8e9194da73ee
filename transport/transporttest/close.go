package transporttest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// testConnClosed: what was sent before Close arrives, then ErrGone, for streams
// that wait to receive and, in the end, for streams that send.
func testConnClosed(t *testing.T, open Provider) {
	for _, n := range []int{8, 5000, 200 << 10} {
		w := newWorld(t, open, 2, defaults())
		a, b := w.pair()
		w.send(b.Stream(0), 1, pattern(9, 8))
		w.same(pattern(9, 8), w.receive(a.Stream(0), 1, 8), "before")
		messages := [3][]byte{pattern(0, n), pattern(1, n), pattern(2, n)}
		for _, m := range messages {
			w.send(a.Stream(0), 1, m)
		}
		w.send(b.Stream(1), 1, pattern(3, n)) // never read by a: must not spoil what a sent
		require.NoError(t, a.Close())
		require.NoError(t, a.Close(), "twice")
		for k := range messages {
			w.same(pattern(uint64(k), n), w.receive(b.Stream(0), 1, n), "message %d sent before Close", k)
		}
		err := w.recvError(b.Stream(0), 1, n)
		require.ErrorIs(t, err, transport.ErrGone)
		w.requirePeer(err, key(1, 0))
		require.ErrorIs(t, w.recvError(b.Stream(3), 1, 0), transport.ErrGone, "a stream never used before")
		require.ErrorIs(t, w.sendError(b.Stream(2), 1, 8), transport.ErrGone)

		_, err = a.Stream(0).Send(1, lend(messages[0]))
		require.ErrorIs(t, err, transport.ErrClosed)
		_, err = a.Stream(0).Recv(1, lend(messages[0]))
		require.ErrorIs(t, err, transport.ErrClosed)
		_, err = a.Stream(1).View(1, 8)
		require.ErrorIs(t, err, transport.ErrClosed)
		require.NoError(t, b.Close())
		w.close()
	}
}

// testLeft: whoever closes a connection in good order has left, whether we were connected then, came later, or found an endpoint closed: it is no death.
func testLeft(t *testing.T, open Provider) {
	for name, order := range map[string]struct{ connect, talk, endpoint bool }{
		"before we come":                {},
		"before we come, with words":    {talk: true},
		"when we are there":             {connect: true},
		"when we are there, with words": {connect: true, talk: true},
		"with the endpoint":             {connect: true, endpoint: true},
		"with the endpoint, with words": {connect: true, talk: true, endpoint: true},
	} {
		for peer := range 2 {
			t.Run(fmt.Sprintf("%s, rank %d", name, peer), func(t *testing.T) {
				w := newWorld(t, open, 2, defaults())
				theirs := w.conn(peer, 1-peer)
				var ours transport.Conn
				if order.connect {
					ours = w.conn(1-peer, peer)
					w.send(ours.Stream(1), 1, pattern(1, 8))
					w.same(pattern(1, 8), w.receive(theirs.Stream(1), 1, 8), "the connection is there")
				}
				if order.talk {
					w.send(theirs.Stream(0), 1, pattern(2, 8))
				}
				if order.endpoint {
					require.NoError(t, w.eps[peer].Close())
				} else {
					require.NoError(t, theirs.Close())
				}
				if ours == nil {
					ours = w.conn(1-peer, peer)
				}
				if order.talk {
					w.same(pattern(2, 8), w.receive(ours.Stream(0), 1, 8), "sent before")
				}
				require.ErrorIs(t, w.recvError(ours.Stream(0), 1, 8), transport.ErrLeft)
				require.ErrorIs(t, w.sendError(ours.Stream(2), 1, 8), transport.ErrLeft)
				require.NoError(t, ours.Close())
			})
		}
	}
}

func testEndpointClosed(t *testing.T, open Provider) {
	for _, n := range []int{8, 5000} {
		w := newWorld(t, open, 3, defaults())
		a, b := w.pair()
		c := w.conn(2, 1)
		other := w.conn(1, 2)
		w.send(b.Stream(0), 1, pattern(9, 8))
		w.same(pattern(9, 8), w.receive(a.Stream(0), 1, 8), "before")
		for k := range uint64(3) {
			w.send(a.Stream(0), 1, pattern(k, n))
		}
		w.sent(a.Stream(0), 3)
		require.NoError(t, w.eps[0].Close())
		for k := range uint64(3) {
			w.same(pattern(k, n), w.receive(b.Stream(0), 1, n), "message %d sent before Close", k)
		}
		require.ErrorIs(t, w.recvError(b.Stream(0), 1, n), transport.ErrGone)
		require.ErrorIs(t, w.sendError(b.Stream(2), 1, 8), transport.ErrGone)

		w.send(c.Stream(0), 1, pattern(4, n))
		w.same(pattern(4, n), w.receive(other.Stream(0), 1, n), "between those who stay")
		w.close()
	}
}

// testClosedWhileSending: a peer that goes while we have more to send than it
// ever reads is an error at the sender, who gets its memory back.
func testClosedWhileSending(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 4 << 20
	w := newWorld(t, open, 2, o)
	a, b := w.pair()
	w.send(b.Stream(0), 1, pattern(9, 8))
	w.same(pattern(9, 8), w.receive(a.Stream(0), 1, 8), "before")
	message := pattern(0, o.MaxMessage)
	accepted := uint64(0)
	w.try(patience/300, func() bool {
		ok, err := a.Stream(0).Send(1, lend(message))
		require.NoError(t, err)
		if ok {
			accepted++
		}
		return accepted == 50
	})
	require.NoError(t, w.eps[1].Close())
	require.ErrorIs(t, w.sendError(a.Stream(0), 1, o.MaxMessage), transport.ErrGone)
	require.ErrorIs(t, w.recvError(a.Stream(1), 1, 8), transport.ErrGone)
}

// testCloseOwn: our own Close, with receives waiting, views out and messages
// under way, ends everything with ErrClosed, never a panic.
func testCloseOwn(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	message := pattern(0, 100<<10)
	w.send(a.Stream(0), 1, message)
	w.send(a.Stream(1), 1, message[:8])
	var viewed bool
	w.drive("a view", func() bool {
		p, err := b.Stream(1).View(1, 8)
		require.NoError(t, err)
		viewed = p != nil
		return viewed
	})
	got := make([]byte, 100<<10)
	ok, err := b.Stream(2).Recv(1, lend(got))
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, w.eps[1].Close())
	_, err = b.Stream(2).Recv(1, lend(got))
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = b.Stream(0).View(1, 8)
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = b.Stream(3).Send(1, lend(got))
	require.ErrorIs(t, err, transport.ErrClosed)
	b.Stream(1).Release()
	b.Stream(2).Release()
	w.eps[1].Progress()
	w.eps[1].Stats()
	require.NoError(t, b.Close())
	_, err = w.eps[1].Conn(key(1, 0), w.eps[0].Address())
	require.ErrorIs(t, err, transport.ErrClosed)
	require.NotEmpty(t, b.Peer())
}

func testCloseTwice(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, _ := w.pair()
	w.send(a.Stream(0), 1, pattern(0, 8))
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if err := w.eps[i%2].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, e := range w.eps {
		require.NoError(t, e.Close())
	}
	lone := newWorld(t, open, 1, defaults())
	require.NoError(t, lone.eps[0].Close(), "an endpoint that was never used")
}
