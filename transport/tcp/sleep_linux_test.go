package tcp

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// news drains the endpoint's descriptor and reports how many events there were.
func news(t *testing.T, e transport.Endpoint) int {
	var events [16]unix.EpollEvent
	n, err := unix.EpollWait(e.(*endpoint).epoll, events[:], 0)
	require.NoError(t, err)
	return n
}

// Only who sleeps pays for being woken: FD puts sockets into the epoll set, for what they are waited for alone, and what arrives takes them out.
func TestSocketsAreWatchedForSleepersAlone(t *testing.T) {
	o := transport.Options{Streams: 1, MaxMessage: 32 << 20}
	config := Config{Window: 64 << 20}
	a, b := openAt(t, config, o), openAt(t, config, o)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	pass(t, y.Stream(0), x.Stream(0), 8, a, b)
	f := &x.(*conn).flows[0]
	news(t, a)
	a.(transport.Pollable).FD()
	require.EqualValues(t, unix.EPOLLIN|unix.EPOLLRDHUP, f.watched)
	require.Zero(t, news(t, a), "room in a socket that takes all there is is no news")

	pass(t, y.Stream(0), x.Stream(0), 8, a, b)
	require.Zero(t, f.watched, "a message came")
	out := make([]byte, 8)
	ok, err := y.Stream(0).Send(1, transport.Buf{Ptr: unsafe.Pointer(&out[0]), N: len(out)})
	require.NoError(t, err)
	require.True(t, ok)
	a.(transport.Pollable).FD()
	require.Equal(t, 1, news(t, a), "what came before the socket was watched counts")

	long := make([]byte, o.MaxMessage)
	ok, err = x.Stream(0).Send(1, transport.Buf{Ptr: unsafe.Pointer(&long[0]), N: len(long)})
	require.NoError(t, err)
	require.True(t, ok)
	for a.Progress() {
	}
	require.NotZero(t, f.queued, "the kernel takes no more")
	a.(transport.Pollable).FD()
	require.EqualValues(t, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP, f.watched)
	news(t, a)
	in := make([]byte, len(long))
	wait(t, "room", func() bool {
		_, err := y.Stream(0).Recv(1, transport.Buf{Ptr: unsafe.Pointer(&in[0]), N: len(in)})
		require.NoError(t, err)
		return news(t, a) > 0
	})
}

// A kernel that lacks memory says so though the socket has room: whoever sleeps must be woken by that, which is no news.
func TestRoomWithoutMemory(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	f := &x.(*conn).flows[0]
	news(t, a)
	f.queued = 1 // as if a frame waited
	defer func() { f.queued = 0 }()
	a.(transport.Pollable).FD()
	require.Equal(t, 1, news(t, a))
	f.refused(unix.EAGAIN)
	require.Zero(t, news(t, a), "the kernel will tell")
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM} {
		f.refused(errno)
		require.Equal(t, 1, news(t, a), errno)
		require.EqualValues(t, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP, f.watched)
	}
	f.watched = 0
	f.refused(unix.ENOBUFS)
	require.Zero(t, f.watched, "nobody sleeps")
	f.watched = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP
}

// Who has called FD looks once more before it sleeps. A socket that then takes no more is watched for room; where part of a message was read, its
// socket is out of the set, and Progress says, once, that something moved.
func TestLastLookBeforeASleep(t *testing.T) {
	o := transport.Options{Streams: 1, MaxMessage: 32 << 20}
	config := Config{Window: 64 << 20}
	a, b := openAt(t, config, o), openAt(t, config, o)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	for a.Progress() || b.Progress() {
	}
	out, in := make([]byte, o.MaxMessage), make([]byte, o.MaxMessage)
	from, to := &x.(*conn).flows[0], &y.(*conn).flows[0]
	a.(transport.Pollable).FD()
	ok, err := x.Stream(0).Send(1, transport.Buf{Ptr: unsafe.Pointer(&out[0]), N: len(out)})
	require.NoError(t, err)
	require.True(t, ok)
	for range 1000 { // which is plenty
		a.Progress()
	}
	require.NotZero(t, from.queued, "the kernel takes no more")
	require.NotZero(t, from.watched&unix.EPOLLOUT, "and now it is watched for room")
	require.False(t, a.Progress())

	b.(transport.Pollable).FD()
	require.NotZero(t, to.watched)
	recv := func() {
		ok, err := y.Stream(0).Recv(1, transport.Buf{Ptr: unsafe.Pointer(&in[0]), N: len(in)})
		require.NoError(t, err)
		require.False(t, ok)
	}
	for range 1000 {
		recv()
	}
	require.True(t, to.drained)
	require.Zero(t, to.watched)
	require.True(t, b.Progress(), "a part of the message came, and the socket is not in the set")
	recv()
	require.False(t, b.Progress())
}

// Over loopback nothing is paced, whatever the host begins with; elsewhere its choice stands.
func TestCongestionControl(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	usual, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	require.NoError(t, err)
	for near, want := range map[bool]string{true: "reno", false: usual} {
		a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
		x, y := connect(t, a, b)
		for _, c := range []transport.Conn{x, y} {
			require.True(t, c.(*conn).near)
			c.(*conn).near = near
		}
		pass(t, x.Stream(0), y.Stream(0), 8, a, b)
		for _, c := range []transport.Conn{x, y} {
			got, err := unix.GetsockoptString(c.(*conn).flows[0].fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	e := &endpoint{address: address{at: netip.MustParseAddrPort("10.1.2.3:4")}}
	for at, near := range map[string]bool{"10.1.2.3:5": true, "10.1.2.4:4": false, "127.0.0.1:5": true, "[2001:db8::1]:4": false} {
		require.Equal(t, near, newConn(e, &meet{}, address{at: netip.MustParseAddrPort(at)}).near, at)
	}
}
