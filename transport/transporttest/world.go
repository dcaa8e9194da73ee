package transporttest

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait. It is far above what a loaded machine needs.
const patience = time.Minute

// world is a job of endpoints, all driven by the test's goroutine.
type world struct {
	testing.TB
	options transport.Options
	eps     []transport.Endpoint
}

// defaults are the options of a test that asks for nothing special.
func defaults() transport.Options {
	return transport.Options{Streams: 4, MaxMessage: 256 << 10, Secret: []byte("a secret of the test")}
}

// newWorld opens n endpoints with o and proves that each reaches the others.
func newWorld(tb testing.TB, open Provider, n int, o transport.Options) *world {
	all := make([]transport.Options, n)
	for i := range all {
		all[i] = o
	}
	w := &world{TB: tb, options: o, eps: open(tb, all)}
	require.Len(tb, w.eps, n)
	tb.Cleanup(w.close)
	for i, a := range w.eps {
		for j, b := range w.eps {
			if i != j {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				require.NoError(tb, a.Reach(ctx, b.Address()), "rank %d to rank %d", i, j)
				cancel()
			}
		}
	}
	return w
}

func (w *world) close() {
	for i, e := range w.eps {
		if err := e.Close(); err != nil {
			w.Errorf("close of rank %d: %v", i, err)
		}
	}
}

func key(self, peer int) transport.Key {
	return transport.Key{Comm: 0xc0ffee, Self: int32(self), Peer: int32(peer)}
}

// conn is rank a's connection to rank b on channel 0.
func (w *world) conn(a, b int) transport.Conn {
	w.Helper()
	c, err := w.eps[a].Conn(key(a, b), w.eps[b].Address())
	require.NoError(w, err)
	return c
}

// pair is both ends of the connection of ranks 0 and 1.
func (w *world) pair() (transport.Conn, transport.Conn) {
	w.Helper()
	return w.conn(0, 1), w.conn(1, 0)
}

// drive calls step and every endpoint's Progress until step reports true.
func (w *world) drive(what string, step func() bool) {
	w.Helper()
	if !w.try(patience, step) {
		require.FailNow(w, "nothing moved", "waited %v for %s", patience, what)
	}
}

// try is drive with its own bound, reporting whether step became true.
func (w *world) try(bound time.Duration, step func() bool) bool {
	var started time.Time
	for n := 0; !step(); n++ {
		for _, e := range w.eps {
			e.Progress()
		}
		if n%64 != 63 {
			continue
		}
		runtime.Gosched()
		switch now := time.Now(); {
		case started.IsZero():
			started = now
		case now.Sub(started) > bound:
			return false
		case n > 1<<12:
			time.Sleep(50 * time.Microsecond)
		}
	}
	return true
}

// lend describes b to a transport. It must be heap memory.
func lend(b []byte) transport.Buf {
	if len(b) == 0 {
		return transport.Buf{}
	}
	return transport.Buf{Ptr: unsafe.Pointer(&b[0]), N: len(b)}
}

func (w *world) send(s transport.Stream, tag uint32, b []byte) {
	w.Helper()
	w.drive("room to send", func() bool {
		ok, err := s.Send(tag, lend(b))
		require.NoError(w, err)
		return ok
	})
}

func (w *world) recv(s transport.Stream, tag uint32, b []byte) {
	w.Helper()
	w.drive("a message", func() bool {
		ok, err := s.Recv(tag, lend(b))
		require.NoError(w, err)
		return ok
	})
}

// receive is recv into memory of its own.
func (w *world) receive(s transport.Stream, tag uint32, n int) []byte {
	w.Helper()
	b := make([]byte, n)
	w.recv(s, tag, b)
	return b
}

// view waits for a message of n bytes and copies what the view shows.
func (w *world) view(s transport.Stream, tag uint32, n int) []byte {
	w.Helper()
	var p unsafe.Pointer
	w.drive("a view", func() bool {
		var err error
		p, err = s.View(tag, n)
		require.NoError(w, err)
		return p != nil
	})
	b := append([]byte{}, unsafe.Slice((*byte)(p), n)...)
	s.Release()
	return b
}

// fails waits until op returns an error and returns it.
func (w *world) fails(what string, op func() error) error {
	w.Helper()
	var err error
	w.drive("the error of "+what, func() bool { err = op(); return err != nil })
	return err
}

// recvError is the error of receiving on s; a message that arrives is a failure.
func (w *world) recvError(s transport.Stream, tag uint32, n int) error {
	w.Helper()
	b := make([]byte, n)
	return w.fails("a receive", func() error {
		ok, err := s.Recv(tag, lend(b))
		require.False(w, ok && err == nil, "a message arrived where an error was due")
		return err
	})
}

// sendError sends until there is an error and returns it.
func (w *world) sendError(s transport.Stream, tag uint32, n int) error {
	w.Helper()
	b := make([]byte, n)
	return w.fails("a send", func() error { _, err := s.Send(tag, lend(b)); return err })
}

// sent waits until n messages of s were counted.
func (w *world) sent(s transport.Stream, n uint64) {
	w.Helper()
	var last uint64
	w.drive("the count of sent messages", func() bool {
		got, err := s.Sent()
		require.NoError(w, err)
		require.GreaterOrEqual(w, got, last, "Sent decreased")
		require.LessOrEqual(w, got, n, "Sent counts more than was sent")
		last = got
		return got == n
	})
}

// requirePeer checks that err is about the peer named by k.
func (w *world) requirePeer(err error, k transport.Key) {
	w.Helper()
	var pe *transport.PeerError
	require.ErrorAs(w, err, &pe)
	require.Equal(w, k, pe.Key)
	require.Equal(w, w.eps[0].Name(), pe.Transport)
	require.NotEmpty(w, pe.Peer)
}

// pattern is n bytes that depend on seed and position, so that a byte from
// another message or another place shows.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i&7 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (8 * (i & 7)))
	}
}

// same fails if got is not want, without printing megabytes.
func (w *world) same(want, got []byte, what string, args ...any) {
	w.Helper()
	require.Len(w, got, len(want), append([]any{what}, args...)...)
	for i := range want {
		if want[i] != got[i] {
			require.FailNow(w, fmt.Sprintf("byte %d of %d is %#02x, want %#02x", i, len(want), got[i], want[i]), append([]any{what}, args...)...)
		}
	}
}
