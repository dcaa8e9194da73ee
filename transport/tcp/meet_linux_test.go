package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
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

// TestLeftConnsAreForgotten: what peers have connected for a communicator that our user leaves, or connect later, stays at neither end, and what is
// remembered of those left is bounded.
func TestLeftConnsAreForgotten(t *testing.T) {
	const most, comms = 4, 20
	a, b := remember(openAt(t, Config{}, small), most), remember(openAt(t, Config{}, small), most)
	for n := range comms {
		k := transport.Key{Comm: uint64(n), Self: int32(n % 2), Peer: int32(1 - n%2)}
		if n%4 < 2 {
			b.Leave(k.Comm)
		}
		x, err := a.Conn(k, b.Address())
		require.NoError(t, err)
		if n%4 >= 2 {
			wait(t, "the connection", x.(*conn).ready, a)
			b.Leave(k.Comm)
		}
		wait(t, "the error", func() bool { _, err = x.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a, b)
		require.ErrorIs(t, err, transport.ErrLeft)
		require.NoError(t, x.Close())
		a.Leave(k.Comm)
		_, err = b.Conn(transport.Key{Comm: k.Comm, Self: k.Peer, Peer: k.Self}, a.Address())
		require.ErrorIs(t, err, transport.ErrClosed)
	}
	for _, e := range []*endpoint{a, b} {
		wait(t, "nothing to be left", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.meets) == 0 && len(e.conns) == 0 && e.unasked == 0
		}, a, b)
		require.LessOrEqual(t, e.past.Len(), 2*most)
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

// TestOwnSockets: that memory of ours cannot be read, or that our kernel does not watch a socket, is not said of the peer either.
func TestOwnSockets(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	for name, f := range map[string]func(x transport.Conn) error{
		"send": func(x transport.Conn) error {
			_, err := x.Stream(0).Send(1, bufOf(memory))
			return err
		},
		"watch": func(x transport.Conn) error {
			c := x.(*conn)
			defer func(epoll int) { c.endpoint.epoll = epoll }(c.endpoint.epoll)
			c.endpoint.epoll = -1
			c.watch()
			_, err := x.Stream(0).Recv(1, bufOf(make([]byte, 8)))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
			x, y := connect(t, a, b)
			pass(t, x.Stream(1), y.Stream(1), 8, a, b)
			var err error
			wait(t, "the error", func() bool {
				err = f(x)
				return err != nil
			}, b)
			require.NotErrorIs(t, err, transport.ErrGone)
			var o *transport.OwnError
			require.ErrorAs(t, err, &o)
			require.Equal(t, 0, o.Rank)
		})
	}
}

// scarce has the process find no descriptor any more, until enough is called.
func scarce(t *testing.T) (enough func()) {
	var had unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: had.Max}))
	enough = sync.OnceFunc(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &had) })
	t.Cleanup(enough)
	return enough
}

// introduced is a socket to e on which the hello of rank 0, for rank 1, is still to be said, and that hello.
func introduced(t *testing.T, e *endpoint) (net.Conn, []byte) {
	socket, err := net.Dial("tcp", e.address.at.String())
	require.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	require.NoError(t, auth.Client(socket, small.Secret, service))
	h := e.hello(transport.Key{Self: 0, Peer: 1})
	h.attempt, h.instance, h.flows = 7, e.address.instance, 1
	return socket, h.bytes()
}

func hear(t *testing.T, c net.Conn, n int) []byte {
	b := make([]byte, n)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return b
}

// TestNoDescriptorIsLeft: who has no descriptor for a connection has not said that there is one, or the peer would take the end of it for a death. It is
// there when there is a descriptor again.
func TestNoDescriptorIsLeft(t *testing.T) {
	t.Run("of the one that is asked", func(t *testing.T) {
		b := openAt(t, Config{}, small)
		socket, hello := introduced(t, b.(*endpoint))
		enough := scarce(t)
		_, err := socket.Write(hello)
		require.NoError(t, err)
		answer := hear(t, socket, welcomeSize)
		enough()
		r, err := parseReply(answer)
		require.NoError(t, err)
		require.Equal(t, later, r.verdict)
		require.Contains(t, r.reason, "rank 1's own failure")
		require.Contains(t, r.reason, "too many open files")
		socket, hello = introduced(t, b.(*endpoint))
		_, err = socket.Write(hello)
		require.NoError(t, err)
		r, err = parseReply(hear(t, socket, welcomeSize))
		require.NoError(t, err)
		require.Equal(t, welcome, r.verdict)
	})
	t.Run("of the one that asks", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		a := openAt(t, Config{}, small)
		peer := address{at: l.Addr().(*net.TCPAddr).AddrPort(), instance: 5}
		x, err := a.Conn(transport.Key{Self: 0, Peer: 1}, peer.bytes())
		require.NoError(t, err)
		for _, short := range []bool{true, false} {
			c, err := l.Accept()
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, auth.Server(c, small.Secret, service))
			hear(t, c, helloSize)
			enough := func() {}
			if short {
				enough = scarce(t)
			}
			_, err = c.Write((&reply{verdict: welcome, window: 1 << 20}).bytes())
			require.NoError(t, err)
			var b [commitSize]byte
			require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
			n, err := io.ReadFull(c, b[:])
			enough()
			if short {
				require.Zero(t, n, "nothing is promised")
				require.Error(t, err)
			} else {
				require.Equal(t, commitMagic, string(b[:n]))
			}
		}
		wait(t, "the connection", x.(*conn).ready, a)
	})
}

// TestClosedOnTheWay: a peer that was told that it is welcome, and has committed, is told goodbye if our user has closed the connection meanwhile, or
// the endpoint.
func TestClosedOnTheWay(t *testing.T) {
	nobody := address{at: netip.MustParseAddrPort("127.0.0.1:1"), instance: 1}
	b := openAt(t, Config{}, small)
	y, err := b.Conn(transport.Key{Self: 1, Peer: 0}, nobody.bytes())
	require.NoError(t, err)
	socket, hello := introduced(t, b.(*endpoint))
	_, err = socket.Write(hello)
	require.NoError(t, err)
	hear(t, socket, welcomeSize)
	require.NoError(t, y.Close())
	_, err = socket.Write([]byte(commitMagic))
	require.NoError(t, err)
	var h header
	require.NoError(t, h.parse(hear(t, socket, headerSize), small.Streams, uint32(small.MaxMessage)))
	require.EqualValues(t, kindBye, h.kind)
}

// TestFailedOnTheWay: nor is it told goodbye where the search failed meanwhile, whether or not our user has closed the connection since.
func TestFailedOnTheWay(t *testing.T) {
	for name, closes := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			nobody := address{at: netip.MustParseAddrPort("127.0.0.1:1"), instance: 1}
			b := openAt(t, Config{ConnectTimeout: 500 * time.Millisecond}, small)
			socket, hello := introduced(t, b.(*endpoint))
			_, err := socket.Write(hello)
			require.NoError(t, err)
			hear(t, socket, welcomeSize)
			y, err := b.Conn(transport.Key{Self: 1, Peer: 0}, nobody.bytes())
			require.NoError(t, err)
			wait(t, "the failure", func() bool { _, err = y.Stream(0).Recv(1, transport.Buf{}); return err != nil }, b)
			require.NotErrorIs(t, err, transport.ErrLeft)
			if closes {
				require.NoError(t, y.Close())
				require.Empty(t, b.(*endpoint).meets)
			}
			_, err = socket.Write([]byte(commitMagic))
			require.NoError(t, err)
			_, err = socket.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

// TestGoodbyeOfAClosedSocket: the end of a search closes its sockets by their contexts, perhaps before one of them says goodbye.
func TestGoodbyeOfAClosedSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	theirs, err := l.Accept()
	require.NoError(t, err)
	defer theirs.Close()
	twin, err := newTwin(ours)
	require.NoError(t, err)
	require.NoError(t, ours.Close())
	twin.part()
	var h header
	require.NoError(t, h.parse(hear(t, theirs, headerSize), small.Streams, uint32(small.MaxMessage)))
	require.EqualValues(t, kindBye, h.kind)
	_, err = theirs.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
