package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// ways has every way that a call can take chosen for short ones, in turn.
func ways(t *testing.T, each func(name string)) {
	was := tuned
	defer func() { tuned, tunedFIFO = was, nil }()
	each("tuned")
	tuned.oneShotLines = 0
	each("two-shot lines")
	tuned.allReduceLines, tuned.twoShotLines, tuned.pairLines = 0, 0, 0
	tunedFIFO = func(f cuda.FIFO, _ int64) cuda.FIFO { // many turns
		f.Stripes, f.Chunk, f.Depth = max(1, f.Stripes/3), 1<<10, 3
		return f
	}
	each("push in short turns, bulk")
	tunedFIFO = nil
	each("push, bulk")
	tuned.copies = 0
	each("push, copies")
}

// wantBySites is want, where each site's ranks are folded first.
func (s *sample) wantBySites(l *links, r int) []byte {
	if !s.Kind.Reduces() || s.Kind == collective.Barrier || s.Count == 0 || len(l.sites) == s.ranks {
		return s.want(r)
	}
	parts := *s
	parts.ranks, parts.inputs = len(l.sites), nil
	for i := range l.sites {
		one, ranks := *s, l.sites[i].ranks
		one.inputs = nil
		for _, k := range ranks {
			one.inputs = append(one.inputs, s.inputs[k])
		}
		parts.inputs = append(parts.inputs, one.foldAll(len(ranks), s.scales(), s.ranks))
	}
	all := parts.foldAll(len(l.sites), false, 0)
	b := s.block()
	if s.Kind == collective.ReduceScatter {
		all = all[r*b:][:b]
	}
	if s.divides() {
		words := make([]uint64, b/8+1)
		out := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), b)
		copy(out, all)
		div, err := cpu.PostDiv(s.DType)
		if err != nil {
			panic(err)
		}
		div(unsafe.Pointer(&words[0]), s.Count, int64(s.ranks))
		return out
	}
	return all
}

// foldsBySites returns the links of a communicator if a call of it is folded by sites, else nil.
func foldsBySites(c *Communicator, calls []Call) *links {
	if c.links == nil || calls[0].DType >= kernels.Float8e4m3 { // which no kernel folds that crosses links
		return nil
	}
	switch c.choose([]job{{calls: calls}}) {
	case byLines, byTwoShotLines, byPush:
		return c.links
	}
	return nil
}

// foldAll folds whole inputs of n ranks, scaled by 1/by or not.
func (s *sample) foldAll(n int, scaled bool, by int) []byte {
	bytes := len(s.inputs[0])
	words := make([]uint64, bytes/8+1)
	srcs := make([]unsafe.Pointer, n)
	for k := range srcs {
		in := make([]uint64, bytes/8+1)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&in[0])), bytes), s.inputs[k])
		srcs[k] = unsafe.Pointer(&in[0])
	}
	count := bytes / s.DType.Size()
	op := s.RedOp
	if op == kernels.Avg {
		op = kernels.Sum
	}
	switch {
	case scaled:
		f, err := cpu.PreMul(s.DType)
		if err != nil {
			panic(err)
		}
		f(unsafe.Pointer(&words[0]), srcs, count, kernels.AllSources, 1/float64(by))
	case n == 1:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), bytes), s.inputs[0])
	default:
		f, err := cpu.Reducer(s.DType, op)
		if err != nil {
			panic(err)
		}
		f(unsafe.Pointer(&words[0]), srcs, count)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), bytes)
}

// crossed is a communicator of two ranks on two sites, without a GPU.
func crossed() *Communicator {
	const n = 2
	l := &links{sites: []site{{ranks: []int{0}}, {ranks: []int{1}}}, siteOf: []int{0, 1}, crowd: 1, lineBlocks: 128, half: stageLines, stages: make([]stage, n), at: make([]unsafe.Pointer, n),
		lines: make([]cuda.LL128, n), push: make([]cuda.Push, n), bulk: make([]cuda.Bulk, n)}
	return &Communicator{ranks: n, links: l, moves: map[shape]*Moves{}, devices: make([]*cuda.Device, n), streams: make([]cuda.Stream, n)}
}

// What crosses the links by kernels, and what goes between events: what names an algorithm, has factors of the ranks' own, stays on a
// GPU, or is of a type that no kernel there folds.
func TestWhatCrosses(t *testing.T) {
	c := crossed()
	sum := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}
	named, scaled, long := sum, sum, sum
	named.Algorithm, scaled.Factor, long.Count = "twoshot", kernels.FactorOf(2), 64<<20
	barrier := Call{Kind: collective.Barrier}
	for _, row := range []struct {
		name string
		call Call
		want crossing
	}{{"short", sum, byLines}, {"long", long, byPush}, {"barrier", barrier, byLines}, {"an algorithm", named, byEvents}, {"factors", scaled, byEvents}} {
		require.Equal(t, row.want, c.choose([]job{{calls: []Call{row.call, row.call}}}), row.name)
	}
	away, home := job{transfer: Transfer{From: 0, To: 1, Bytes: 100}}, job{transfer: Transfer{From: 1, To: 1, Bytes: 100}}
	require.Equal(t, byLines, c.choose([]job{home, away}))
	require.Equal(t, byEvents, c.choose([]job{home, home}))
	later, other := away, job{calls: []Call{sum, sum}}
	later.stage = 1
	require.Equal(t, 2, stretch([]job{away, home, later, away}), "what reads what another one writes comes after it")
	require.Equal(t, 1, stretch([]job{away, other, away}))
	require.Equal(t, 1, stretch([]job{other, other}))
	for dtype, fits := range map[kernels.DType]bool{kernels.Bfloat16: true, kernels.Float8e4m3: false, kernels.Float8e5m2: false} {
		calls := callsAt(Call{Kind: sum.Kind, DType: dtype, Count: 1 << 10}, 2)
		for _, how := range []crossing{byLines, byPush} {
			ok, err := c.links.write(how, calls)
			require.NoError(t, err)
			require.Equal(t, fits, ok, "%v", dtype)
		}
	}
}

// What a Hold has wait when kernels are ended is not done, and its tickets say so.
func TestAbortRefusesWhatIsHeld(t *testing.T) {
	c := crossed()
	c.links.sites = nil // there is nothing to end
	c.Hold()
	var tickets []Ticket
	for r, call := range callsAt(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 2) {
		ticket, err := c.Start(r, call)
		require.NoError(t, err)
		require.False(t, ticket.Queued())
		tickets = append(tickets, ticket)
	}
	c.Abort(errors.New("the test wants it"))
	for _, ticket := range tickets {
		require.ErrorContains(t, ticket.Outcome(), "the test wants it")
	}
	c.Release()
	_, err := c.Start(0, Call{Kind: collective.Barrier})
	require.ErrorContains(t, err, "the test wants it")
}

// TestAcross is every kind × type × operator over several GPUs, or handles of one, by every way, at awkward counts, in place and
// unaligned in turn, to the bit.
func TestAcross(t *testing.T) {
	cudatest.Open(t)
	have, err := cuda.Count()
	require.NoError(t, err)
	for _, row := range []struct{ handles, ranks int }{{2, 2}, {2, 5}, {3, 3}, {4, 8}, {8, 8}} {
		if testing.Short() && row.handles > max(2, have) {
			continue
		}
		g := newRigOn(t, several(t, row.handles, row.ranks), 1<<20)
		c, err := New(g.devices)
		require.NoError(t, err)
		require.NotNil(t, c.links, "the devices are not linked")
		done := map[crossing]int{}
		ways(t, func(way string) {
			variant := 0
			for _, kind := range collective.Kinds() {
				for _, dtype := range kernels.DTypes() {
					for _, op := range redops(kind) {
						if variant++; testing.Short() && row.handles > 2 && variant%5 != variant/5%5 {
							continue // a fifth of them, of every count and place
						}
						call := Call{Kind: kind, DType: dtype, RedOp: op, Count: []int{1, 7, 1000, 4096, 12345}[variant%5]}
						if kind == collective.Barrier {
							call.Count = 0
						}
						if kind.Rooted() {
							call.Root = variant % row.ranks
						}
						if ins, outs := kind.Blocks(row.ranks); max(ins, outs) > 1 {
							call.Count = min(call.Count, 8000)
						}
						s := sampleOf(call, row.ranks, variant/5)
						calls := s.lay(g)
						g.waitAll()
						done[c.links.choose(calls)]++
						s.bySites = foldsBySites(c, calls)
						require.NoError(t, c.Group(calls), "%s", s)
						s.compare(g, calls)
					}
				}
			}
		})
		t.Logf("%d ranks on %d: calls by way %v", row.ranks, row.handles, done)
		for _, how := range []crossing{byLines, byPush, byBulk, byCopies} {
			require.NotZero(t, done[how], "%d", how)
		}
		require.NoError(t, c.Close())
	}
}

// Long messages by each way, every word, with one rank a GPU and with two.
func TestAcrossLong(t *testing.T) {
	count := 3<<20 + 7
	if testing.Short() {
		count = 3<<16 + 7
	}
	for _, ranks := range []int{2, 4} {
		g := newRigOn(t, several(t, 2, ranks), 16<<20)
		c, err := New(g.devices)
		require.NoError(t, err)
		ways(t, func(way string) {
			for i, kind := range collective.Kinds() {
				ins, outs := kind.Blocks(ranks)
				if kind == collective.Barrier {
					continue
				}
				for j, dtype := range []kernels.DType{kernels.Float32, kernels.Bfloat16, kernels.Uint8} {
					s := sampleOf(Call{Kind: kind, DType: dtype, RedOp: kernels.Sum, Count: count / max(ins, outs) &^ (3 * j)}, ranks, 2*(i+j)%4)
					calls := s.lay(g)
					g.waitAll()
					if c.links.choose(calls) != byEvents {
						s.bySites = c.links
					}
					for range 1 + 2*bit(!slices.Contains(s.place, true)) { // over and over
						require.NoError(t, c.Group(calls), "%s", s)
					}
					s.compare(g, calls)
				}
			}
		})
		require.NoError(t, c.Close())
	}
}

// One-way traffic does not overrun who is slow: thousands of broadcasts without a look, each of other data to another place, and the
// receivers busy; and messages among some of the ranks between them.
func TestAcrossOneWay(t *testing.T) {
	const n, calls = 1000, 200
	g := newRigOn(t, several(t, 2, 3), 4*n*calls+1<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	for round := range 10 {
		all := random(kernels.Uint32, n*calls, uint64(round))
		for r := range 3 {
			g.up(r, g.src[r].Ptr, all)
			require.NoError(t, g.devices[r].Fill(g.streams[r], g.dst[r].Ptr, 0, 4*n*calls))
		}
		g.waitAll()
		for i := range calls {
			if i%7 == 3 { // by the driver, so that the receivers come late
				for r := range 3 {
					require.NoError(t, g.devices[r].Fill(g.streams[r], unsafe.Add(g.src[r].Ptr, 4*n*calls), byte(i), 1<<(r*6)))
				}
			}
			at := 4 * n * i
			if i%5 == 4 {
				require.NoError(t, c.Transfers([]Transfer{{From: 0, To: 1, Src: unsafe.Add(g.src[0].Ptr, at), Dst: unsafe.Add(g.dst[1].Ptr, at), Bytes: 4 * n, FromStream: g.streams[0], ToStream: g.streams[1]}}))
				for r := range 3 {
					if r != 1 {
						require.NoError(t, g.devices[r].CopyAny(g.streams[r], unsafe.Add(g.dst[r].Ptr, at), unsafe.Add(g.src[r].Ptr, at), 4*n))
					}
				}
				continue
			}
			group := make([]Call, 3)
			for r := range group {
				group[r] = Call{Kind: collective.Broadcast, DType: kernels.Uint32, Count: n, Root: i % 4 % 3, Dst: unsafe.Add(g.dst[r].Ptr, at), Stream: g.streams[r]}
				if r == group[r].Root {
					group[r].Src = unsafe.Add(g.src[r].Ptr, at)
				}
			}
			require.NoError(t, c.Group(group))
		}
		g.waitAll()
		for r := range 3 {
			require.Equal(t, all, g.down(r, g.dst[r].Ptr, len(all)), "rank %d", r)
		}
	}
	require.NoError(t, c.Close())
}

// A GPU whose peer never comes waits until Abort, and is idle at once; the streams are usable afterwards.
func TestAcrossAbort(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 16<<20)
	var slowest time.Duration
	for i := range 8 {
		c, err := New(g.devices)
		require.NoError(t, err)
		count := []int{100, 100000, 2 << 20, 3 << 20}[i%4]
		s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: count}, 2, uint64(i))
		if i >= 4 {
			s.Kind, s.Count = collective.AllGather, count/2
			s = newSample(s.Call, 2, uint64(i))
		}
		calls := s.lay(g)
		g.waitAll()
		c.mu.Lock()
		how := c.links.choose(calls)
		if i == 3 {
			how = byPush
		}
		if i == 7 {
			how = byBulk
		}
		for k := range c.sites {
			c.sites[k].take(g.streams, ^uint64(0))
		}
		ok, err := c.links.write(how, calls)
		require.NoError(t, err)
		require.True(t, ok)
		c.sites[1].active = false // it gets nothing
		require.NoError(t, c.links.launch(how))
		c.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		idle, err := g.d.Done(g.streams[0])
		require.NoError(t, err)
		require.False(t, idle, "nobody was waited for")
		start := time.Now()
		c.Abort(errors.New("the test wants it"))
		require.NoError(t, g.d.Wait(g.streams[0]))
		slowest = max(slowest, time.Since(start))
		require.ErrorContains(t, c.Group(calls), "the test wants it")
		require.NoError(t, c.Close())
		c, err = New(g.devices)
		require.NoError(t, err)
		require.NoError(t, c.Group(calls))
		s.check(g, calls)
		require.NoError(t, c.Close())
	}
	t.Logf("Abort → stream idle: at most %v", slowest)
	if !testing.Short() { // an emulated GPU is as slow as its machine is busy
		require.Less(t, slowest, time.Second)
	}
}

// TestUC02_StreamOfAnotherGPUThatDoesNotCome: a rank whose stream stands still before a call for which kernels on other GPUs wait is named, whatever way the call
// goes, and nobody is whose stream only comes later to what is not waited for.
func TestUC02_StreamOfAnotherGPUThatDoesNotCome(t *testing.T) {
	const sites = 3
	g := newRigOn(t, several(t, sites, sites), 16<<20)
	stall := cudatest.NewStall(t, g.devices[1])
	c, err := New(g.devices)
	require.NoError(t, err)
	defer c.Close()
	for i, call := range []Call{
		{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000},
		{Kind: collective.AllReduce, DType: kernels.Float32, Count: 600_000},
		{Kind: collective.AllGather, DType: kernels.Float32, Count: 1<<20 + 1<<18},
	} {
		s := newSample(call, sites, 1)
		for range 20 { // at which nobody looks
			require.NoError(t, c.Group(s.lay(g)))
		}
		calls := s.lay(g)
		g.waitAll()
		stall.Begin(g.streams[1])
		t1 := Transfer{From: 0, To: 2, Src: g.src[0].Ptr, Dst: g.src[0].Ptr, FromStream: g.streams[0], ToStream: g.streams[2]}
		require.NoError(t, c.Transfers([]Transfer{t1}))
		_, nobody := c.Behind()
		require.Nil(t, nobody)
		for range []int{100, 5, 5}[i] { // however far the host is ahead
			require.NoError(t, c.Group(calls))
		}
		require.Eventually(t, func() bool {
			_, ranks := c.Behind()
			return slices.Equal(ranks, []int{1})
		}, time.Minute, time.Millisecond, "%v", &call)
		number, _ := c.Behind()
		require.NoError(t, c.Group(calls))
		again, _ := c.Behind()
		require.Equal(t, number, again, "it is one call")
		stall.End()
		require.Eventually(t, func() bool {
			_, ranks := c.Behind()
			return ranks == nil
		}, time.Minute, time.Millisecond)
		s.check(g, calls)
	}
}

// A call that one GPU captures and the other does at once is refused, the other does not wait for ever, and the streams are usable.
func TestAcrossCaptureOnSomeIsRefused(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 2, 1)
	calls := s.lay(g)
	g.waitAll()
	_, err = g.devices[0].Capture(calls[0].Stream, func() error { return c.Group(calls) })
	require.ErrorContains(t, err, "captured")
	g.waitAll()
	require.Error(t, c.Group(calls))
	require.NoError(t, c.Close())
	c, err = New(g.devices)
	require.NoError(t, err)
	require.NoError(t, c.Group(calls))
	s.check(g, calls)
	require.NoError(t, c.Close())
}

// Communicators over the same GPUs, driven by a goroutine each on streams that change, with calls that fill the GPUs, don't stand in each other's way.
func TestAcrossSoak(t *testing.T) {
	const many = 4
	rounds := 300
	if testing.Short() {
		rounds = 10
	}
	devices := several(t, 2, 2)
	if devices[0].Info().Ordinal == devices[1].Info().Ordinal {
		t.Skip("launches of several communicators need not fit on one GPU")
	}
	var wg sync.WaitGroup
	errs := make([]error, many)
	for k := range many {
		g := newRigOn(t, devices, 32<<20)
		c, err := New(devices)
		require.NoError(t, err)
		s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: []int{1000, 50000, 1 << 20, 4 << 20}[k]}, 2, uint64(k))
		calls := s.lay(g)
		g.waitAll()
		other := make([]cuda.Stream, 2)
		for i, d := range devices {
			other[i], err = d.NewStream()
			require.NoError(t, err)
		}
		wg.Go(func() {
			for i := range rounds {
				now := append([]Call(nil), calls...)
				if i%3 == 1 { // follows, though nobody says so
					now[0].Stream, now[1].Stream = other[0], other[1]
				}
				if errs[k] = c.Group(now); errs[k] != nil {
					return
				}
			}
			for i, d := range devices {
				errs[k] = errors.Join(errs[k], d.Wait(other[i]))
			}
		})
		t.Cleanup(func() {
			s.check(g, calls)
			require.NoError(t, c.Close())
			for i, d := range devices {
				require.NoError(t, d.DestroyStream(other[i]))
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestAcrossDoesNotAllocate(t *testing.T) {
	g := newRigOn(t, several(t, 2, 2), 1<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	runs := 100
	if testing.Short() {
		runs = 10
	}
	ways(t, func(way string) {
		s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 2, 1)
		calls := s.lay(g)
		g.waitAll()
		require.Zero(t, testing.AllocsPerRun(runs, func() {
			if c.Group(calls) != nil {
				panic("group")
			}
		}), way)
		s.check(g, calls)
	})
	require.NoError(t, c.Close())
}

// TestPushShapes prints what cuts of the FIFOs reach, to choose those of fifo by.
func TestPushShapes(t *testing.T) {
	if os.Getenv("GCCL_SHAPES") == "" {
		t.Skip("prints a table for GCCL_SHAPES=1")
	}
	g := newRigOn(t, several(t, 2, 2), 1<<30)
	c, err := New(g.devices)
	require.NoError(t, err)
	defer func() { tunedFIFO = nil }()
	for r := range 2 {
		require.NoError(t, g.devices[r].Fill(g.streams[r], g.src[r].Ptr, byte(0x3C+r), 1<<30))
	}
	for _, dtype := range []kernels.DType{kernels.Float32, kernels.Bfloat16} {
		for _, bytes := range []int{8 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30} {
			line := fmt.Sprintf("%v %d MiB, busbw at stripes x KiB x depth:", dtype, bytes>>20)
			for _, cut := range [][3]int{{64, 16, 4}, {64, 16, 8}, {64, 32, 4}, {64, 32, 8}, {64, 64, 3}, {64, 64, 4}, {48, 80, 4}, {48, 64, 4}, {32, 128, 4}} {
				tunedFIFO = func(f cuda.FIFO, _ int64) cuda.FIFO {
					f.Stripes, f.Chunk, f.Depth = cut[0], cut[1]<<10, cut[2]
					return f
				}
				calls := make([]Call, 2)
				for r := range calls {
					calls[r] = Call{Kind: collective.AllReduce, DType: dtype, Count: bytes / dtype.Size(), Src: g.src[r].Ptr, Dst: g.dst[r].Ptr, Stream: g.streams[r]}
				}
				best := time.Hour
				n := max(2, 64<<20/bytes)
				for range 4 {
					start := time.Now()
					for range n {
						require.NoError(t, c.Group(calls))
					}
					g.waitAll()
					best = min(best, time.Since(start)/time.Duration(n))
				}
				line += fmt.Sprintf(" %dx%dx%d %.1f", cut[0], cut[1], cut[2], float64(bytes)/best.Seconds()/1e9)
			}
			t.Log(line)
		}
	}
	require.NoError(t, c.Close())
}

// BenchmarkAcross is a call of two ranks of one process, in a graph of a hundred, on one GPU where there are not two.
func BenchmarkAcross(b *testing.B) {
	g := newRigOn(b, several(b, 2, 2), 64<<20)
	c, err := New(g.devices)
	require.NoError(b, err)
	defer c.Close()
	for _, bytes := range []int{8, 8 << 10, 64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%d", bytes), func(b *testing.B) {
			calls := make([]Call, 2)
			for r := range calls {
				calls[r] = Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: bytes / 4, Src: g.src[r].Ptr, Dst: g.dst[r].Ptr, Stream: g.streams[r]}
			}
			var graphs [2]*cuda.Graph
			graphs[0], err = g.devices[0].Capture(g.streams[0], func() error {
				graphs[1], err = g.devices[1].Capture(g.streams[1], func() error {
					for range 100 {
						if err := c.Group(calls); err != nil {
							return err
						}
					}
					return nil
				})
				return err
			})
			require.NoError(b, err)
			g.waitAll()
			b.ResetTimer()
			for range (b.N + 99) / 100 {
				for r := range graphs {
					require.NoError(b, graphs[r].Launch(g.streams[r]))
				}
			}
			g.waitAll()
			b.StopTimer()
			for r := range graphs {
				require.NoError(b, graphs[r].Destroy())
			}
		})
	}
}
