package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// testManyStreams passes messages over all of 64 streams in an order that
// differs at both ends.
func testManyStreams(t *testing.T, open Provider) {
	o := defaults()
	o.Streams = 64
	w := newWorld(t, open, 2, o)
	a, b := w.pair()
	for round := range 3 {
		for i := range o.Streams {
			n := 8 + 300*i*round
			w.send(a.Stream(i), uint32(i), pattern(uint64(i), n))
		}
		for k := range o.Streams {
			i := (k*37 + 5) % o.Streams
			n := 8 + 300*i*round
			w.same(pattern(uint64(i), n), w.receive(b.Stream(i), uint32(i), n), "stream %d", i)
		}
	}
}

// testStalledStream leaves streams unread until they take no more, with big and
// small messages, and demands that others go on for long; then nothing of the
// stalled ones may be lost.
func testStalledStream(t *testing.T, open Provider) {
	const most = 300 // a transport may have room for ever; the test has not
	for _, n := range []int{8, 3000, 256 << 10} {
		w := newWorld(t, open, 2, defaults())
		a, b := w.pair()
		stalled := []int{0, 2}
		kept := map[int][][]byte{}
		for _, i := range stalled {
			for len(kept[i]) < most {
				m := pattern(uint64(len(kept[i])), n)
				accepted := w.try(patience/600, func() bool {
					ok, err := a.Stream(i).Send(9, lend(m))
					require.NoError(t, err)
					return ok
				})
				if !accepted {
					break
				}
				kept[i] = append(kept[i], m)
			}
			require.NotEmpty(t, kept[i], "stream %d took no message at all", i)
		}
		for k := range 500 {
			m := pattern(uint64(k), 100*(k%7)+8)
			w.send(a.Stream(1), 3, m)
			w.send(b.Stream(3), 4, m)
			w.same(m, w.receive(b.Stream(1), 3, len(m)), "message %d beside the stalled streams", k)
			w.same(m, w.view(a.Stream(3), 4, len(m)), "message %d back", k)
		}
		// Once more with messages as long as the stalled ones.
		for k := range 20 {
			m := pattern(uint64(k), n)
			w.send(a.Stream(1), 3, m)
			w.same(m, w.receive(b.Stream(1), 3, n), "long message %d beside the stalled streams", k)
		}
		for _, i := range stalled {
			for k := range kept[i] {
				w.same(pattern(uint64(k), n), w.receive(b.Stream(i), 9, n), "message %d of stalled stream %d", k, i)
			}
			w.sent(a.Stream(i), uint64(len(kept[i])))
		}
		w.close()
	}
}

// testBackPressure runs ahead of a late receiver as far as there is room, in
// bursts, and loses nothing.
func testBackPressure(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	kept := map[uint64][]byte{}
	var sent, got uint64
	const messages = 1000
	for got < messages {
		for burst := 0; sent < messages && burst < 200; burst++ {
			n := int(sent*131) % 20000
			m := pattern(sent, n)
			ok, err := a.Stream(3).Send(7, lend(m))
			require.NoError(t, err)
			if !ok {
				break
			}
			kept[sent] = m // alive until it was received: Sent is not asked
			sent++
		}
		for k := 0; k < 3 && got < sent; k++ {
			n := int(got*131) % 20000
			w.same(pattern(got, n), w.receive(b.Stream(3), 7, n), "message %d", got)
			delete(kept, got)
			got++
		}
		w.eps[0].Progress()
	}
	w.sent(a.Stream(3), messages)
}

// testSent scribbles over the memory of every message as soon as Sent counts it,
// also while the receiver is in the middle of it.
func testSent(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 4 << 20
	for _, n := range []int{0, 8, 48, 4096, 100 << 10, 4 << 20} {
		w := newWorld(t, open, 2, o)
		a, b := w.pair()
		s := a.Stream(0)
		got, err := s.Sent()
		require.NoError(t, err)
		require.Zero(t, got, "Sent before anything was sent")
		var kept [][]byte
		scribbled := 0
		scribble := func() {
			done, err := s.Sent()
			require.NoError(t, err)
			require.LessOrEqual(t, done, uint64(len(kept)))
			for ; scribbled < int(done); scribbled++ {
				for i := range kept[scribbled] {
					kept[scribbled][i] = 0xee
				}
			}
		}
		messages := min(60, 1+(40<<20)/(n+1))
		in := make([]byte, n)
		for received := 0; received < messages; {
			if len(kept) < messages {
				m := pattern(uint64(len(kept)), n)
				ok, err := s.Send(5, lend(m))
				require.NoError(t, err)
				if ok {
					kept = append(kept, m)
				}
				if scribble(); ok {
					continue // run ahead as far as it goes
				}
			}
			w.drive("a message", func() bool {
				scribble()
				w.eps[0].Progress()
				scribble()
				ok, err := b.Stream(0).Recv(5, lend(in))
				require.NoError(t, err)
				return ok
			})
			w.same(pattern(uint64(received), n), in, "message %d of %d bytes, scribbled %d", received, n, scribbled)
			received++
		}
		w.sent(s, uint64(messages))
		w.close()
	}
}
