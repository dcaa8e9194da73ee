package mem_test

import (
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/stretchr/testify/require"
)

// pairOf are the two ends of a stream on a network, the first with a Hook.
func pairOf(t *testing.T, n *mem.Network, hook transport.Hook) (eps [2]transport.Endpoint, a, b transport.Stream) {
	for i, host := range []string{"a", "b"} {
		o := transport.Options{Streams: 1, MaxMessage: 1 << 16}
		if i == 0 {
			o.Hook = hook
		}
		var err error
		eps[i], err = n.Host(host).Open(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, eps[i].Close()) })
	}
	ca, err := eps[0].Conn(transport.Key{Self: 0, Peer: 1}, eps[1].Address())
	require.NoError(t, err)
	cb, err := eps[1].Conn(transport.Key{Self: 1, Peer: 0}, eps[0].Address())
	require.NoError(t, err)
	return eps, ca.Stream(0), cb.Stream(0)
}

func buf(s []byte) transport.Buf { return transport.Buf{Ptr: unsafe.Pointer(&s[0]), N: len(s)} }

func post(t *testing.T, s transport.Stream, b []byte) {
	ok, err := s.Send(1, buf(b))
	require.NoError(t, err)
	require.True(t, ok)
}

func sent(t *testing.T, s transport.Stream, want int) {
	n, err := s.Sent()
	require.NoError(t, err)
	require.EqualValues(t, want, n)
}

// A message beyond the credit stays in its sender's memory, and is what it is there when Progress copies it.
func TestCredit(t *testing.T) {
	n := &mem.Network{Credit: func(string, string) int { return 10 }}
	eps, a, b := pairOf(t, n, nil)
	one, two, three, long := []byte("123456"), []byte("7890"), []byte("x"), []byte("a message of more than all credit")
	for _, m := range [][]byte{one, two, three, long} {
		post(t, a, m)
	}
	sent(t, a, 2)
	require.False(t, eps[0].Progress())
	got := make([]byte, len(one))
	read := func(want string) {
		got = got[:len(want)]
		ok, err := b.Recv(1, buf(got))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, string(got))
	}
	got = make([]byte, 64)
	read("123456")
	sent(t, a, 2)
	three[0] = 'y' // against the rules: to see where it is read
	require.True(t, eps[0].Progress())
	sent(t, a, 3)
	three[0] = 'z'
	read("7890")
	require.False(t, eps[0].Progress(), "a message longer than all credit waits to be alone")
	read("y")
	ok, err := b.Recv(1, buf(got[:len(long)]))
	require.NoError(t, err)
	require.False(t, ok, "nobody moved it")
	require.True(t, eps[0].Progress())
	sent(t, a, 4)
	read(string(long))
	require.Zero(t, eps[1].Stats().Memory)
}

// Memory that waits for credit is its owner's again after Close; the peer reads it as it was.
func TestCreditClose(t *testing.T) {
	n := &mem.Network{Credit: func(string, string) int { return 1 }}
	eps, a, b := pairOf(t, n, nil)
	one, two := []byte("one"), []byte("two")
	post(t, a, one)
	post(t, a, two)
	require.NoError(t, eps[0].Close())
	copy(two, "bad")
	got := make([]byte, 3)
	for _, want := range []string{"one", "two"} {
		ok, err := b.Recv(1, buf(got))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, string(got))
	}
	_, err := b.Recv(1, buf(got))
	require.ErrorIs(t, err, transport.ErrLeft)
}

// What waits for credit when the connection is reset never comes, and nobody waits for it.
func TestCreditReset(t *testing.T) {
	n := &mem.Network{Credit: func(string, string) int { return 1 }}
	_, a, b := pairOf(t, n, nil)
	post(t, a, []byte("one"))
	post(t, a, []byte("two"))
	n.Kill("a")
	got := make([]byte, 3)
	ok, err := b.Recv(1, buf(got))
	require.NoError(t, err)
	require.True(t, ok)
	_, err = b.Recv(1, buf(got))
	require.ErrorIs(t, err, transport.ErrGone)
	_, err = a.Sent()
	require.ErrorIs(t, err, transport.ErrGone)
}

// On both kinds of wire, and whatever comes behind: a reordered message is found by its number.
func TestReorder(t *testing.T) {
	for _, credit := range []int{0, 1, 100} {
		n := &mem.Network{Credit: func(string, string) int { return credit }}
		eps, a, b := pairOf(t, n, func(f transport.Frame) transport.Fate { return transport.Fate{Reorder: f.Seq == 1} })
		for _, m := range []string{"0", "1"} {
			post(t, a, []byte(m))
		}
		got := make([]byte, 1)
		recvs := func(want string) {
			ok, err := b.Recv(1, buf(got))
			require.NoError(t, err)
			require.Equal(t, want != "", ok)
			if ok {
				require.Equal(t, want, string(got))
			}
		}
		recvs("0")
		recvs("") // it waits for one to overtake it
		post(t, a, []byte("2"))
		eps[0].Progress()
		_, err := b.Recv(1, buf(got))
		var order *transport.SequenceError
		require.ErrorAs(t, err, &order)
		require.Equal(t, transport.SequenceError{Got: 2, Want: 1}, *order)
		require.ErrorContains(t, err, "rank 0 at mem:1")
	}
	// Nothing follows: it comes at last, in order.
	var n mem.Network
	eps, a, b := pairOf(t, &n, func(transport.Frame) transport.Fate { return transport.Fate{Reorder: true} })
	post(t, a, []byte("0"))
	got := make([]byte, 1)
	ok, err := b.Recv(1, buf(got))
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, eps[0].Close())
	ok, err = b.Recv(1, buf(got))
	require.NoError(t, err)
	require.True(t, ok)
}

func TestTruncate(t *testing.T) {
	for _, credit := range []int{0, 1} {
		for _, by := range []int{1, 4, 99} {
			n := &mem.Network{Credit: func(string, string) int { return credit }}
			_, a, b := pairOf(t, n, func(transport.Frame) transport.Fate { return transport.Fate{Truncate: by} })
			post(t, a, []byte("whole"))
			_, err := b.View(1, 5)
			require.ErrorIs(t, err, transport.ErrCorrupt)
			require.ErrorContains(t, err, "of message 0 of 5 bytes only")
			require.ErrorContains(t, err, "rank 0 at mem:1")
		}
	}
}

// A view that its reader dwells on is out all the while: its owner may write to memory that it took back, and so it ends with an error.
func TestDwell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause, size = time.Second, 4096
		n := &mem.Network{Dwell: func(a, b string) time.Duration {
			require.Equal(t, "a to b", a+" to "+b)
			return pause
		}}
		eps, a, b := pairOf(t, n, nil)
		lent := func(x byte) []byte {
			p, err := eps[0].(transport.Allocator).Alloc(size)
			require.NoError(t, err)
			m := unsafe.Slice((*byte)(p), size)
			m[0] = x
			ok, err := a.Send(1, transport.Buf{Ptr: p, N: size, Shared: true})
			require.NoError(t, err)
			require.True(t, ok)
			return m
		}
		view := func() unsafe.Pointer {
			p, err := b.View(1, size)
			require.NoError(t, err)
			return p
		}
		lent(1)
		require.Nil(t, view())
		time.Sleep(pause - 1)
		require.Nil(t, view())
		time.Sleep(time.Microsecond)
		sent(t, a, 0)
		require.EqualValues(t, 1, *(*byte)(view()))
		require.NoError(t, b.Release())
		sent(t, a, 1)
		m := lent(2)
		require.Nil(t, view())
		require.NoError(t, eps[0].Close())
		m[0] = 3
		time.Sleep(pause)
		synctest.Wait()
		require.NotEqualValues(t, 2, *(*byte)(view()))
		require.ErrorIs(t, b.Release(), transport.ErrLeft)
	})
}
