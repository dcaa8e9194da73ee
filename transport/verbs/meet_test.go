//go:build linux && cgo

package verbs

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestClosedConnsAreForgotten: an endpoint outlives many communicators, and keeps of their connections no more than the latest keys; a peer that
// comes first with one more is let in however many there were, or are.
func TestClosedConnsAreForgotten(t *testing.T) {
	const most = 4
	e := &endpoint{ctx: context.Background(), epoll: -1, event: -1, meets: map[transport.Key]*meet{}, remembers: most}
	channel := func(n int) transport.Key { return transport.Key{Channel: int32(n), Self: 1} }
	comes := func(n int) (verdict, string) { return e.admit(channel(n), &hello{kind: kindOffer}) }
	ask := func(n int) *conn {
		e.mu.Lock()
		defer e.mu.Unlock()
		m := e.meet(channel(n))
		if m.conn == nil {
			e.join(m, newConn(e, m.key, address{}))
		}
		return m.conn
	}
	for n := range 3 * most {
		v, reason := comes(n)
		require.Equal(t, welcome, v, reason)
		c := ask(n)
		require.NoError(t, c.Close())
		require.True(t, c.gone)
		v, reason = comes(n)
		require.Equal(t, left, v)
		require.Contains(t, reason, "rank 1 has closed the connection")
		require.ErrorIs(t, e.establish(c.key, &link{}), errLater)
		e.roomFor(c.key, 0)
		require.False(t, e.fail(c.key, context.Canceled))
	}
	require.Empty(t, e.conns)
	require.Empty(t, e.meets)
	require.Zero(t, e.unasked)
	require.Equal(t, most, e.past.Len())
	for n := range 2 * most { // those that are open do not count
		v, reason := comes(100 + n)
		require.Equal(t, welcome, v, reason)
		ask(100 + n)
	}
	for n := range most + 1 { // but those that nobody has asked for do
		v, reason := comes(200 + n)
		if n < most {
			require.Equal(t, welcome, v, reason)
			continue
		}
		require.Equal(t, noEntry, v)
		require.Contains(t, reason, "4 connections are known already that nobody has asked for")
		require.False(t, e.fail(channel(200+n), context.Canceled))
	}
}

// TestUnusedEndLeaves: the peer of a connection whose end nobody has asked for learns that its endpoint was closed; it must not look like a death.
func TestUnusedEndLeaves(t *testing.T) {
	recv := func(a *endpoint, c transport.Conn) (err error) {
		in := message(8)
		for deadline := time.Now().Add(patience); err == nil; time.Sleep(50 * time.Microsecond) {
			require.False(t, time.Now().After(deadline), "the error")
			a.Progress()
			_, err = c.Stream(0).Recv(1, bufOf(in))
		}
		return err
	}
	t.Run("over TCP", func(t *testing.T) { // which needs no device
		a, b := net.Pipe()
		ends := detoured(a, b, 1<<10, 2)
		for _, c := range ends {
			defer c.e.watchers.Wait()
			defer c.link.shut()
			q := c.link.queues[0]
			q.broken, q.told, q.theirs, q.redone, c.link.broke, c.link.live = true, true, true, true, true, 0
			c.link.detour()
		}
		ok, err := ends[0].Stream(1).Send(1, bufOf(message(100)))
		require.NoError(t, err)
		require.True(t, ok)
		e, l := ends[1].e, ends[1].link
		e.conns, l.conn = nil, nil // as before Conn
		e.ctx, e.cancel = context.WithCancel(context.Background())
		e.over, e.config.Linger = make(chan struct{}), patience
		e.listener, err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		e.meets = map[transport.Key]*meet{}
		m := e.meet(ends[1].key)
		m.link, m.over = l, true
		require.NoError(t, e.Close())
		require.ErrorIs(t, recv(ends[0].e, ends[0]), transport.ErrLeft)
	})
	t.Run("over a device", func(t *testing.T) {
		needDevices(t, 1)
		for _, bytes := range []int{0, 100, 100_000} {
			var eps [2]*endpoint
			for i := range eps {
				e, err := Open(small(), testOptions())
				require.NoError(t, err)
				defer func() { require.NoError(t, e.Close()) }()
				eps[i] = e.(*endpoint)
			}
			c, err := eps[0].Conn(transport.Key{Comm: 7, Self: 0, Peer: 1}, eps[1].Address())
			require.NoError(t, err)
			deadline := time.Now().Add(patience)
			for there := false; !there; {
				require.False(t, time.Now().After(deadline), "the connection")
				eps[0].Progress()
				eps[1].mu.Lock()
				m := eps[1].meets[transport.Key{Comm: 7, Self: 1, Peer: 0}]
				there = m != nil && m.link != nil && c.(*conn).ready()
				eps[1].mu.Unlock()
				time.Sleep(time.Millisecond)
			}
			if bytes > 0 {
				ok, err := c.Stream(1).Send(1, bufOf(message(bytes)))
				require.NoError(t, err)
				require.True(t, ok)
			}
			require.NoError(t, eps[1].Close())
			require.ErrorIs(t, recv(eps[0], c), transport.ErrLeft)
		}
	})
}

// TestOwnShortage: what our own end lacks for a connection is not said of the peer, which is told whose failure it is.
func TestOwnShortage(t *testing.T) {
	e := &endpoint{epoll: -1, event: -1, meets: map[transport.Key]*meet{}, budget: 10, secret: []byte("secret"), options: testOptions()}
	var err error
	e.config, err = small().validate()
	require.NoError(t, err)
	e.pool = &pool{size: 1 << 20, config: Config{Pool: 1}}
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	own := func(k transport.Key) {
		t.Helper()
		var o *transport.OwnError
		require.ErrorAs(t, e.meets[k].err, &o)
		require.EqualValues(t, k.Self, o.Rank)
		require.ErrorIs(t, o, transport.ErrSpace)
		require.NotErrorIs(t, e.meets[k].err, transport.ErrGone)
	}
	t.Run("as the one that is asked", func(t *testing.T) {
		h := e.hello(transport.Key{Self: 0, Peer: 1})
		h.kind, h.records = kindOffer, []record{{}}
		l, r := e.consider(&h)
		require.Nil(t, l)
		require.Equal(t, noEntry, r.verdict)
		require.Contains(t, r.reason, "rank 1's own failure")
		own(transport.Key{Self: 1, Peer: 0})
	})
	t.Run("as the one that offers", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var peer sync.WaitGroup
		defer peer.Wait()
		defer listener.Close()
		gate := &auth.Gate{Secret: e.secret, Service: service}
		peer.Go(func() { gate.Serve(listener, func(c net.Conn) { c.Close() }) })
		k := transport.Key{Channel: 1, Self: 0, Peer: 1}
		e.mu.Lock()
		m := e.meet(k)
		e.mu.Unlock()
		e.search(m.setUp, m, address{at: listener.Addr().(*net.TCPAddr).AddrPort(), ports: 1, qps: 1}, false)
		own(k)
	})
}
