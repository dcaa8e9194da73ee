package transporttest

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// sizes are awkward around the sizes of lines, headers, pages and slots.
func sizes(o transport.Options) []int {
	all := []int{0, 1, 7, 8, 39, 40, 41, 47, 48, 49, 55, 56, 57, 63, 64, 65, 127, 128, 129,
		1000, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1}
	return append(all, o.MaxMessage-1, o.MaxMessage)
}

func testSizes(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	for _, n := range sizes(w.options) {
		for k := range uint64(3) {
			there, back := pattern(k, n), pattern(k+100, n)
			w.send(a.Stream(0), uint32(n), there)
			w.send(b.Stream(0), uint32(n), back)
			w.same(there, w.receive(b.Stream(0), uint32(n), n), "message %d of %d bytes", k, n)
			w.same(back, w.view(a.Stream(0), uint32(n), n), "message %d of %d bytes back", k, n)
		}
	}
	total := uint64(3 * len(sizes(w.options)))
	w.sent(a.Stream(0), total)
	w.sent(b.Stream(0), total)
}

// testValues sends every byte value at every place of a word, in memory of every
// alignment, on both ends.
func testValues(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	for shift := range 9 {
		all := make([]byte, shift+256)[shift:]
		for i := range all {
			all[i] = byte(i)
		}
		w.send(a.Stream(1), 1, all)
		got := make([]byte, 8+256)[8-shift:][:256]
		w.recv(b.Stream(1), 1, got)
		w.same(all, got, "shifted by %d", shift)
	}
	for _, fillByte := range []byte{0, 0xff, 0x80, 1} {
		for _, n := range []int{8, 56, 4096} {
			m := make([]byte, n)
			for i := range m {
				m[i] = fillByte
			}
			w.send(a.Stream(1), 0, m)
			w.same(m, w.view(b.Stream(1), 0, n), "all %#x", fillByte)
		}
	}
	for _, tag := range []uint32{0, 1, 1 << 31, 0xffffffff} {
		w.send(a.Stream(1), tag, pattern(uint64(tag), 8))
		w.same(pattern(uint64(tag), 8), w.receive(b.Stream(1), tag, 8), "tag %#x", tag)
	}
}

// testMixedReceives keeps several messages of random sizes under way and
// receives them by Recv and View in turn.
func testMixedReceives(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	r := rand.New(rand.NewPCG(1, 2))
	const messages = 400
	lengths := make([]int, messages)
	for i := range lengths {
		switch r.IntN(4) {
		case 0:
			lengths[i] = r.IntN(64)
		case 1, 2:
			lengths[i] = r.IntN(8 << 10)
		case 3:
			lengths[i] = r.IntN(w.options.MaxMessage + 1)
		}
	}
	kept := make([][]byte, messages) // Sent is not asked, so all stays ours to keep
	next := 0
	for got := range messages {
		for ahead := r.IntN(6); ahead >= 0 && next < messages; ahead-- {
			if kept[next] == nil {
				kept[next] = pattern(uint64(next), lengths[next])
			}
			ok, err := a.Stream(2).Send(uint32(next), lend(kept[next]))
			require.NoError(t, err)
			if !ok {
				break
			}
			next++
		}
		if next == got {
			w.send(a.Stream(2), uint32(next), pattern(uint64(next), lengths[next]))
			next++
		}
		want := pattern(uint64(got), lengths[got])
		if r.IntN(2) == 0 {
			w.same(want, w.receive(b.Stream(2), uint32(got), len(want)), "message %d received", got)
		} else {
			w.same(want, w.view(b.Stream(2), uint32(got), len(want)), "message %d viewed", got)
		}
	}
}

func testZeroLength(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	for k := range uint32(100) {
		w.send(a.Stream(0), k, nil)
		if k%2 == 0 {
			w.recv(b.Stream(0), k, nil)
			continue
		}
		var p unsafe.Pointer
		w.drive("an empty view", func() bool {
			var err error
			p, err = b.Stream(0).View(k, 0)
			require.NoError(t, err)
			return p != nil
		})
		b.Stream(0).Release()
	}
	ok, err := b.Stream(0).Recv(100, transport.Buf{})
	require.NoError(t, err)
	require.False(t, ok, "a message that nobody sent")
	w.sent(a.Stream(0), 100)
}

// testBothWays exchanges the longest messages in both directions at once, driven
// by one goroutine: neither end may need the other to be inside a call.
func testBothWays(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 8 << 20
	w := newWorld(t, open, 2, o)
	a, b := w.pair()
	for round := range uint64(4) {
		there, back := pattern(round, o.MaxMessage), pattern(round+50, o.MaxMessage-1)
		gotThere, gotBack := make([]byte, len(there)), make([]byte, len(back))
		var aSent, bSent, aGot, bGot bool
		w.drive("the exchange of big messages", func() bool {
			step := func(done *bool, f func() (bool, error)) {
				if !*done {
					ok, err := f()
					require.NoError(t, err)
					*done = ok
				}
			}
			step(&aSent, func() (bool, error) { return a.Stream(0).Send(1, lend(there)) })
			step(&bSent, func() (bool, error) { return b.Stream(0).Send(2, lend(back)) })
			step(&aGot, func() (bool, error) { return a.Stream(0).Recv(2, lend(gotBack)) })
			step(&bGot, func() (bool, error) { return b.Stream(0).Recv(1, lend(gotThere)) })
			return aSent && bSent && aGot && bGot
		})
		w.same(there, gotThere, "round %d there", round)
		w.same(back, gotBack, "round %d back", round)
	}
	w.sent(a.Stream(0), 4)
	w.sent(b.Stream(0), 4)
}
