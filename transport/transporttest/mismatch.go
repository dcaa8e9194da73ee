package transporttest

import (
	"math"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// testWrongTag: whoever asks for another message than the next one gets an
// error with both tags, and nothing of the payload.
func testWrongTag(t *testing.T, open Provider) {
	for _, n := range []int{0, 8, 5000, 256 << 10} {
		for _, askFirst := range []bool{false, true} {
			w := newWorld(t, open, 2, defaults())
			a, b := w.pair()
			w.send(a.Stream(0), 1, pattern(0, 8))
			w.same(pattern(0, 8), w.receive(b.Stream(0), 1, 8), "before")

			got := make([]byte, n)
			if askFirst {
				ok, err := b.Stream(0).Recv(0xb, lend(got))
				require.NoError(t, err)
				require.False(t, ok)
			}
			message := pattern(1, n)
			w.send(a.Stream(0), 0xa, message)
			err := w.fails("a receive", func() error {
				ok, err := b.Stream(0).Recv(0xb, lend(got))
				require.False(t, ok)
				return err
			})
			require.ErrorIs(t, err, transport.ErrMismatch)
			w.requirePeer(err, key(1, 0))
			var te *transport.TagError
			require.ErrorAs(t, err, &te)
			require.Equal(t, transport.TagError{Seq: 1, Tag: 0xa, WantTag: 0xb, Bytes: n, WantBytes: n}, *te)

			_, err = b.Stream(0).Recv(0xa, lend(got))
			require.Error(t, err, "an error stays")
			_, err = b.Stream(0).View(0xa, n)
			require.Error(t, err, "an error stays")

			w.send(a.Stream(1), 1, pattern(5, 100))
			w.same(pattern(5, 100), w.receive(b.Stream(1), 1, 100), "another stream of the same connection")
			w.close()
		}
	}
}

func testWrongLength(t *testing.T, open Provider) {
	for _, c := range []struct{ sent, asked int }{
		{8, 7}, {8, 9}, {0, 1}, {1, 0}, {40, 41}, {56, 57}, {4096, 100}, {100, 4096},
		{256 << 10, 256<<10 - 1}, {8, 256 << 10}, {256 << 10, 8},
	} {
		for _, view := range []bool{false, true} {
			w := newWorld(t, open, 2, defaults())
			a, b := w.pair()
			message := pattern(1, c.sent)
			w.send(a.Stream(0), 3, message)
			var err error
			if view {
				err = w.fails("a view", func() error {
					p, err := b.Stream(0).View(3, c.asked)
					require.Nil(t, p)
					return err
				})
			} else {
				err = w.recvError(b.Stream(0), 3, c.asked)
			}
			require.ErrorIs(t, err, transport.ErrMismatch)
			var te *transport.TagError
			require.ErrorAs(t, err, &te)
			require.Equal(t, transport.TagError{Seq: 0, Tag: 3, WantTag: 3, Bytes: c.sent, WantBytes: c.asked}, *te)
			w.close()
		}
	}
}

// testTooLong: a message longer than MaxMessage is refused at both ends, naming
// both lengths.
func testTooLong(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 1000
	for _, n := range []int{1001, 5000} {
		w := newWorld(t, open, 2, o)
		a, b := w.pair()
		message := make([]byte, n)
		ok, err := a.Stream(0).Send(0, lend(message))
		require.False(t, ok)
		require.ErrorContains(t, err, "1000")
		ok, err = b.Stream(1).Recv(0, lend(message))
		require.False(t, ok)
		require.ErrorContains(t, err, "1000")
		p, err := b.Stream(2).View(0, n)
		require.Nil(t, p)
		require.ErrorContains(t, err, "1000")
		w.send(a.Stream(3), 1, pattern(1, 1000))
		w.same(pattern(1, 1000), w.receive(b.Stream(3), 1, 1000), "a message that fits")
		w.close()
	}
}

// testFirstSeq lets the numbers of messages wrap in 32 and in 64 bits.
func testFirstSeq(t *testing.T, open Provider) {
	for _, first := range []uint64{1, math.MaxUint32 - 2, math.MaxUint32 + 1, math.MaxUint64 - 2, math.MaxUint64, 1<<63 - 2} {
		o := defaults()
		o.FirstSeq = first
		w := newWorld(t, open, 2, o)
		a, b := w.pair()
		for k := range uint64(200) {
			n := int(k*977) % 9000
			m, back := pattern(k, n), pattern(k, 8)
			w.send(a.Stream(0), 1, m)
			w.send(b.Stream(0), 1, back)
			w.same(m, w.receive(b.Stream(0), 1, n), "first %d, message %d", first, k)
			w.same(back, w.view(a.Stream(0), 1, 8), "first %d, message %d back", first, k)
		}
		w.sent(a.Stream(0), 200)
		w.send(a.Stream(0), 1, nil)
		err := w.recvError(b.Stream(0), 2, 0)
		var te *transport.TagError
		require.ErrorAs(t, err, &te)
		require.Equal(t, first+200, te.Seq)
		w.close()
	}
}
