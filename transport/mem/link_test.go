package mem

import (
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestClosedConnsAreForgotten: of connections that both ends have closed nothing stays, whoever was first, and a key is as good as new.
func TestClosedConnsAreForgotten(t *testing.T) {
	var n Network
	var eps [2]transport.Endpoint
	for i := range eps {
		var err error
		eps[i], err = n.Open(transport.Options{Streams: 1, MaxMessage: 64})
		require.NoError(t, err)
		defer eps[i].Close()
	}
	for k := range 4 {
		var conns [2]transport.Conn
		for i := range conns {
			var err error
			conns[i], err = eps[i].Conn(transport.Key{Self: int32(i), Peer: int32(1 - i)}, eps[1-i].Address())
			require.NoError(t, err)
		}
		ok, err := conns[0].Stream(0).Send(1, transport.Buf{})
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = conns[1].Stream(0).Recv(1, transport.Buf{})
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, conns[k%2].Close())
		require.NoError(t, conns[1-k%2].Close())
		require.Empty(t, n.links)
		for _, e := range eps {
			require.Empty(t, e.(*endpoint).conns)
		}
	}
}

// TestLeftLinks: nothing stays in the network of a communicator that one end has left and the other closed.
func TestLeftLinks(t *testing.T) {
	var n Network
	o := transport.Options{Streams: 1, MaxMessage: 1 << 10}
	a, err := n.Open(o)
	require.NoError(t, err)
	b, err := n.Open(o)
	require.NoError(t, err)
	for comm := range uint64(4) {
		if comm%2 == 0 {
			b.Leave(comm)
		}
		c, err := a.Conn(transport.Key{Comm: comm, Self: int32(comm / 2), Peer: int32(1 - comm/2)}, b.Address())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		b.Leave(comm)
		_, links := n.Len()
		require.Zero(t, links)
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
