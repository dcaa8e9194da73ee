package gpu

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// partsOn makes the parts of ranks that know no more of each other than processes would.
func partsOn(t testing.TB, devices []*cuda.Device) []*Part {
	n := len(devices)
	crowd := 0
	for _, d := range devices {
		if d.Info().Ordinal == devices[0].Info().Ordinal {
			crowd++
		}
	}
	parts := make([]*Part, n)
	for r, d := range devices {
		for _, peer := range devices {
			require.NoError(t, d.LinkTo(peer.Info().UUID))
		}
		p, err := NewPart(r, n, crowd, d)
		require.NoError(t, err)
		t.Cleanup(func() {
			p.Abort(ErrClosed)
			require.NoError(t, p.Close())
			require.NoError(t, p.Close())
		})
		parts[r] = p
	}
	for r, p := range parts {
		proof := [16]byte{byte(r), 1, 2}
		fd, err := p.Export(proof)
		require.NoError(t, err)
		for q, peer := range parts {
			if q != r {
				require.NoError(t, peer.Import(r, fd, proof))
				require.ErrorIs(t, peer.Import(r, fd, proof), kernels.ErrInvalid, "again")
			}
		}
		require.NoError(t, syscall.Close(fd))
	}
	return parts
}

func requireBehind(t *testing.T, p *Part, want uint64) {
	t.Helper()
	number, err := p.Behind()
	require.NoError(t, err)
	require.Equal(t, want, number)
}

// queueAll queues a call at all ranks, from the last one on.
func queueAll(t *testing.T, parts []*Part, calls []Call, number uint64) {
	for r := len(parts) - 1; r >= 0; r-- {
		require.True(t, parts[r].Takes(&calls[r]), "%v", &calls[r])
		require.NoError(t, parts[r].Queue(&calls[r], number), "%v", &calls[r])
	}
}

// TestParts is every kind × type × operator between ranks that queue each their own launch, at awkward counts, of which some take several
// rounds, in place and unaligned in turn, to the bit.
func TestParts(t *testing.T) {
	cudatest.Open(t)
	have, err := cuda.Count()
	require.NoError(t, err)
	was := tuned
	defer func() { tuned = was }()
	for _, n := range []int{2, 3, 8} {
		if testing.Short() && n > max(2, have) {
			continue
		}
		g := newRigOn(t, several(t, n, n), 1<<20)
		parts := partsOn(t, g.devices)
		variant, took, number := 0, 0, uint64(0)
		for _, tuned.oneShotLines = range []int64{was.oneShotLines, 0} {
			for _, narrow := range []bool{false, true} {
				for _, p := range parts {
					if p.l.half = parts[0].l.half; narrow {
						p.l.half = 4096 * int64(n-1)
					}
				}
				for _, kind := range collective.Kinds() {
					for _, dtype := range kernels.DTypes() {
						for _, op := range redops(kind) {
							if variant++; testing.Short() && n > 2 && variant%5 != variant/5%5 {
								continue
							}
							call := Call{Kind: kind, DType: dtype, RedOp: op, Count: []int{1, 7, 1000, 4096, 12345}[variant%5]}
							if kind == collective.Barrier {
								call.Count = 0
							}
							if kind.Rooted() {
								call.Root = variant % n
							}
							if ins, outs := kind.Blocks(n); max(ins, outs) > 1 {
								call.Count = min(call.Count, 8000)
							}
							s := sampleOf(call, n, variant/5)
							calls := s.lay(g)
							if !parts[0].Takes(&calls[0]) {
								require.True(t, kind.Reduces() && (calls[0].divides() || dtype >= kernels.Float8e4m3), "%s", s)
								continue
							}
							g.waitAll()
							took++
							number++
							queueAll(t, parts, calls, number)
							s.compare(g, calls)
						}
					}
				}
			}
		}
		g.waitAll()
		t.Logf("%d ranks: %d calls", n, took)
		for _, p := range parts {
			requireBehind(t, p, 0)
		}
	}
}

// Long messages, more rounds than the driver queues, and thousands of short ones without a look.
func TestPartsAhead(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 8<<20)
	parts := partsOn(t, g.devices)
	count := 1<<20 + 5
	for _, p := range parts {
		p.l.half = 16 << 10
	}
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: count}, 2, 1)
	calls := s.lay(g)
	g.waitAll()
	ends := make(chan error, 2)
	for r, p := range parts {
		go func() {
			err := p.Queue(&calls[r], 1)
			small := calls[r]
			small.Count = 3
			for i := range 2000 {
				if err == nil {
					err = p.Queue(&small, uint64(2+i))
				}
			}
			ends <- err
		}()
	}
	require.NoError(t, <-ends)
	require.NoError(t, <-ends)
	g.waitAll()
	s.compare(g, calls)
}

// A graph a rank, replayed over and over, with calls outside between.
func TestPartsInGraphs(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	parts := partsOn(t, g.devices)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Bfloat16, Count: 3000}, 2, 1)
	calls := s.lay(g)
	g.waitAll()
	var graphs []*cuda.Graph
	for r, p := range parts {
		graph, err := g.devices[r].Capture(g.streams[r], func() error { return p.Queue(&calls[r], 1) })
		require.NoError(t, err)
		graphs = append(graphs, graph)
	}
	for range 5 {
		for r, d := range g.devices {
			require.NoError(t, d.Fill(g.streams[r], calls[r].Dst, 1, 6000))
			require.NoError(t, graphs[r].Launch(g.streams[r]))
		}
		s.check(g, calls)
		queueAll(t, parts, calls, 1)
		s.check(g, calls)
	}
	for r := range parts {
		begun, over, err := parts[r].Begun()
		require.NoError(t, err)
		require.EqualValues(t, 10, begun[1-r])
		require.Equal(t, begun, over)
		require.NoError(t, graphs[r].Destroy())
	}
}

// Calls that differ in anything end nowhere with wrong data: they wait until Abort, and the one that waits knows its number.
func TestPartsDiffer(t *testing.T) {
	base := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}
	with := func(f func(*Call)) Call {
		c := base
		f(&c)
		return c
	}
	for _, other := range map[string]Call{
		"kind":  with(func(c *Call) { c.Kind = collective.AllGather }),
		"type":  with(func(c *Call) { c.DType = kernels.Int32 }),
		"redop": with(func(c *Call) { c.RedOp = kernels.Max }),
		"count": with(func(c *Call) { c.Count = 1001 }),
		"none":  with(func(c *Call) { c.Count = 0 }),
	} {
		g := newRigOn(t, several(t, 2, 2), 1<<20)
		parts := partsOn(t, g.devices)
		calls := []Call{base, other}
		for r := range calls {
			calls[r].Src, calls[r].Dst, calls[r].Stream = g.src[r].Ptr, g.dst[r].Ptr, g.streams[r]
			require.NoError(t, g.devices[r].Fill(g.streams[r], g.dst[r].Ptr, 0xaa, 8008))
		}
		g.waitAll()
		for r, p := range parts {
			require.NoError(t, p.Queue(&calls[r], 7))
		}
		time.Sleep(20 * time.Millisecond)
		requireBehind(t, parts[0], 7)
		why := errors.New("they differ")
		for _, p := range parts {
			p.Abort(why)
			p.Abort(errors.New("again"))
			require.ErrorIs(t, p.Queue(&calls[0], 8), why)
		}
		g.waitAll()
		requireBehind(t, parts[0], 0)
	}
}

// A rank that never comes holds up nobody's Abort, however many calls are queued, and who waits for room in the queue is let go.
func TestPartsAbortTheFull(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	parts := partsOn(t, g.devices)
	call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 100, Src: g.src[0].Ptr, Dst: g.dst[0].Ptr, Stream: g.streams[0]}
	why := errors.New("enough")
	ended := make(chan error)
	go func() {
		var err error
		for i := uint64(1); err == nil; i++ {
			err = parts[0].Queue(&call, i)
		}
		ended <- err
	}()
	require.Eventually(t, func() bool {
		parts[0].exchanges.seen.Lock()
		defer parts[0].exchanges.seen.Unlock()
		return parts[0].exchanges.turn == maxAhead
	}, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		begun, over, err := parts[0].Begun()
		return err == nil && begun[1] == 1 && over[1] == 0
	}, time.Minute, time.Millisecond)
	requireBehind(t, parts[0], 1)
	parts[0].Abort(why)
	require.ErrorIs(t, <-ended, why)
	g.waitAll()
}

// What is wrong is said, and changes nothing.
func TestPartsRefuse(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	for _, bad := range [][3]int{{0, 1, 1}, {0, 9, 1}, {2, 2, 1}, {-1, 2, 1}, {0, 2, 0}} {
		_, err := NewPart(bad[0], bad[1], bad[2], g.d)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	p, err := NewPart(0, 2, 1, g.d)
	require.NoError(t, err)
	call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 100, Src: g.src[0].Ptr, Dst: g.dst[0].Ptr, Stream: g.streams[0]}
	require.ErrorIs(t, p.Queue(&call, 1), kernels.ErrInvalid, "no stage of the other one")
	fd, err := p.Export([16]byte{1})
	require.NoError(t, err)
	require.ErrorContains(t, p.Import(1, fd, [16]byte{2}), "corrupts")
	require.ErrorIs(t, p.Import(0, fd, [16]byte{1}), kernels.ErrInvalid)
	require.NoError(t, syscall.Close(fd))
	require.ErrorIs(t, g.d.LinkTo([16]byte{9}), errors.ErrUnsupported)
	for _, no := range []Call{
		{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1, Algorithm: "ring"}, {Kind: collective.AllReduce, DType: kernels.Float8e5m2, Count: 1},
		{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1, Factor: kernels.FactorOf(2)}, {Kind: collective.AllReduce, DType: kernels.Int32, RedOp: kernels.Avg, Count: 1},
	} {
		require.False(t, p.Takes(&no), "%v", &no)
	}
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Queue(&call, 1), ErrClosed)
	_, _, err = p.Begun()
	require.ErrorIs(t, err, ErrClosed)
}

// Where nothing can be waited for, as while a stream is captured, Close says so and leaves memory where kernels may be at work.
func TestPartsCloseWhileCapturing(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	require.NoError(t, g.d.LinkTo(g.d.Info().UUID))
	p, err := NewPart(0, 2, 1, g.d)
	require.NoError(t, err)
	stage, words := p.l.stages[0].mem, p.l.words
	_, err = g.d.Capture(g.streams[0], func() error { return p.Close() })
	require.ErrorContains(t, err, "is not freed")
	require.NoError(t, g.d.Synchronize())
	require.NoError(t, g.d.Check(stage))
	require.NoError(t, g.d.Free(stage))
	require.NoError(t, g.d.FreePinned(words))
}

// BenchmarkParts is a call of two ranks, each of which queues its own launches; on one GPU where there are not two.
func BenchmarkParts(b *testing.B) {
	g := newRigOn(b, several(b, 2, 2), 64<<20)
	parts := partsOn(b, g.devices)
	for _, bytes := range []int{8, 8 << 10, 64 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%d", bytes), func(b *testing.B) {
			b.ReportAllocs()
			ends := make(chan error, 2)
			g.waitAll()
			b.ResetTimer()
			for r, p := range parts {
				call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: bytes / 4, Src: g.src[r].Ptr, Dst: g.dst[r].Ptr, Stream: g.streams[r]}
				go func() {
					var err error
					for i := 0; i < b.N && err == nil; i++ {
						err = p.Queue(&call, 1)
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

// After Abort a rank stores nothing for others: neither what it has not got, nor what a call behind makes of it. Whatever ends on them is right.
func TestPartsAbortSpoilsNothing(t *testing.T) {
	was := tuned
	defer func() { tuned = was }()
	const n = 3000
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = 1
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&ones[0])), 4*n)
	for _, row := range []struct {
		ranks, calls int
		oneShot      int64
	}{{3, 1, 0}, {3, 2, 0}, {2, 2, was.oneShotLines}} {
		tuned.oneShotLines = row.oneShot
		g := newRigOn(t, several(t, row.ranks, row.ranks), 1<<20)
		parts := partsOn(t, g.devices)
		queue := func(r int) {
			call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: n, Src: g.src[r].Ptr, Dst: g.src[r].Ptr, Stream: g.streams[r]}
			for i := range row.calls {
				require.NoError(t, parts[r].Queue(&call, uint64(1+i)))
			}
		}
		for r := range row.ranks {
			g.up(r, g.src[r].Ptr, bytes)
		}
		for r := range row.ranks {
			if r != 1 {
				queue(r)
			}
		}
		time.Sleep(20 * time.Millisecond)
		parts[0].Abort(errors.New("rank 0 fails"))
		require.NoError(t, g.devices[0].Wait(g.streams[0]))
		queue(1) // it has not heard
		time.Sleep(50 * time.Millisecond)
		for r := 1; r < row.ranks; r++ {
			behind, err := parts[r].Behind()
			require.NoError(t, err)
			parts[r].Abort(errors.New("now it has"))
			if behind != 0 {
				continue
			}
			want := float32(1)
			for range row.calls {
				want *= float32(row.ranks)
			}
			got := g.down(r, g.src[r].Ptr, 4*n)
			for i, x := range unsafe.Slice((*float32)(unsafe.Pointer(&got[0])), n) {
				require.Equal(t, want, x, "rank %d, element %d", r, i)
			}
		}
		g.waitAll()
	}
}
