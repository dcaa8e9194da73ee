package tcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const patience = time.Minute

// wait calls step, and Progress of the endpoints, until it reports true.
func wait(t testing.TB, what string, step func() bool, eps ...transport.Endpoint) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !step() {
		for _, e := range eps {
			e.Progress()
		}
		if time.Now().After(deadline) {
			require.FailNow(t, "waited too long for "+what)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func openAt(t testing.TB, c Config, o transport.Options) transport.Endpoint {
	if !c.Addr.IsValid() {
		c.Addr = netip.MustParseAddr("127.0.0.1")
	}
	e, err := Open(c, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func connect(t testing.TB, a, b transport.Endpoint) (transport.Conn, transport.Conn) {
	x, err := a.Conn(transport.Key{Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	y, err := b.Conn(transport.Key{Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	return x, y
}

// pass sends a message from x to y and checks it.
func pass(t testing.TB, x, y transport.Stream, n int, eps ...transport.Endpoint) {
	t.Helper()
	out, in := bytes.Repeat([]byte{7}, n), make([]byte, n)
	sent := false
	wait(t, "a message", func() bool {
		var err error
		if !sent {
			sent, err = x.Send(1, bufOf(out))
			require.NoError(t, err)
		}
		got, err := y.Recv(1, bufOf(in))
		require.NoError(t, err)
		return got
	}, eps...)
	require.True(t, bytes.Equal(out, in))
}

var small = transport.Options{Streams: 2, MaxMessage: 1 << 20, Secret: []byte("the secret of this job")}

// log is a place for log lines that goroutines may share.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

// TestUC19_Strangers: scanners of all kinds on the port neither keep ranks from
// connecting nor disturb them afterwards, and cost one log line per kind.
func TestUC19_Strangers(t *testing.T) {
	var lines log
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	a := openAt(t, Config{Log: logger}, small)
	b := openAt(t, Config{Log: logger}, small)
	before := a.Stats().Memory
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			c.Close()
		}
	}()
	strangers := func(at string, quiet int) {
		for _, first := range [][]byte{
			{0}, []byte("12345678"), []byte("GET / HTTP/1.0\r\n\r\n"), make([]byte, 1<<20),
			{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, []byte("gcclAUT1"), bytes.Repeat([]byte("gcclAUT1"), 9), nil,
		} {
			c, err := net.Dial("tcp", at)
			require.NoError(t, err)
			c.SetDeadline(time.Now().Add(5 * time.Second))
			c.Write(first)
			if first == nil {
				c.(*net.TCPConn).SetLinger(0) // a reset
			}
			c.Close()
		}
		for range quiet {
			c, err := net.Dial("tcp", at)
			require.NoError(t, err)
			silent = append(silent, c)
		}
	}
	for _, e := range []transport.Endpoint{a, b} {
		strangers(e.(*endpoint).address.at.String(), 200)
	}
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 100, a, b)
	for _, e := range []transport.Endpoint{a, b} {
		strangers(e.(*endpoint).address.at.String(), 0)
	}
	pass(t, y.Stream(1), x.Stream(1), 100000, a, b)
	require.Less(t, a.Stats().Memory-before, int64(2<<20+200<<10))
	for _, line := range lines.lines() {
		require.NotContains(t, line, "level=ERROR")
	}
	require.Less(t, len(lines.lines()), 40, "%s", lines.lines())
}

// TestWrongSecret: both ends are told, at once, that the secrets differ.
func TestWrongSecret(t *testing.T) {
	for _, other := range [][]byte{[]byte("another"), nil} {
		o := small
		o.Secret = other
		a, b := openAt(t, Config{}, small), openAt(t, Config{}, o)
		x, y := connect(t, a, b)
		for _, c := range []transport.Conn{x, y} {
			var err error
			wait(t, "the error", func() bool { _, err = c.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a, b)
			require.ErrorIs(t, err, transport.ErrGone)
			require.ErrorIs(t, err, auth.ErrSecret)
			require.ErrorContains(t, err, c.Peer())
		}
	}
}

// TestUnauthenticated: without a secret ranks still find each other.
func TestUnauthenticated(t *testing.T) {
	o := small
	o.Secret = nil
	a, b := openAt(t, Config{}, o), openAt(t, Config{}, o)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
}

// TestNobodyListens: the error says for how long we tried, and what the last
// attempt got.
func TestNobodyListens(t *testing.T) {
	a, b := openAt(t, Config{ConnectTimeout: time.Second}, small), openAt(t, Config{}, small)
	address := b.Address()
	require.NoError(t, b.Close())
	c, err := a.Conn(transport.Key{Self: 0, Peer: 1}, address)
	require.NoError(t, err)
	wait(t, "the error", func() bool { _, err = c.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a)
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	require.ErrorContains(t, err, "not connected within 1s")
	require.ErrorContains(t, err, c.Peer())
	_, err = c.Stream(1).Send(1, transport.Buf{})
	require.ErrorIs(t, err, transport.ErrGone)
}

// TestEarlierEndpoint: an address outlives its endpoint; another endpoint on the
// port is not mistaken for it.
func TestEarlierEndpoint(t *testing.T) {
	a := openAt(t, Config{}, small)
	b := openAt(t, Config{}, small)
	port := b.(*endpoint).address.at.Port()
	old := b.Address()
	require.NoError(t, b.Close())
	openAt(t, Config{Ports: [2]uint16{port, port}}, small)
	c, err := a.Conn(transport.Key{Self: 0, Peer: 1}, old)
	require.NoError(t, err)
	wait(t, "the error", func() bool { _, err = c.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a)
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorContains(t, err, "earlier endpoint")
}

func TestPorts(t *testing.T) {
	first := openAt(t, Config{}, small).(*endpoint).address.at.Port()
	for first > 65000 { // a range comes behind it
		first = openAt(t, Config{}, small).(*endpoint).address.at.Port()
	}
	_, err := Open(Config{Addr: netip.MustParseAddr("127.0.0.1"), Ports: [2]uint16{first, first}}, small)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.ErrorContains(t, err, fmt.Sprintf("127.0.0.1, ports %d to %d", first, first))
	e := openAt(t, Config{Ports: [2]uint16{first, first + 100}}, small).(*endpoint)
	require.Greater(t, e.address.at.Port(), first)
	require.LessOrEqual(t, e.address.at.Port(), first+100)
	_, err = Open(Config{Addr: netip.MustParseAddr("192.0.2.77")}, small)
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	require.ErrorContains(t, err, "192.0.2.77")
}

func TestIPv6(t *testing.T) {
	six := netip.MustParseAddr("::1")
	a, err := Open(Config{Addr: six}, small)
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	defer a.Close()
	b := openAt(t, Config{Addr: six}, small)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 50000, a, b)
	require.Contains(t, x.Peer(), "rank 1 at [::1]:")
	four := openAt(t, Config{}, small)
	require.ErrorContains(t, a.Reach(context.Background(), four.Address()), "IPv4")
	_, err = four.Conn(transport.Key{Self: 0, Peer: 1}, a.Address())
	require.ErrorContains(t, err, "IPv6")
}

// TestMeetRace lets both ends dial at the same moment, many times, with several
// sockets each, and without the higher rank's politeness the arbiter alone keeps
// one attempt.
func TestMeetRace(t *testing.T) {
	for _, flows := range []int{1, 3} {
		a, b := openAt(t, Config{Flows: flows}, small), openAt(t, Config{Flows: flows}, small)
		const conns = 60
		var all [2][conns]transport.Conn
		var wg sync.WaitGroup
		for side, e := range []transport.Endpoint{a, b} {
			peer := []transport.Endpoint{b, a}[side]
			wg.Go(func() {
				for i := range conns {
					time.Sleep(time.Duration((i*7+side*3)%11) * time.Millisecond)
					k := transport.Key{Channel: int32(i), Self: int32(side), Peer: int32(1 - side)}
					if i%2 == 1 { // the ranks change roles
						k.Self, k.Peer = k.Peer, k.Self
					}
					c, err := e.Conn(k, peer.Address())
					if err != nil {
						t.Error(err)
						return
					}
					all[side][i] = c
				}
			})
		}
		wg.Wait()
		for i := range conns {
			pass(t, all[0][i].Stream(0), all[1][i].Stream(0), 100, a, b)
			pass(t, all[1][i].Stream(1), all[0][i].Stream(1), 100, a, b)
		}
		for _, e := range []transport.Endpoint{a, b} {
			e := e.(*endpoint)
			wait(t, "the losers to be gone", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				left := 0
				for _, m := range e.meets {
					left += len(m.incoming)
				}
				return left == 0
			})
		}
	}
}

// deadlines notes the last one of a socket.
type deadlines struct {
	*net.TCPConn
	last atomic.Int64 // in ns since 1970
}

func (d *deadlines) SetDeadline(t time.Time) error {
	d.last.Store(t.UnixNano())
	return d.TCPConn.SetDeadline(t)
}

// TestAcceptorIsMorePatient: a dialler may commit just before its time is over, and counts on the acceptor then.
func TestAcceptorIsMorePatient(t *testing.T) {
	e := openAt(t, Config{}, small).(*endpoint)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialler, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	socket, err := l.Accept()
	require.NoError(t, err)
	acceptor := &deadlines{TCPConn: socket.(*net.TCPConn)}
	greeted := make(chan struct{})
	go func() { defer close(greeted); e.greet(acceptor) }()
	h := e.hello(transport.Key{Self: 0, Peer: 1})
	h.attempt, h.instance, h.flows = 1, e.address.instance, 1
	last := time.Now().Add(stepTimeout)
	_, err = dialler.Write(h.bytes())
	require.NoError(t, err)
	b := make([]byte, welcomeSize)
	_, err = io.ReadFull(dialler, b)
	require.NoError(t, err)
	r, err := parseReply(b)
	require.NoError(t, err)
	require.Equal(t, welcome, r.verdict)
	require.Greater(t, time.Unix(0, acceptor.last.Load()).Sub(last), 2*stepTimeout)
	dialler.Close()
	<-greeted
}

// TestCloseOnExec: no descriptor reaches a program that a process starts.
func TestCloseOnExec(t *testing.T) {
	a, b := openAt(t, Config{Flows: 2}, small), openAt(t, Config{Flows: 2}, small)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	for _, e := range []*endpoint{a.(*endpoint), b.(*endpoint)} {
		fds := []int{e.epoll, e.event}
		for _, f := range e.conns[0].flows {
			fds = append(fds, f.fd)
		}
		require.Len(t, fds, 4)
		for _, fd := range fds {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.NotZero(t, flags&unix.FD_CLOEXEC)
		}
		nodelay, err := unix.GetsockoptInt(fds[2], unix.IPPROTO_TCP, unix.TCP_NODELAY)
		require.NoError(t, err)
		require.Equal(t, 1, nodelay)
	}
}
