package mem_test

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/stretchr/testify/require"
)

// twoHosts are conns between hosts a and b.
func twoHosts(t *testing.T) (n *mem.Network, eps [2]transport.Endpoint, a, b transport.Stream) {
	n = &mem.Network{}
	var err error
	for i, host := range []string{"a", "b"} {
		eps[i], err = n.Host(host).Open(transport.Options{Streams: 1, MaxMessage: 1 << 16})
		require.NoError(t, err)
	}
	ca, err := eps[0].Conn(transport.Key{Self: 0, Peer: 1}, eps[1].Address())
	require.NoError(t, err)
	cb, err := eps[1].Conn(transport.Key{Self: 1, Peer: 0}, eps[0].Address())
	require.NoError(t, err)
	return n, eps, ca.Stream(0), cb.Stream(0)
}

func send(t *testing.T, s transport.Stream) {
	ok, err := s.Send(1, transport.Buf{})
	require.NoError(t, err)
	require.True(t, ok)
}

func recv(t *testing.T, s transport.Stream, want bool) {
	ok, err := s.Recv(1, transport.Buf{})
	require.NoError(t, err)
	require.Equal(t, want, ok)
}

// Nothing passes a cut, in neither direction, and the end of the connection neither; all of it arrives afterwards.
func TestCut(t *testing.T) {
	n, eps, a, b := twoHosts(t)
	send(t, a)
	n.Cut("b")
	send(t, a)
	send(t, b)
	recv(t, b, true) // it had arrived
	recv(t, b, false)
	recv(t, a, false)
	require.NoError(t, eps[0].Close())
	recv(t, b, false)
	n.Heal("b")
	recv(t, b, true)
	_, err := b.Recv(1, transport.Buf{})
	require.ErrorIs(t, err, transport.ErrGone)
	require.NoError(t, eps[1].Close())
	endpoints, links := n.Len()
	require.Zero(t, endpoints+links)
}

// While cut off, a sender does not learn that its memory was read.
func TestCutHidesRelease(t *testing.T) {
	n, eps, a, b := twoHosts(t)
	const size = 4096
	p, err := eps[0].(transport.Allocator).Alloc(size)
	require.NoError(t, err)
	lend := transport.Buf{Ptr: p, N: size, Shared: true}
	ok, err := a.Send(1, lend)
	require.True(t, ok)
	require.NoError(t, err)
	n.Cut("a")
	ok, err = a.Send(1, lend)
	require.True(t, ok)
	require.NoError(t, err)
	got := make([]byte, size)
	ok, err = b.Recv(1, transport.Buf{Ptr: unsafe.Pointer(&got[0]), N: size})
	require.True(t, ok)
	require.NoError(t, err)
	require.True(t, bytes.Equal(got, unsafe.Slice((*byte)(p), size)))
	sent, err := a.Sent()
	require.NoError(t, err)
	require.Zero(t, sent)
	n.Heal("a")
	sent, err = a.Sent()
	require.NoError(t, err)
	require.Equal(t, uint64(1), sent)
	for _, e := range eps {
		require.NoError(t, e.Close())
	}
}

// A killed host's connections are reset at both ends, those that it opens later too; unless the host is cut off: then nobody knows.
func TestKill(t *testing.T) {
	n, eps, a, b := twoHosts(t)
	n.Kill("b")
	for _, s := range []transport.Stream{a, b} {
		_, err := s.Recv(1, transport.Buf{})
		require.ErrorIs(t, err, transport.ErrGone)
	}
	later, err := eps[0].Conn(transport.Key{Comm: 2, Self: 0, Peer: 1}, eps[1].Address())
	require.NoError(t, err)
	_, err = later.Stream(0).Send(1, transport.Buf{})
	require.ErrorIs(t, err, transport.ErrGone)
	for _, e := range eps {
		require.NoError(t, e.Close())
	}

	n, eps, a, _ = twoHosts(t)
	n.Cut("b")
	n.Kill("b")
	recv(t, a, false)
	require.NoError(t, eps[1].Close())
	recv(t, a, false)
	require.NoError(t, eps[0].Close())
}
