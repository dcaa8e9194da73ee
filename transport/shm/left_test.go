//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestClosedAndDead: a peer that closed its endpoint and ended, both before we look, has left in good order. Nothing stays of what we sent to it, on a
// connection that it never opened either, nor of its memory.
func TestClosedAndDead(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	empty := e.Stats().Memory
	c := start(t, "echo", 0, dirEnv+"="+dir)
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	met := talk(t, e, address, 10)
	unmet, err := e.Conn(transport.Key{Comm: 2, Self: 0, Peer: 1}, address)
	require.NoError(t, err)
	ok, err := unmet.Stream(0).Send(1, bufOf(filled(100_000, 1)))
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, met.Close()) // so that it goes
	require.NoError(t, c.cmd.Wait())
	e.peers[string(address)].die() // as Progress finds out, or rather not later than it looks
	_, err = unmet.Stream(0).Recv(1, bufOf(make([]byte, 8)))
	require.ErrorIs(t, err, transport.ErrLeft)
	require.NoError(t, unmet.Close())
	reaped(e)
	require.Empty(t, e.lingers)
	require.Equal(t, empty, e.Stats().Memory)
	requireBuried(t, e, address)
	_, err = e.Conn(transport.Key{Comm: 3, Self: 0, Peer: 1}, address)
	require.ErrorIs(t, err, transport.ErrLeft)
	require.ErrorAs(t, err, new(*transport.PeerError))
	require.ErrorIs(t, e.Reach(t.Context(), address), transport.ErrLeft)
}

// TestKilledLeavesNothing: nor of one that was killed.
func TestKilledLeavesNothing(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	empty := e.Stats().Memory
	c := start(t, "echo", 0, dirEnv+"="+dir)
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	met := talk(t, e, address, 10)
	unmet, err := e.Conn(transport.Key{Comm: 2, Self: 0, Peer: 1}, address)
	require.NoError(t, err)
	_, err = unmet.Stream(0).Send(1, bufOf(filled(100_000, 1)))
	require.NoError(t, err)
	require.NoError(t, unmet.Close())
	require.NotEmpty(t, e.lingers)
	c.kill()
	err = poll(e, func() (bool, error) { return met.Stream(0).Recv(1, bufOf(make([]byte, 8))) })
	require.ErrorIs(t, err, transport.ErrGone)
	require.NotErrorIs(t, err, transport.ErrLeft)
	time.Sleep(1100 * time.Millisecond) // it would be buried
	e.Progress()
	require.NotNil(t, e.peers[string(address)].base, "there is a connection")
	require.NoError(t, met.Close())
	reaped(e)
	require.Equal(t, empty, e.Stats().Memory)
	requireBuried(t, e, address)
	_, err = e.Conn(transport.Key{Comm: 3, Self: 0, Peer: 1}, address)
	require.ErrorIs(t, err, transport.ErrGone)
	require.NotErrorIs(t, err, transport.ErrLeft)
	require.ErrorContains(t, err, "rank 1")
}

// TestUnreadIsKept: what an endpoint sent before it was closed is there for who opens the connection later, however much later.
func TestUnreadIsKept(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	require.NoError(t, b.Reach(t.Context(), a.Address()))
	x, err := a.Conn(transport.Key{Comm: 5, Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	out, in := filled(100_000, 9), make([]byte, 100_000)
	_, err = x.Stream(0).Send(1, bufOf(out))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	for range 3 {
		time.Sleep(700 * time.Millisecond)
		b.Progress()
	}
	y, err := b.Conn(transport.Key{Comm: 5, Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	require.NoError(t, poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(in)) }))
	require.Equal(t, out, in)
	require.NoError(t, y.Close())
	requireBuried(t, b, a.Address())
}

// requireBuried drives e until nothing of the peer's is mapped.
func requireBuried(t *testing.T, e *Endpoint, address []byte) {
	t.Helper()
	maps := func() int {
		text, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return bytes.Count(text, []byte("/memfd:"+memoryName+" "))
	}
	for deadline := time.Now().Add(patience); e.peers[string(address)].base != nil; time.Sleep(time.Millisecond) {
		e.Progress()
		require.False(t, time.Now().After(deadline), "it is still mapped")
	}
	require.Equal(t, 1, maps(), "ours")
	require.Equal(t, -1, e.peers[string(address)].pidfd)
}

// TestNonsenseDoesNotLinger: what a closed endpoint's directory has, be it nonsense, keeps nothing of ours.
func TestNonsenseDoesNotLinger(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	x, err := a.Conn(transport.Key{Comm: 5, Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	_, err = x.Stream(0).Send(1, bufOf(filled(100_000, 9)))
	require.NoError(t, err)
	b.seg.header().piece[1] = 12345
	require.NoError(t, x.Close())
	require.NotEmpty(t, a.lingers)
	require.NoError(t, b.Close())
	reaped(a)
	require.Empty(t, a.lingers)
}

// TestLeftIsTold: a peer hears of a communicator that we have left, if it looks before we left very many others, and of no other, whatever
// it is called; and what an endpoint that is closed has sent us there keeps none of its memory.
func TestLeftIsTold(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	empty := a.Stats().Memory
	var conns []transport.Conn
	for comm := range uint64(2 * leftMost) {
		c, err := a.Conn(transport.Key{Comm: comm, Self: 0, Peer: 1}, b.Address())
		require.NoError(t, err)
		if comm == 0 {
			require.NoError(t, b.Reach(t.Context(), a.Address()))
		}
		if comm < 3 {
			_, err = c.Stream(0).Send(1, bufOf(filled(100_000, 1)))
			require.NoError(t, err)
		}
		conns = append(conns, c)
	}
	recv := func(c transport.Conn) error { _, err := c.Stream(0).Recv(1, bufOf(make([]byte, 8))); return err }
	require.NoError(t, recv(conns[0]), "0 is no communicator that was left")
	for comm := range uint64(len(conns)) {
		b.Leave(comm)
		b.Leave(comm)
		require.ErrorIs(t, recv(conns[comm]), transport.ErrLeft)
		if next := comm + 1; next < uint64(len(conns)) {
			require.NoError(t, recv(conns[next]))
		}
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.Empty(t, a.lingers)
	require.Empty(t, a.conns)
	for _, p := range a.peers {
		require.Empty(t, p.conns)
	}
	require.LessOrEqual(t, a.Stats().Memory, empty+1<<20, "the directory has grown")
	c, err := a.Conn(transport.Key{Comm: 99_999, Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	_, err = c.Stream(0).Send(1, bufOf(filled(100_000, 1)))
	require.NoError(t, err)
	b.Leave(99_999)
	require.NoError(t, a.Close())
	requireBuried(t, b, a.Address())
}
