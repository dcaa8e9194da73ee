//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// What fits a line of its stream takes no slot, and one byte more does; either arrives whole. The two ends may have lines of different widths.
func TestLinesHoldWhatFits(t *testing.T) {
	dir := segmentDir(t)
	large := openIn(t, dir)
	if large.seg.size < wideFrom {
		t.Skipf("%s has room for narrow lines only: a segment there has %d bytes, wide lines want %d", dir, large.seg.size, wideFrom)
	}
	small, err := Open(Config{Dir: dir, SegmentSize: 16 << 20}, testOptions())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, small.Close()) })
	x, y := pair(t, large, small, 1)
	linesHoldWhatFits(t, x, y, small, 4160, 48)
	linesHoldWhatFits(t, y, x, large, 48, 48)
	x, y = pair(t, large, openIn(t, dir), 2)
	linesHoldWhatFits(t, x, y, y.(*conn).e, 4160, 48)
}

// linesHoldWhatFits sends from x to y, whose endpoint is b; fits has the longest message of a line of each stream.
func linesHoldWhatFits(t *testing.T, x, y transport.Conn, b *Endpoint, fits ...int) {
	for i, most := range fits {
		tx, rx := x.Stream(i).(*stream), y.Stream(i).(*stream)
		for _, n := range []int{0, 1, 8, 47, 48, 49, 1000, most - 1, most, most + 1, 2 * most} {
			sent := filled(n, byte(n))
			ok, err := tx.Send(1, bufOf(sent))
			require.True(t, ok)
			require.NoError(t, err)
			require.Equal(t, n > most, tx.tx.staging.slot > 0, "a slot for %d bytes on stream %d", n, i)
			require.NoError(t, poll(b, func() (bool, error) {
				p, err := rx.View(1, n)
				if p == nil || err != nil {
					return false, err
				}
				require.True(t, bytes.Equal(sent, unsafe.Slice((*byte)(p), n)), "%d bytes on stream %d", n, i)
				return true, rx.Release()
			}))
			if n > most {
				require.NoError(t, poll(x.(*conn).e, func() (bool, error) { return tx.tx.staging.drained(&tx.tx), tx.tx.refresh() }))
				tx.tx.staging.free()
			}
		}
	}
}

// A sender has all lines and all slots in use before it is told to wait, and finds again what the reader has freed, each time anew; nothing that
// is not read yet is written over.
func TestRoomIsFoundAgain(t *testing.T) {
	dir := segmentDir(t)
	for _, c := range []struct {
		stream, bytes int
		checksum      bool
		slots         int // of that length
	}{
		{0, 8, false, 4}, {0, 4000, false, 4}, {0, 4000, true, 4}, {1, 48, false, 4},
		{0, 5000, false, 4}, {1, 49, false, 4}, {1, 49, true, 4},
		{0, 16 << 10, false, 32},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			o := testOptions()
			o.Checksum = c.checksum
			a, err := Open(Config{Dir: dir}, o)
			require.NoError(t, err)
			defer a.Close()
			b, err := Open(Config{Dir: dir}, o)
			require.NoError(t, err)
			defer b.Close()
			x, y := pair(t, a, b, 1)
			room := ringLines
			if c.bytes > a.seg.ring(0, c.stream).inline() {
				room = min(room, c.slots)
			}
			sent, read := 0, 0
			for _, reads := range []int{1, 2, 1, room, 3, 1, room, room} {
				for {
					ok, err := x.Stream(c.stream).Send(1, bufOf(filled(c.bytes, byte(sent))))
					require.NoError(t, err)
					if !ok {
						break
					}
					sent++
				}
				require.Equal(t, room, sent-read)
				for range reads {
					got := make([]byte, c.bytes)
					require.NoError(t, poll(b, func() (bool, error) { return y.Stream(c.stream).Recv(1, bufOf(got)) }))
					require.Equal(t, filled(c.bytes, byte(read)), got)
					read++
				}
			}
		})
	}
}

// A message that a Hook sends twice waits for two lines, and finds them when the reader has freed them.
func TestTwiceWantsTwoLines(t *testing.T) {
	dir := segmentDir(t)
	o := testOptions()
	twice := false
	o.Hook = func(transport.Frame) transport.Fate { return transport.Fate{Twice: twice} }
	a, err := Open(Config{Dir: dir}, o)
	require.NoError(t, err)
	defer a.Close()
	b := openIn(t, dir)
	x, y := pair(t, a, b, 1)
	send := func() bool {
		ok, err := x.Stream(0).Send(1, bufOf(filled(8, 1)))
		require.NoError(t, err)
		return ok
	}
	read := func() {
		require.NoError(t, poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(make([]byte, 8))) }))
	}
	for range ringLines - 1 {
		require.True(t, send())
	}
	twice = true
	require.False(t, send(), "one line is free")
	read()
	require.True(t, send(), "two are")
	for range ringLines - 1 {
		read()
	}
	_, err = y.Stream(0).Recv(1, bufOf(make([]byte, 8)))
	require.ErrorIs(t, err, transport.ErrSequence)
}

// A comparison of the ways to copy is made in the slot that the peer has read most often, the first, while others take slots in turn.
func TestComparisonsTakeTheFirstSlot(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	x, y := pair(t, a, b, 1)
	tx := &x.Stream(1).(*stream).tx
	for range 3 {
		ok, err := x.Stream(1).Send(1, bufOf(filled(100, 1)))
		require.True(t, ok)
		require.NoError(t, err)
		require.NoError(t, poll(b, func() (bool, error) { return y.Stream(1).Recv(1, bufOf(make([]byte, 100))) }))
	}
	off, err := tx.stage(a, 100, false)
	require.NoError(t, err)
	require.Equal(t, tx.staging.off+3*tx.staging.slot, off)
	tx.staging.next = 2
	off, err = tx.stage(a, 100, true)
	require.NoError(t, err)
	require.Equal(t, tx.staging.off, off)
}

// How long a peer's rings are follows from its segment, not from ours: they may reach to its end and no further.
func TestRingsOfAnotherWidth(t *testing.T) {
	dir := segmentDir(t)
	open := func(size int64) *Endpoint {
		e, err := Open(Config{Dir: dir, SegmentSize: size}, testOptions())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		return e
	}
	large, small := open(wideFrom), open(16<<20)
	for i, ends := range [][2]*Endpoint{{large, small}, {small, large}} {
		x, _ := pair(t, ends[0], ends[1], uint64(i+1))
		c, seg := x.(*conn), ends[1].seg
		last := seg.size - seg.ringsBytes(2)
		var bad *descriptorError
		require.ErrorAs(t, c.attach(uint64(last+lineBytes)), &bad)
		require.False(t, c.attached)
		require.NoError(t, c.attach(uint64(last)))
		require.True(t, c.attached)
	}
}

// Whoever is answered learns from the answers what was read, and does not look at the reader's count.
func TestMessagesTellWhatWasRead(t *testing.T) {
	dir := segmentDir(t)
	for _, n := range []int{8, 48, 49, 4160, 5000, 40 << 10} {
		x, y := pair(t, openIn(t, dir), openIn(t, dir), 1)
		for i := range 4 {
			a, b := x.Stream(i%2).(*stream), y.Stream(i%2).(*stream)
			for k := range 3 * ringLines {
				messageTells(t, a, b, filled(n, byte(k)), i < 2)
				messageTells(t, b, a, filled(n, byte(k)), i < 2)
			}
		}
	}
}

// messageTells sends a message and spoils the count that a sender might look at. It is viewed and, if it does not fit a line, made in its slot; or
// it is copied twice.
func messageTells(t *testing.T, from, to *stream, sent []byte, views bool) {
	n := len(sent)
	var slot unsafe.Pointer
	if views {
		slot = from.Stage(n)
	}
	if slot != nil {
		from.Fill(slot, unsafe.Pointer(&sent[0]), n)
		require.NoError(t, from.SendStaged(1, n))
	} else {
		ok, err := from.Send(1, bufOf(sent))
		require.NoError(t, err)
		require.True(t, ok)
	}
	got := make([]byte, n)
	require.NoError(t, poll(to.c.e, func() (bool, error) {
		if !views {
			return to.Recv(1, bufOf(got))
		}
		p, err := to.View(1, n)
		if p == nil || err != nil {
			return false, err
		}
		copy(got, unsafe.Slice((*byte)(p), n))
		return true, to.Release()
	}))
	require.Equal(t, sent, got)
	*from.tx.ring.head() = 77 // an error for whoever looks
}

// A count that cannot be true is passed over: it is no news, or not the peer's to say.
func TestHears(t *testing.T) {
	const head = 1<<48 - 2 // the low 16 bits are about to wrap
	for ack, want := range map[uint64]uint64{head: head, head + 1: head + 1, head + 3: head + 3, head + 4: head, head - 1: head, head + 1<<15: head} {
		s := sender{head: head, seq: head + 3, lends: 1}
		s.lent[(head+1)%ringLines] = true
		s.hears(ack << ackShift)
		require.Equal(t, want, s.head, "told %d", int64(ack-head))
		require.Equal(t, want > head+1, s.lends == 0)
	}
}
