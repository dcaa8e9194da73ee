package tcp

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStagingBounded: whatever a sender has accepted, a receiver that asks for
// nothing stages at most a window per stream, also while it reads another
// stream; and all memory comes back.
func TestStagingBounded(t *testing.T) {
	const window = 128 << 10
	o := transport.Options{Streams: 5, MaxMessage: 1 << 20}
	for _, flows := range []int{1, 2} {
		a, b := openAt(t, Config{Window: window, Flows: flows}, o), openAt(t, Config{Window: window, Flows: flows}, o)
		x, y := connect(t, a, b)
		for i := range 4 {
			for _, n := range []int{1000, 1 << 20, 8, 1 << 20, 1 << 20} {
				ok, err := x.Stream(i).Send(1, bufOf(make([]byte, n)))
				require.NoError(t, err)
				require.True(t, ok)
			}
		}
		for range 50 {
			pass(t, x.Stream(4), y.Stream(4), 100<<10, a, b)
		}
		staged := b.Stats().Memory
		require.Greater(t, staged, int64(4*window), "the test wants staging")
		require.Less(t, staged, int64(5*window+flows*bufferSize+64<<10))
		for i := range 4 {
			for _, n := range []int{1000, 1 << 20, 8, 1 << 20, 1 << 20} {
				in := make([]byte, n)
				wait(t, "a staged message", func() bool {
					ok, err := y.Stream(i).Recv(1, bufOf(in))
					require.NoError(t, err)
					return ok
				}, a, b)
			}
		}
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
		wait(t, "the end of both", func() bool { return x.(*conn).gone && y.(*conn).gone }, a, b)
		require.Zero(t, b.Stats().Memory)
	}
}

// TestLongMessagesAreNotStaged: where both ends send more than may be under way and ask for one message after the other, each is read straight to
// its place, whoever reads: who asks, Progress for the sake of credit, or Send when it has no room.
func TestLongMessagesAreNotStaged(t *testing.T) {
	const messages, size = 4 * ahead, 256 << 10
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	x, y := connect(t, a, b)
	out, in := bytes.Repeat([]byte{7}, size), make([]byte, size)
	streams := []transport.Stream{x.Stream(0), y.Stream(0)}
	sent, got := make([]int, 2), make([]int, 2)
	receive := func(i int) {
		for got[i] < messages {
			ok, err := streams[i].Recv(1, bufOf(in))
			require.NoError(t, err)
			if !ok {
				return
			}
			got[i]++
		}
	}
	for i := range streams {
		receive(i) // what nobody asked for would be staged
	}
	wait(t, "all messages", func() bool {
		for i, s := range streams {
			for sent[i] < messages {
				ok, err := s.Send(1, bufOf(out))
				require.NoError(t, err)
				if !ok {
					break
				}
				sent[i]++
			}
			receive(i)
		}
		return got[0] == messages && got[1] == messages
	}, a, b)
	require.True(t, bytes.Equal(out, in))
	for i, e := range []transport.Endpoint{a, b} {
		require.Less(t, e.Stats().Memory, int64(1<<20), "end %d has made a window to stage in", i)
	}
}

// TestPollingLetsCollect: a goroutine that polls a stream does not hold up the
// collector.
func TestPollingLetsCollect(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		in := make([]byte, 8)
		for {
			if ok, err := y.Stream(0).Recv(1, bufOf(in)); ok || err != nil {
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	start := time.Now()
	for range 5 {
		runtime.GC()
	}
	took := time.Since(start)
	close(stop)
	<-done
	require.Less(t, took, patience, "5 collections beside a polling goroutine")
	t.Logf("5 collections: %v", took)
}

// TestCloseWithSlowReader: Close does not wait for a peer that reads nothing.
func TestCloseWithSlowReader(t *testing.T) {
	o := transport.Options{Streams: 1, MaxMessage: 8 << 20}
	a := openAt(t, Config{Window: 64 << 20, Linger: 300 * time.Millisecond}, o)
	b := openAt(t, Config{Window: 64 << 20}, o)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	message := make([]byte, 8<<20)
	for range 8 {
		ok, err := x.Stream(0).Send(1, bufOf(message))
		require.NoError(t, err)
		require.True(t, ok)
	}
	start := time.Now()
	require.NoError(t, a.Close())
	require.Less(t, time.Since(start), patience)
	var err error
	wait(t, "the end", func() bool { _, err = y.Stream(0).Recv(1, bufOf(message)); return err != nil }, b)
	require.ErrorIs(t, err, transport.ErrGone)
}

// TestCloseWithoutPeer: a connection that never came about ends at once.
func TestCloseWithoutPeer(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	address := b.Address()
	require.NoError(t, b.Close())
	for i := range 2 {
		c, err := a.Conn(transport.Key{Channel: int32(i), Self: 0, Peer: 1}, address)
		require.NoError(t, err)
		if i == 1 {
			ok, err := c.Stream(0).Send(1, bufOf(make([]byte, 8)))
			require.NoError(t, err)
			require.True(t, ok, "it waits for the connection")
		}
		require.NoError(t, c.Close())
		_, err = c.Stream(0).Recv(1, transport.Buf{})
		require.ErrorIs(t, err, transport.ErrClosed)
	}
	require.NoError(t, a.Close())
}

// TestClosedBeforeAsked: a rank that closed a connection before it was there
// tells the other, who is not left to try for a minute.
func TestClosedBeforeAsked(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	k := transport.Key{Self: 0, Peer: 1}
	nobody := openAt(t, Config{}, small)
	gone := nobody.Address()
	require.NoError(t, nobody.Close())
	x, err := a.Conn(k, gone)
	require.NoError(t, err)
	require.NoError(t, x.Close())
	y, err := b.Conn(transport.Key{Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	wait(t, "the error", func() bool { _, err = y.Stream(0).Recv(1, transport.Buf{}); return err != nil }, a, b)
	require.ErrorIs(t, err, transport.ErrLeft)
	require.ErrorContains(t, err, "rank 0 has closed the connection")
}

// TestOtherArguments: a receive must be asked again with the same arguments.
func TestOtherArguments(t *testing.T) {
	for _, change := range []string{"buffer", "tag", "length", "view"} {
		h := newHostile(t, small)
		s, in := h.c.Stream(0), make([]byte, 16)
		ok, err := s.Recv(1, bufOf(in[:8]))
		require.False(t, ok)
		require.NoError(t, err)
		switch change {
		case "buffer":
			_, err = s.Recv(1, bufOf(in[8:]))
		case "tag":
			_, err = s.Recv(2, bufOf(in[:8]))
		case "length":
			_, err = s.Recv(1, bufOf(in[:9]))
		case "view":
			_, err = s.View(1, 8)
		}
		require.ErrorIs(t, err, errOther, change)
		h.close()
	}
}

// TestSentWaitsForKernel: memory is borrowed until the last byte is written, and
// what is written later is what the memory holds by then, unchanged.
func TestSentWaitsForKernel(t *testing.T) {
	h := newHostile(t, transport.Options{Streams: 1, MaxMessage: 512 << 10})
	defer h.close()
	require.True(t, h.c.ready())
	require.NoError(t, unix.SetsockoptInt(h.c.flows[0].fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10))
	out := make([]byte, 300<<10) // a piece of a window, and the rest when there is credit
	for i := range out {
		out[i] = byte(i * 7 / 5)
	}
	want := append([]byte{}, out...)
	s := h.c.Stream(0)
	ok, err := s.Send(1, bufOf(out))
	require.NoError(t, err)
	require.True(t, ok)
	h.frame(header{kind: kindCredit, credit: 1}, nil)
	var got []byte
	b := make([]byte, 1000)
	for len(got) < 2*headerSize+len(out) {
		h.e.Progress()
		done, err := s.Sent()
		require.NoError(t, err)
		if len(got) < 200<<10 {
			require.Zero(t, done, "the kernel cannot hold all of it")
		}
		if done == 1 {
			clear(out) // ours again: must not matter
		}
		n, err := unix.Read(h.fd, b)
		require.NoError(t, err)
		got = append(got, b[:n]...)
	}
	got = append(got[headerSize:][:64<<10:64<<10], got[2*headerSize+64<<10:]...)
	require.True(t, bytes.Equal(want, got))
	done, err := s.Sent()
	require.NoError(t, err)
	require.EqualValues(t, 1, done)
}

// A short frame of which the kernel took a part goes on where it stopped.
func TestRestOfShortFrame(t *testing.T) {
	a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
	f := &x.(*conn).flows[0]
	f.add(&header{kind: kindCredit}, nil, 0, nil)
	r := &f.frames[f.first]
	n, err := unix.Write(f.fd, r.header[:10])
	require.NoError(t, err)
	r.written = n
	require.Equal(t, headerSize-n, f.push())
	pass(t, x.Stream(0), y.Stream(0), 8, a, b)
}
