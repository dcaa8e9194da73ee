//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
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

// TestLeftIsForgotten: of a communicator that our user leaves nothing stays that peers came for, and who comes later is told.
func TestLeftIsForgotten(t *testing.T) {
	const most = 4
	e := &endpoint{ctx: context.Background(), epoll: -1, event: -1, meets: map[transport.Key]*meet{}, remembers: most}
	for n := range uint64(3 * most) {
		k := transport.Key{Comm: n, Self: 1}
		v, reason := e.admit(k, &hello{kind: kindOffer})
		require.Equal(t, welcome, v, reason)
		m := e.meets[k]
		for range 2 {
			e.Leave(n)
		}
		require.Error(t, m.setUp.Err())
		require.Empty(t, e.meets)
		require.Zero(t, e.unasked)
		v, reason = e.admit(k, &hello{kind: kindOffer})
		require.Equal(t, left, v)
		require.Contains(t, reason, "rank 1 has closed the connection")
		require.ErrorIs(t, e.establish(k, &link{}), errLater, "what was under way")
		require.Empty(t, e.meets)
	}
	require.Equal(t, most, e.past.Len())
	require.Empty(t, e.conns)
}

// deviceless is an endpoint whose device has failed, so that its connections go over TCP.
func deviceless(t *testing.T) *endpoint {
	c := small()
	c.Fallback, c.Log = true, slog.New(slog.DiscardHandler)
	c, err := c.validate()
	require.NoError(t, err)
	e := &endpoint{config: c, options: testOptions(), secret: []byte("secret"), epoll: -1, event: -1, meets: map[transport.Key]*meet{}, over: make(chan struct{}), budget: 100}
	n := &nic{device: &ibv.Device{}, queues: map[uint32]*queue{}, port: ibv.Port{LinkLayer: ibv.Ethernet}, mtu: 5}
	n.take = func([]ibv.Completion) (int, error) { return 0, nil }
	n.fail(errors.New("there is none"))
	e.nics, e.cache = []*nic{n}, newCache(nil, c)
	e.pool, err = newPool(nil, 2*c.layout(e.options.Streams), c)
	require.NoError(t, err)
	e.address = address{link: ibv.Ethernet, ports: 1, qps: 1, instance: 5}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	require.NoError(t, e.listen())
	gate := &auth.Gate{Secret: e.secret, Service: service}
	e.wg.Go(func() { gate.Serve(e.listener, e.greet) })
	t.Cleanup(func() {
		e.nics = nil // nor is it here
		require.NoError(t, e.Close())
	})
	return e
}

// TestClosedOnTheWay: a peer to which the connection is there, since it was welcome and has committed, or has heard the commit, learns that our user has
// closed it meanwhile, or the endpoint: it must not look like a death. Where the connection failed, nothing is said.
func TestClosedOnTheWay(t *testing.T) {
	nobody := address{at: netip.MustParseAddrPort("127.0.0.1:1"), link: ibv.Ethernet, ports: 1, qps: 1, instance: 1}
	vacant := goodRecord()
	vacant.qpn = 0
	// hears demands goodbyes, or none, and the end.
	hears := func(t *testing.T, socket net.Conn, goodbye bool) {
		t.Helper()
		socket.SetDeadline(time.Now().Add(patience))
		b, err := io.ReadAll(socket)
		require.NoError(t, err)
		if !goodbye {
			require.Empty(t, b)
			return
		}
		l := bare(testOptions().Streams)
		ours, theirs := net.Pipe()
		l.socket, l.e.event = ours, -1
		go func() {
			theirs.Write(b)
			theirs.Close()
		}()
		require.ErrorIs(t, l.frames(), io.EOF)
		l.e.work()
		require.NoError(t, l.failed)
		require.True(t, l.left())
	}
	for what, goodbye := range map[string]bool{"conn": true, "endpoint": true, "failure": false} {
		t.Run("after its welcome, "+what, func(t *testing.T) {
			e := deviceless(t)
			y, err := e.Conn(transport.Key{Self: 1, Peer: 0}, nobody.bytes())
			require.NoError(t, err)
			socket, err := net.Dial("tcp", e.address.at.String())
			require.NoError(t, err)
			defer socket.Close()
			require.NoError(t, auth.Client(socket, e.secret, service))
			h := e.hello(transport.Key{Self: 0, Peer: 1})
			h.kind, h.instance, h.queues, h.records = kindOffer, e.address.instance, 1, []record{vacant}
			r, err := e.tell(socket, &h)
			require.NoError(t, err)
			require.Equal(t, welcome, r.verdict, r.reason)
			switch what {
			case "conn":
				require.NoError(t, y.Close())
			case "endpoint":
				e.nics = nil // it is no device that could be closed
				require.NoError(t, e.Close())
			case "failure":
				require.True(t, e.fail(y.(*conn).key, transport.ErrGone))
			}
			socket.Write([]byte(commitMagic))
			hears(t, socket, goodbye)
		})
		t.Run("after its commit, "+what, func(t *testing.T) {
			e := deviceless(t)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer listener.Close()
			there := nobody
			there.at = listener.Addr().(*net.TCPAddr).AddrPort()
			x, err := e.Conn(transport.Key{Self: 0, Peer: 1}, there.bytes())
			require.NoError(t, err)
			socket, err := listener.Accept()
			require.NoError(t, err)
			defer socket.Close()
			require.NoError(t, auth.Server(socket, e.secret, service))
			_, err = io.ReadFull(socket, make([]byte, helloSize+recordSize))
			require.NoError(t, err)
			e.mu.Lock()
			answer(socket, reply{verdict: welcome, records: []record{vacant}})
			_, err = io.ReadFull(socket, make([]byte, len(commitMagic)))
			switch what {
			case "conn":
				e.end(e.meets[x.(*conn).key], errLeftBefore) // as Close does
			case "endpoint":
				e.closed = true // as Close does
				e.cancel()
				defer func() {
					e.mu.Lock()
					e.closed = false
					e.mu.Unlock()
				}()
			case "failure":
				e.end(e.meets[x.(*conn).key], transport.ErrGone)
			}
			e.mu.Unlock()
			require.NoError(t, err)
			hears(t, socket, goodbye)
		})
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
