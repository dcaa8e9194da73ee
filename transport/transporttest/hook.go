package transporttest

import (
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// hooked opens two ranks of which rank 0 has the fate of its nth message (from
// 0, on any stream) changed.
func hooked(t *testing.T, open Provider, o transport.Options, nth int, fate transport.Fate) *world {
	var mu sync.Mutex
	seen := 0
	hook := func(f transport.Frame) transport.Fate {
		if f.Key.Self != 0 {
			return transport.Fate{}
		}
		mu.Lock()
		defer mu.Unlock()
		seen++
		if seen-1 == nth {
			return fate
		}
		return transport.Fate{}
	}
	first := o
	first.Hook = hook
	w := &world{TB: t, options: o, eps: open(t, []transport.Options{first, o})}
	t.Cleanup(w.close)
	return w
}

// testHookDrop: the message after a lost one is an error; a lost message that is
// the last one is silence, which only a deadline can tell from a slow peer.
func testHookDrop(t *testing.T, open Provider) {
	for _, n := range []int{8, 5000, 200 << 10} {
		w := hooked(t, open, defaults(), 2, transport.Fate{Drop: true})
		a, b := w.pair()
		for k := range uint64(2) {
			w.send(a.Stream(0), 1, pattern(k, n))
			w.same(pattern(k, n), w.receive(b.Stream(0), 1, n), "message %d", k)
		}
		w.send(a.Stream(0), 1, pattern(2, n))
		w.sent(a.Stream(0), 3)
		got := make([]byte, n)
		arrived := w.try(30*time.Millisecond, func() bool {
			ok, err := b.Stream(0).Recv(1, lend(got))
			require.NoError(t, err)
			return ok
		})
		require.False(t, arrived, "the lost message arrived")
		message := pattern(3, n)
		w.send(a.Stream(0), 1, message)
		err := w.fails("a receive after a lost message", func() error {
			ok, err := b.Stream(0).Recv(1, lend(got))
			require.False(t, ok)
			return err
		})
		require.ErrorIs(t, err, transport.ErrSequence)
		w.requirePeer(err, key(1, 0))
		var se *transport.SequenceError
		require.ErrorAs(t, err, &se)
		require.Equal(t, transport.SequenceError{Got: 3, Want: 2}, *se)
		w.close()
	}
}

func testHookTwice(t *testing.T, open Provider) {
	for _, n := range []int{0, 8, 5000} {
		w := hooked(t, open, defaults(), 1, transport.Fate{Twice: true})
		a, b := w.pair()
		for k := range uint64(2) {
			w.send(a.Stream(0), 1, pattern(k, n))
			w.same(pattern(k, n), w.receive(b.Stream(0), 1, n), "message %d", k)
		}
		w.send(a.Stream(0), 1, pattern(2, n))
		err := w.recvError(b.Stream(0), 1, n)
		require.ErrorIs(t, err, transport.ErrSequence)
		w.requirePeer(err, key(1, 0))
		w.close()
	}
}

// testHookReset: both ends learn that the connection broke.
func testHookReset(t *testing.T, open Provider) {
	for _, before := range []int{0, 3} {
		w := hooked(t, open, defaults(), before, transport.Fate{Reset: true})
		a, b := w.pair()
		for k := range uint64(before) {
			w.send(a.Stream(0), 1, pattern(k, 500))
			w.same(pattern(k, 500), w.receive(b.Stream(0), 1, 500), "message %d", k)
		}
		err := w.sendError(a.Stream(0), 1, 500)
		require.ErrorIs(t, err, transport.ErrGone)
		w.requirePeer(err, key(0, 1))
		require.ErrorIs(t, w.recvError(a.Stream(1), 1, 8), transport.ErrGone)
		require.ErrorIs(t, w.recvError(b.Stream(0), 1, 500), transport.ErrGone)
		require.ErrorIs(t, w.sendError(b.Stream(2), 1, 8), transport.ErrGone)
		w.close()
	}
}

// testHookDelay: a delayed message holds back those behind it on its stream,
// comes no earlier than the delay, and nothing changes its order.
func testHookDelay(t *testing.T, open Provider) {
	const delay = 80 * time.Millisecond
	w := hooked(t, open, defaults(), 1, transport.Fate{Delay: delay})
	a, b := w.pair()
	w.send(a.Stream(0), 1, pattern(0, 100))
	w.same(pattern(0, 100), w.receive(b.Stream(0), 1, 100), "not delayed")
	start := time.Now()
	messages := make([][]byte, 4)
	for k := range messages {
		messages[k] = pattern(uint64(k+1), 100)
		w.send(a.Stream(0), 1, messages[k])
	}
	for k := range messages {
		w.same(messages[k], w.receive(b.Stream(0), 1, 100), "message %d", k+1)
		require.GreaterOrEqual(t, time.Since(start), delay, "message %d", k+1)
	}
	w.sent(a.Stream(0), 5)
}

// testHookFlip: with Checksum an altered payload is an error and never data.
func testHookFlip(t *testing.T, open Provider) {
	o := defaults()
	o.Checksum = true
	for _, n := range []int{1, 8, 57, 5000, 200 << 10} {
		for _, bit := range []int{1, 5, 8 * n} {
			w := hooked(t, open, o, 1, transport.Fate{Flip: bit})
			a, b := w.pair()
			first, second := pattern(0, n), pattern(1, n)
			w.send(a.Stream(0), 1, first)
			w.same(pattern(0, n), w.receive(b.Stream(0), 1, n), "before the flip")
			w.send(a.Stream(0), 1, second)
			var err error
			if bit == 1 { // let it lie there for a while first
				w.send(a.Stream(1), 1, pattern(2, 8))
				w.same(pattern(2, 8), w.receive(b.Stream(1), 1, 8), "another stream")
			}
			if bit == 5 {
				err = w.fails("a view", func() error {
					p, err := b.Stream(0).View(1, n)
					require.Nil(t, p)
					return err
				})
			} else {
				err = w.recvError(b.Stream(0), 1, n)
			}
			require.ErrorIs(t, err, transport.ErrCorrupt)
			w.requirePeer(err, key(1, 0))
			w.same(pattern(1, n), second, "the sender's memory must not be touched")
			w.close()
		}
	}
}

// testHookFrames checks what a Hook is told, once for each accepted message.
func testHookFrames(t *testing.T, open Provider) {
	var mu sync.Mutex
	var frames []transport.Frame
	o := defaults()
	o.FirstSeq = 7
	first := o
	first.Hook = func(f transport.Frame) transport.Fate {
		mu.Lock()
		defer mu.Unlock()
		frames = append(frames, f)
		return transport.Fate{}
	}
	w := &world{TB: t, options: o, eps: open(t, []transport.Options{first, o})}
	t.Cleanup(w.close)
	a, b := w.pair()
	var want []transport.Frame
	for k := range 100 {
		n := k * 50
		w.send(a.Stream(k%2), 1, pattern(0, n))
		want = append(want, transport.Frame{Transport: w.eps[0].Name(), Key: key(0, 1), Stream: k % 2, Seq: 7 + uint64(k/2), Bytes: n})
		if k%2 == 1 {
			w.receive(b.Stream(0), 1, n-50)
			w.receive(b.Stream(1), 1, n)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, want, frames)
}

// testChecksum passes good messages with checksums on.
func testChecksum(t *testing.T, open Provider) {
	o := defaults()
	o.Checksum = true
	w := newWorld(t, open, 2, o)
	a, b := w.pair()
	for k, n := range sizes(o) {
		w.send(a.Stream(0), 1, pattern(uint64(k), n))
		w.send(a.Stream(1), 1, pattern(uint64(k+1), n))
		w.same(pattern(uint64(k+1), n), w.view(b.Stream(1), 1, n), "%d bytes viewed", n)
		w.same(pattern(uint64(k), n), w.receive(b.Stream(0), 1, n), "%d bytes", n)
	}
}
