package tcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// remember has an endpoint remember fewer keys.
func remember(e transport.Endpoint, most int) *endpoint {
	own := e.(*endpoint)
	own.mu.Lock()
	defer own.mu.Unlock()
	own.remembers = most
	return own
}

// channel is the ends of a pair of ranks on a channel.
func channel(n, self int) transport.Key {
	return transport.Key{Channel: int32(n), Self: int32(self), Peer: int32(1 - self)}
}

// TestClosedConnsAreForgotten: an endpoint outlives many communicators, and keeps of their connections no more than the latest keys; a peer that
// comes first with one more is let in however many there were, or are.
func TestClosedConnsAreForgotten(t *testing.T) {
	const most = 4
	a, b := remember(openAt(t, Config{}, small), most), remember(openAt(t, Config{}, small), most)
	empty := a.Stats().Memory
	for n := range 3 * most {
		x, err := a.Conn(channel(n, 0), b.Address())
		require.NoError(t, err)
		wait(t, "the connection", x.(*conn).ready, a) // the peer's user has not asked yet
		y, err := b.Conn(channel(n, 1), a.Address())
		require.NoError(t, err)
		pass(t, x.Stream(0), y.Stream(0), 100, a, b)
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
		wait(t, "both ends to be gone", func() bool { return x.(*conn).gone && y.(*conn).gone }, a, b)
		_, err = a.Conn(channel(n, 0), b.Address())
		require.ErrorIs(t, err, transport.ErrClosed)
	}
	for _, e := range []*endpoint{a, b} {
		require.Empty(t, e.conns)
		require.Empty(t, e.meets)
		require.Equal(t, most, e.past.Len())
		require.Equal(t, empty, e.Stats().Memory)
	}
	for n := range 2 * most { // those that are open do not count
		x, err := a.Conn(channel(100+n, 0), b.Address())
		require.NoError(t, err)
		y, err := b.Conn(channel(100+n, 1), a.Address())
		require.NoError(t, err)
		pass(t, x.Stream(0), y.Stream(0), 100, a, b)
	}
	require.Zero(t, b.unasked)
	for n := range most + 1 { // but those that nobody has asked for do
		x, err := a.Conn(channel(200+n, 0), b.Address())
		require.NoError(t, err)
		if n < most {
			wait(t, "the connection", x.(*conn).ready, a)
			continue
		}
		wait(t, "the refusal", func() bool { _, err = x.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a)
		require.ErrorIs(t, err, transport.ErrGone)
		require.ErrorContains(t, err, "4 connections are known already that nobody has asked for")
	}
}

// TestUnusedEndLeaves: the peer of a connection whose end nobody has asked for learns that its endpoint was closed, whatever it has sent there;
// it must not look like a death.
func TestUnusedEndLeaves(t *testing.T) {
	for _, flows := range []int{1, 3} {
		for _, bytes := range []int{0, 100, 1 << 20} {
			a, b := openAt(t, Config{Flows: flows}, small), openAt(t, Config{Flows: flows}, small)
			x, err := a.Conn(transport.Key{Self: 0, Peer: 1}, b.Address())
			require.NoError(t, err)
			wait(t, "the connection", x.(*conn).ready, a)
			wait(t, "its other end", func() bool {
				e := b.(*endpoint)
				e.mu.Lock()
				defer e.mu.Unlock()
				m := e.meets[transport.Key{Self: 1, Peer: 0}]
				return m != nil && m.link != nil
			})
			if bytes > 0 {
				_, err := x.Stream(1).Send(1, bufOf(make([]byte, bytes)))
				require.NoError(t, err)
				a.Progress()
			}
			require.NoError(t, b.Close())
			wait(t, "the error", func() bool { _, err = x.Stream(0).Recv(1, bufOf(make([]byte, 8))); return err != nil }, a)
			require.ErrorIs(t, err, transport.ErrLeft)
		}
	}
}

// TestLateForAClosedConn: who asks for a connection that its peer has closed meanwhile is told at once.
func TestLateForAClosedConn(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	nobody := address{at: netip.MustParseAddrPort("127.0.0.1:1"), instance: 1} // so that a does not get through before it closes
	x, err := a.Conn(transport.Key{Self: 0, Peer: 1}, nobody.bytes())
	require.NoError(t, err)
	require.NoError(t, x.Close())
	require.Empty(t, a.(*endpoint).meets)
	y, err := b.Conn(transport.Key{Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	wait(t, "the error", func() bool { _, err = y.Stream(0).Recv(1, transport.Buf{}); return err != nil }, b)
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorContains(t, err, "closed the connection")
}

// TestOwnFailure: what ends a connection because our process lacks it is not said of the peer.
func TestOwnFailure(t *testing.T) {
	receive := func(c transport.Conn, e transport.Endpoint) (err error) {
		wait(t, "the error", func() bool { _, err = c.Stream(0).Recv(1, transport.Buf{}); return err != nil }, e)
		return err
	}
	own := func(err error) {
		t.Helper()
		var o *transport.OwnError
		require.ErrorAs(t, err, &o)
		require.Equal(t, 0, o.Rank)
		require.NotErrorIs(t, err, transport.ErrGone)
	}
	t.Run("of a socket that was there", func(t *testing.T) {
		a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
		socket, err := net.Dial("tcp", b.(*endpoint).address.at.String())
		require.NoError(t, err)
		socket.Close() // so that its descriptor cannot be had
		e, k := a.(*endpoint), transport.Key{Self: 0, Peer: 1}
		e.mu.Lock()
		e.establish(e.meet(k), []net.Conn{socket}, 64<<10)
		e.mu.Unlock()
		c, err := a.Conn(k, b.Address())
		require.NoError(t, err)
		own(receive(c, a))
	})
	t.Run("of one that there never was", func(t *testing.T) {
		a, b := openAt(t, Config{ConnectTimeout: time.Second}, small), openAt(t, Config{}, small)
		var had unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: had.Max}))
		defer unix.Setrlimit(unix.RLIMIT_NOFILE, &had)
		c, err := a.Conn(transport.Key{Self: 0, Peer: 1}, b.Address())
		require.NoError(t, err)
		err = receive(c, a)
		own(err)
		require.ErrorIs(t, err, unix.EMFILE)
	})
}
