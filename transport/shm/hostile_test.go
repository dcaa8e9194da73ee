//go:build linux && (amd64 || arm64)

package shm

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// FuzzHostilePeer: a peer that writes anything anywhere into its own segment,
// before and after we looked, gets us errors or nonsense of the right length,
// never a fault, a panic or a hang.
func FuzzHostilePeer(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 3))
		o := testOptions()
		o.MaxMessage = 1 << 20
		o.Checksum = rng.IntN(4) == 0
		dir := defaultDir
		open := func() *Endpoint {
			e, err := Open(Config{Dir: dir, SegmentSize: 16 << 20}, o)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			return e
		}
		us, peer := open(), open()
		if rng.IntN(4) == 0 { // before we looked
			h := peer.seg.bytes(0, firstPieceAt)
			binary.LittleEndian.PutUint32(h[rng.IntN(firstPieceAt/4)*4:], rng.Uint32())
			if us.Reach(t.Context(), peer.Address()) != nil {
				return
			}
		}
		require.NoError(t, us.Reach(t.Context(), peer.Address()))
		var x, y [2]transport.Conn
		for i := range x {
			x[i], y[i] = pair(t, us, peer, uint64(i))
			if rng.IntN(2) == 0 {
				_, _ = y[i].Stream(0).Send(1, bufOf(filled(8, 1)))
				_, _ = y[i].Stream(0).Send(1, bufOf(filled(3000, 1)))
			}
		}
		out := filled(3000, 2)
		for range 300 {
			if rng.IntN(3) > 0 {
				scribble(rng, peer, y[rng.IntN(2)].(*conn).ring)
			}
			i := rng.IntN(2)
			s := x[i].Stream(rng.IntN(2))
			n := []int{0, 8, 48, 49, 3000, 2 << 20}[rng.IntN(60)%6]
			if n > len(out) { // too long: an error of its own
				n = []int{8, 100, 2 << 20}[rng.IntN(3)]
				long := make([]byte, n)
				_, _ = s.Recv(1, bufOf(long))
				continue
			}
			switch rng.IntN(9) {
			case 0:
				_, _ = s.Send(1, bufOf(out[:n]))
			case 1:
				_, _ = s.Sent()
			case 2, 3:
				_, _ = s.Recv(1, bufOf(make([]byte, n)))
			case 4, 5:
				if p, err := s.View(1, n); p != nil && err == nil {
					sum := byte(0)
					for _, b := range unsafe.Slice((*byte)(p), n) {
						sum += b
					}
					out[0] = sum
					s.Release()
				}
			case 6:
				if word, _ := s.(transport.Awaiter).Awaits(); word != nil {
					out[1] = byte(*word)
				}
			case 8:
				_ = s.Release()
			case 7:
				us.lastLook = us.lastLook.Add(-liveness)
				us.Progress()
				if rng.IntN(8) == 0 {
					require.NoError(t, x[i].Close())
				}
			}
		}
	})
}

// FuzzDirectory: a peer's directory may be said to go on anywhere. What is found there is an error or nothing, and where it cannot be read nothing is.
func FuzzDirectory(f *testing.F) {
	for i := range uint8(3) {
		for _, at := range []uint64{0, firstPieceAt, firstPieceAt + 1, 1 << 20, 16<<20 - entryBytes, 16 << 20, 1 << 62, math.MaxUint64, math.MaxUint64 - entryBytes + 1} {
			f.Add(i, at)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, at uint64) {
		open := func() *Endpoint {
			e, err := Open(Config{Dir: defaultDir, SegmentSize: 16 << 20}, testOptions())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			return e
		}
		us, peer := open(), open()
		require.NoError(t, us.Reach(t.Context(), peer.Address()))
		atomic.StoreUint64(&peer.seg.header().piece[int(i)%len(peer.seg.header().piece)], at)
		c, err := us.Conn(transport.Key{Comm: 1, Self: 0, Peer: 1}, peer.Address())
		require.NoError(t, err)
		for range 3 {
			ok, err := c.Stream(0).Recv(1, bufOf(make([]byte, 8)))
			require.False(t, ok)
			if err != nil {
				require.ErrorIs(t, err, transport.ErrCorrupt)
			}
			us.lastLook = us.lastLook.Add(-liveness)
			us.Progress()
		}
		require.NoError(t, c.Close())
	})
}

// FuzzLines: what the peer says of the next message, or of the one behind it, can be anything at all: four bytes of the script choose its number
// and tag, its length, and where it is, from what is right and what is dangerous. The receiver gets bytes of the right number or an error.
func FuzzLines(f *testing.F) {
	add := func(script ...byte) {
		for n := range byte(6) {
			f.Add(script, n, false)
			f.Add(script, n, true)
		}
	}
	for number := range byte(5) {
		add(number, 0, 0, 0)
		add(0, 0, 0, 0, number, 1, 0, 0)
	}
	for length := range byte(9) {
		for place := range byte(8) {
			add(0, 0, length, place)
		}
	}
	add(8, 0, 0, 0)                         // behind the next
	add(0x20, 0, 0, 0)                      // the peer leaves
	add(0x60, 0, 0, 0)                      // and has said nothing
	add(0, 0, 0, 0, 0x20, 0, 0, 0)          // after one
	add(0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // a view first
	add(0x30, 0, 2, 2)                      // of what is taken back
	add(0x80, 0, 0, 0)                      // the peer sleeps
	f.Fuzz(func(t *testing.T, script []byte, n byte, checksum bool) {
		o := testOptions()
		o.Checksum = checksum
		open := func() *Endpoint {
			e, err := Open(Config{Dir: defaultDir, SegmentSize: wideFrom}, o)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			return e
		}
		us, peer := open(), open()
		x, y := pair(t, us, peer, 1)
		number := int(n / 3 % 2) // of the stream: with wide lines or narrow ones
		ok, err := y.Stream(number).Send(1, bufOf(make([]byte, 8)))
		require.True(t, ok)
		require.NoError(t, err)
		require.NoError(t, poll(us, func() (bool, error) { return x.Stream(number).Recv(1, bufOf(make([]byte, 8))) }))
		s, ring := x.Stream(number).(*stream), y.Stream(number).(*stream).tx.ring
		want := []int{8, 100, 3000}[n%3]
		sum := uint64(0)
		if checksum {
			sum = uint64(checksumOf(make([]byte, want))) << 32
		}
		for ; len(script) >= 4 && s.err == nil; script = script[4:] {
			lengths := []uint64{uint64(want) | sum, uint64(want) | farBit | sum, uint64(want) | farBit | lentBit | sum, uint64(want) | 1<<40, uint64(want) | farBit | 1<<40, 1, lengthMask, lengthMask | farBit, 0}
			size := uint64(peer.seg.size)
			places := []uint64{0, firstPieceAt, size / 2, size - uint64(want), size - uint64(want) + 1, size, math.MaxUint64 - 5, 1 << 63}
			l := unsafe.Slice(ring.line(s.rx.seq+uint64(script[0]>>3&1)), 8)
			l[2] = places[int(script[3])%len(places)]
			l[1] = lengths[int(script[2])%len(lengths)]
			seq := uint32(s.rx.seq) + uint32(script[0]>>3&1) + []uint32{0, 1, 5, math.MaxUint32, 1 << 31}[script[0]%8%5]
			if script[0]&0x40 == 0 {
				atomic.StoreUint64(&l[0], uint64(seq)<<32|uint64(1+script[1]))
			}
			leaves := func() {
				if script[0]&0x20 != 0 {
					_ = y.Close()
					peer.Progress()
				}
			}
			if script[0]&0x10 == 0 {
				leaves()
			}
			if script[0]&0x80 != 0 {
				peer.Arm()
			}
			buf := bufOf(make([]byte, want))
			buf.Cold = script[0]&0x80 != 0
			for range 130 { // a loss is looked for now and then
				if script[0]&0x10 != 0 {
					p, err := s.View(1, want)
					if err != nil || p == nil {
						continue
					}
					leaves()
					_ = s.Release()
				} else if ok, err := s.Recv(1, buf); !ok && err == nil {
					continue
				}
				break
			}
			_ = s.Release()
		}
	})
}

func checksumOf(b []byte) uint32 { return checksum(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }

// scribble changes something in the used part of the peer's own segment: random
// bytes, or words that are dangerous where they are offsets, counts or numbers,
// or flags of messages. Many of them in the first lines of a connection's rings.
func scribble(rng *rand.Rand, e *Endpoint, ring int64) {
	used := int64(96 << 10)
	var at int64
	switch rng.IntN(4) {
	case 2:
		stream := rng.IntN(2)
		at = ring + e.seg.ringsBytes(stream) + linesAt + rng.Int64N(4)*int64(e.seg.width(stream))
	case 0:
		at = rng.Int64N(firstPieceAt + 8*entryBytes)
	case 1:
		at = firstPieceAt + rng.Int64N(pieceEntries*entryBytes)
	default:
		at = rng.Int64N(used)
	}
	b := e.seg.bytes(at/8*8, 64)
	switch rng.IntN(3) {
	case 0:
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	case 1:
		words := []uint64{0, 1, 63, 64, 4096, headerBytes, uint64(e.seg.size) - 64, uint64(e.seg.size) - 1, uint64(e.seg.size),
			math.MaxInt64, math.MaxUint64, 1 << 63, uint64(rng.Int64N(e.seg.size)), uint64(rng.Int64N(e.seg.size)) / 64 * 64, 3000 | farBit, 3000 | farBit | lentBit, 8}
		binary.LittleEndian.PutUint64(b[:8], words[rng.IntN(len(words))])
		if rng.IntN(2) == 0 { // a message: its number and tag, its length, where it is
			binary.LittleEndian.PutUint64(b[:8], uint64(rng.IntN(4))<<32|uint64(rng.IntN(2)))
			binary.LittleEndian.PutUint64(b[8:], []uint64{8, 100, 3000, 3000 | farBit, lengthMask, lengthMask | farBit, 8 | lentBit, 3000 | farBit | lentBit}[rng.IntN(8)])
			binary.LittleEndian.PutUint64(b[16:], words[rng.IntN(len(words))])
		}
	default:
		b[rng.IntN(8)] ^= 1 << rng.IntN(8)
	}
}

// TestHostileDescriptors: each kind of nonsense has its error.
func TestHostileDescriptors(t *testing.T) {
	dir := segmentDir(t)
	type hostile struct {
		name string
		do   func(peer *Endpoint, line []uint64, c *conn)
		says string
		is   error
	}
	for _, h := range []hostile{
		{"offset past the end", func(p *Endpoint, l []uint64, _ *conn) { l[2] = uint64(p.seg.size) - 10 }, "which is outside", transport.ErrCorrupt},
		{"offset that overflows", func(_ *Endpoint, l []uint64, _ *conn) { l[2] = math.MaxUint64 - 5 }, "which is outside", transport.ErrCorrupt},
		{"offset in the header", func(_ *Endpoint, l []uint64, _ *conn) { l[2] = 0 }, "which is outside", transport.ErrCorrupt},
		{"length", func(_ *Endpoint, l []uint64, _ *conn) { l[1] = lengthMask | farBit }, "and 1073741823 bytes, want", transport.ErrMismatch},
		{"long message in a line", func(_ *Endpoint, l []uint64, _ *conn) { l[1] = 100 }, "message in a line", transport.ErrCorrupt},
		{"number", func(_ *Endpoint, l []uint64, _ *conn) { l[0] += 5 << 32 }, "got message 5, want 0", transport.ErrSequence},
		{"number before", func(_ *Endpoint, l []uint64, _ *conn) { l[0] = math.MaxUint32 << 32 }, "got message 18446744073709551615, want 0", transport.ErrSequence},
		{"tag", func(_ *Endpoint, l []uint64, _ *conn) { l[0]++ }, "tag 00000002 and 100 bytes, want tag 00000001", transport.ErrMismatch},
		{"rings not aligned", func(_ *Endpoint, _ []uint64, c *conn) { c.entry.ring += 4 }, "lines of a connection", transport.ErrCorrupt},
		{"rings past the end", func(p *Endpoint, _ []uint64, c *conn) { c.entry.ring = uint64(p.seg.size) - 64 }, "lines of a connection", transport.ErrCorrupt},
		{"directory past the end", func(p *Endpoint, _ []uint64, c *conn) {
			c.entry.comm++
			p.seg.header().piece[1] = uint64(p.seg.size)
		}, "piece of the directory", transport.ErrCorrupt},
	} {
		t.Run(h.name, func(t *testing.T) {
			us, peer := openIn(t, dir), openIn(t, dir)
			x, y := pair(t, us, peer, 1)
			ok, err := y.Stream(1).Send(1, bufOf(filled(100, 1)))
			require.True(t, ok)
			require.NoError(t, err)
			h.do(peer, unsafe.Slice(y.Stream(1).(*stream).tx.ring.line(0), 8), y.(*conn))
			err = poll(us, func() (bool, error) { return x.Stream(1).Recv(1, bufOf(make([]byte, 100))) })
			require.ErrorIs(t, err, h.is)
			require.ErrorContains(t, err, h.says)
			var p *transport.PeerError
			require.True(t, errors.As(err, &p))
			require.Equal(t, transport.Key{Comm: 1, Self: 0, Peer: 1}, p.Key)
			_, again := x.Stream(1).View(1, 8)
			require.Equal(t, err, again, "sticky")
		})
	}
	t.Run("a byte more in a line than it has", func(t *testing.T) {
		us, peer := openIn(t, dir), openIn(t, dir)
		for i := range 2 {
			x, y := pair(t, us, peer, uint64(i+1))
			n := peer.seg.ring(0, i).inline() + 1
			ok, err := y.Stream(i).Send(1, bufOf(filled(n, 1)))
			require.True(t, ok)
			require.NoError(t, err)
			unsafe.Slice(y.Stream(i).(*stream).tx.ring.line(0), 2)[1] = uint64(n)
			err = poll(us, func() (bool, error) {
				p, err := x.Stream(i).View(1, n)
				return p != nil, err
			})
			require.ErrorIs(t, err, transport.ErrCorrupt, "stream %d", i)
		}
	})
	t.Run("count of lines read", func(t *testing.T) {
		us, peer := openIn(t, dir), openIn(t, dir)
		x, _ := pair(t, us, peer, 1)
		s := x.Stream(0).(*stream)
		_, err := s.Send(1, bufOf(filled(8, 1)))
		require.NoError(t, err)
		*s.tx.ring.head() = 77
		err = poll(us, func() (bool, error) { ok, err := s.Send(1, bufOf(filled(8, 1))); return ok && err != nil, err })
		require.ErrorIs(t, err, transport.ErrSequence)
	})
}
