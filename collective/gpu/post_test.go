package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// letter is a message, with both ends' places in the ranks' buffers.
type letter struct {
	from, to, count, src, dst int
	dtype                     kernels.DType
}

// end is a rank's end of it.
func (l *letter) end(g *rig, r int, s cuda.Stream) Message {
	if r == l.from {
		return Message{Send: true, Rank: r, Peer: l.to, Ptr: unsafe.Add(g.src[r].Ptr, l.src), DType: l.dtype, Count: l.count, Stream: s}
	}
	return Message{Rank: r, Peer: l.from, Ptr: unsafe.Add(g.dst[r].Ptr, l.dst), DType: l.dtype, Count: l.count, Stream: s}
}

// layLetters makes so many, which fill the receivers' buffers one after the other, at awkward places.
func layLetters(x *rand.Rand, ranks, n, room, most int) (list []letter) {
	ends := make([]int, ranks)
	for len(list) < n {
		l := letter{from: x.IntN(ranks), dtype: kernels.Float32, count: []int{0, 1, 239, 240, 241, 1000, x.IntN(most)}[x.IntN(7)]}
		if x.IntN(4) == 0 {
			l.dtype = kernels.Int8
		}
		l.to = (l.from + 1 + x.IntN(ranks-1)) % ranks
		size := l.count * l.dtype.Size()
		l.dst = ends[l.to] + x.IntN(2)*4
		if ends[l.to] = (l.dst + size + 19) &^ 15; ends[l.to] > room {
			break
		}
		l.src = x.IntN(room-size) &^ (1<<x.IntN(5) - 1) // anywhere
		list = append(list, l)
	}
	return list
}

// TestPartsPost is messages of every length between ranks in all directions: some ranks queue them together, of several streams, others one by one as the
// order of each direction has it; with as many warps as there can be, and with few.
func TestPartsPost(t *testing.T) {
	const room = 12 << 20
	cudatest.Open(t)
	have, err := cuda.Count()
	require.NoError(t, err)
	for _, n := range []int{2, 3, 8} {
		if testing.Short() && n > max(2, have) {
			continue
		}
		g := newRigOn(t, several(t, n, n), room)
		parts := partsOn(t, g.devices)
		x := rand.New(rand.NewPCG(uint64(n), 7))
		blocks := parts[0].l.blocks
		for round := range 6 {
			list := layLetters(x, n, []int{1, 5, 40, 40, 400, 3}[round], room, []int{1000, 1 << 18, 5000, 1 << 17, 300, 1 << 20}[round])
			outs := make([][]byte, n)
			for r := range n {
				outs[r] = make([]byte, room)
				require.NoError(t, g.devices[r].Fill(g.streams[r], g.dst[r].Ptr, 0, room))
				if parts[r].l.blocks = blocks; (round+r)%3 == 1 {
					parts[r].l.blocks = 1
				}
			}
			for r := range n {
				in := make([]byte, room)
				for i := range in {
					in[i] = byte(x.Uint32())
				}
				g.up(r, g.src[r].Ptr, in)
				for _, l := range list {
					if l.from == r {
						copy(outs[l.to][l.dst:][:l.count*l.dtype.Size()], in[l.src:])
					}
				}
			}
			g.waitAll()
			for r, p := range parts {
				ends := make([]Message, 0, len(list))
				for _, l := range list {
					if l.from == r || l.to == r {
						ends = append(ends, l.end(g, r, g.streams[r]))
					}
				}
				if r > 0 || round%2 == 0 { // together, in an order of its own between directions
					slices.SortStableFunc(ends, func(a, b Message) int { return (a.Peer*7+r)%5 - (b.Peer*7+r)%5 })
					require.NoError(t, p.Post(ends))
					continue
				}
				for i := range ends {
					require.NoError(t, p.Post(ends[i:i+1]))
				}
			}
			for r, p := range parts {
				require.True(t, bytes.Equal(outs[r], g.down(r, g.dst[r].Ptr, room)), "%d ranks, round %d, rank %d", n, round, r)
				posting, err := p.Posting()
				require.NoError(t, err)
				require.False(t, posting)
				to, from, err := p.Messages()
				require.NoError(t, err)
				for q := range parts {
					require.Equal(t, to[q].Begun, to[q].Over)
					require.Equal(t, from[q].Begun, from[q].Over)
				}
			}
		}
	}
}

// Ends that differ in count or type are never taken: they wait until Abort, and the GPUs say which message it is. What is behind does nothing.
func TestPartsPostDiffers(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	parts := partsOn(t, g.devices)
	l := letter{from: 0, to: 1, count: 100, dtype: kernels.Float32}
	for r, p := range parts { // one that is right
		require.NoError(t, p.Post([]Message{l.end(g, r, g.streams[r])}))
	}
	g.waitAll()
	require.NoError(t, g.devices[1].Fill(g.streams[1], g.dst[1].Ptr, 0xaa, 400))
	a, b := l.end(g, 0, g.streams[0]), l.end(g, 1, g.streams[1])
	b.Count, b.DType = 200, kernels.Float16
	require.NoError(t, parts[0].Post([]Message{a}))
	require.NoError(t, parts[1].Post([]Message{b}))
	require.Eventually(t, func() bool {
		_, from, err := parts[1].Messages()
		return err == nil && from[0].Begun == 2 && from[0].Over == 1 && from[0].What[1] == b.what()
	}, time.Minute, time.Millisecond)
	require.NoError(t, g.devices[0].Wait(g.streams[0])) // it was stored
	to, _, err := parts[0].Messages()
	require.NoError(t, err)
	require.Equal(t, a.what(), to[1].What[1])
	posting, err := parts[1].Posting()
	require.NoError(t, err)
	require.True(t, posting)
	back := letter{from: 1, to: 0, count: 100, dst: 1000, src: 0, dtype: kernels.Float32}
	require.NoError(t, parts[1].Post([]Message{back.end(g, 1, g.streams[1])})) // it stands behind
	require.NoError(t, parts[0].Post([]Message{back.end(g, 0, g.streams[0])}))
	why := errors.New("they differ")
	parts[1].Abort(why)
	require.NoError(t, g.devices[1].Wait(g.streams[1]))
	require.Equal(t, bytes.Repeat([]byte{0xaa}, 400), g.down(1, g.dst[1].Ptr, 400))
	time.Sleep(20 * time.Millisecond)
	_, from, err := parts[0].Messages()
	require.NoError(t, err)
	require.EqualValues(t, 1, from[1].Begun)
	require.EqualValues(t, 0, from[1].Over, "what stood behind was sent")
	parts[0].Abort(why)
	require.ErrorIs(t, parts[0].Post([]Message{a}), why)
	g.waitAll()
	for _, bad := range []Message{{}, {Rank: 1}, {Rank: 1, Peer: 2}, {Rank: 1, Peer: 0, Count: -1}, {Rank: 1, Peer: 0, Count: 1}, {Rank: 1, Peer: 0, DType: 99}} {
		require.Error(t, parts[1].Post([]Message{bad}))
	}
}

// A graph's messages go on between replays and plain ones, at each end in its own way; many short ones run ahead, and a long one waits for room.
func TestPartsPostInGraphs(t *testing.T) {
	const room = 8 << 20
	g := newRigOn(t, several(t, 2, 2), room)
	parts := partsOn(t, g.devices)
	long := letter{from: 0, to: 1, count: room / 4, dtype: kernels.Float32}
	short := letter{from: 1, to: 0, count: 3, dtype: kernels.Float32}
	b := make([]byte, room)
	for i := range b {
		b[i] = byte(i * 7)
	}
	graph, err := g.devices[0].Capture(g.streams[0], func() error {
		return parts[0].Post([]Message{long.end(g, 0, g.streams[0]), short.end(g, 0, g.streams[0])})
	})
	require.NoError(t, err)
	for i := range 3 {
		b[0], b[room-1] = byte(i), byte(i+1)
		g.up(0, g.src[0].Ptr, b)
		g.up(1, g.src[1].Ptr, b[:12])
		require.NoError(t, graph.Launch(g.streams[0]))
		require.NoError(t, parts[1].Post([]Message{short.end(g, 1, g.streams[1])}))
		require.NoError(t, parts[1].Post([]Message{long.end(g, 1, g.streams[1])}))
		require.True(t, bytes.Equal(b, g.down(1, g.dst[1].Ptr, room)))
		require.Equal(t, b[:12], g.down(0, g.dst[0].Ptr, 12))
	}
	to, _, err := parts[0].Messages()
	require.NoError(t, err)
	_, from, err := parts[1].Messages()
	require.NoError(t, err)
	require.True(t, to[1].Moved != 0 && from[0].Moved != 0, "a long message is not seen to go on")
	for range 200 {
		require.NoError(t, parts[0].Post([]Message{short.end(g, 0, g.streams[0])}))
	}
	for range 200 {
		require.NoError(t, parts[1].Post([]Message{short.end(g, 1, g.streams[1])}))
	}
	g.waitAll()
	require.NoError(t, graph.Destroy())
}

// What is behind a message that was ended, or a message behind an exchange that was, gives nobody what has not come.
func TestPartsPostAbortSpoilsNothing(t *testing.T) {
	for _, first := range []string{"message", "exchange"} {
		g := newRigOn(t, several(t, 2, 2), 1<<20)
		parts := partsOn(t, g.devices)
		sum := func(r int) {
			call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000, Src: g.src[r].Ptr, Dst: g.src[r].Ptr, Stream: g.streams[r]}
			require.NoError(t, parts[r].Queue(&call, 1))
		}
		post := func(r int, send bool) {
			require.NoError(t, parts[r].Post([]Message{{Send: send, Rank: r, Peer: 1 - r, Ptr: g.src[r].Ptr, DType: kernels.Float32, Count: 1000, Stream: g.streams[r]}}))
		}
		if first == "message" {
			post(1, false)
			sum(1)
			sum(0)
		} else {
			sum(1)
			post(1, true)
			post(0, false)
		}
		time.Sleep(20 * time.Millisecond)
		parts[1].Abort(errors.New("rank 1 fails"))
		require.NoError(t, g.devices[1].Wait(g.streams[1]))
		time.Sleep(50 * time.Millisecond)
		number, err := parts[0].Behind()
		require.NoError(t, err)
		posting, err := parts[0].Posting()
		require.NoError(t, err)
		require.True(t, number != 0 || posting, "%s: rank 0 has got something", first)
		parts[0].Abort(errors.New("now it has heard"))
		g.waitAll()
	}
}

// BenchmarkPartsPost is a message each way between two ranks that queue their own launches; on one GPU where there are not two.
func BenchmarkPartsPost(b *testing.B) {
	g := newRigOn(b, several(b, 2, 2), 128<<20)
	parts := partsOn(b, g.devices)
	for _, bytes := range []int{8, 64 << 10, 1 << 20, 16 << 20, 128 << 20} {
		b.Run(fmt.Sprintf("%d", bytes), func(b *testing.B) {
			b.SetBytes(int64(bytes))
			ends := make(chan error, 2)
			g.waitAll()
			b.ResetTimer()
			for r, p := range parts {
				both := []Message{
					{Rank: r, Peer: 1 - r, Send: true, DType: kernels.Int8, Count: bytes, Ptr: g.src[r].Ptr, Stream: g.streams[r]},
					{Rank: r, Peer: 1 - r, DType: kernels.Int8, Count: bytes, Ptr: g.dst[r].Ptr, Stream: g.streams[r]},
				}
				go func() {
					var err error
					for i := 0; i < b.N && err == nil; i++ {
						err = p.Post(both)
					}
					ends <- err
				}()
			}
			for range parts {
				if err := <-ends; err != nil {
					b.Fatal(err)
				}
			}
			g.waitAll()
		})
	}
}
