package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// A meter is a GPU with buffers for 8 ranks and the copy bandwidth measured on it.
type meter struct {
	*testing.T
	d        *cuda.Device
	streams  [8]cuda.Stream
	src, dst [8]kernels.Mem
	from, to cuda.Event
	ceiling  float64 // bytes per second of the driver's copies of 1 GiB, read and written counted
}

const room = 1 << 30

func newMeter(t *testing.T) *meter {
	var err error
	d := cudatest.Open(t)
	m := &meter{T: t, d: d}
	for r := range m.streams {
		m.streams[r], err = d.NewStream()
		require.NoError(t, err)
		for _, mem := range []*kernels.Mem{&m.src[r], &m.dst[r]} {
			*mem, err = d.Alloc(room)
			require.NoError(t, err)
			require.NoError(t, d.Fill(m.streams[r], mem.Ptr, byte(0x3C+r), room)) // floats near 0.01
		}
		require.NoError(t, d.Wait(m.streams[r]))
	}
	m.from, err = d.NewEvent(true)
	require.NoError(t, err)
	m.to, err = d.NewEvent(true)
	require.NoError(t, err)
	m.ceiling = 2 * room / m.device(5, func() error { return d.CopyAny(m.streams[0], m.dst[0].Ptr, m.src[0].Ptr, room) })
	return m
}

// device returns the device's seconds of one of n turns, the best of three batches, after one to warm up.
func (m *meter) device(n int, turn func() error) float64 {
	m.Helper()
	best := math.Inf(1)
	for batch := range 4 {
		require.NoError(m, m.d.Record(m.from, m.streams[0]))
		for range n {
			require.NoError(m, turn())
		}
		require.NoError(m, m.d.Record(m.to, m.streams[0]))
		require.NoError(m, m.d.Wait(m.streams[0]))
		ms, err := m.d.Milliseconds(m.from, m.to)
		require.NoError(m, err)
		if batch > 0 {
			best = min(best, ms/1e3/float64(n))
		}
	}
	return best
}

// wall returns the host's seconds of one of n turns, until the streams are idle; the median of five batches.
func (m *meter) wall(n int, turn func() error) float64 {
	m.Helper()
	var all []float64
	for range 6 {
		start := time.Now()
		for range n {
			require.NoError(m, turn())
		}
		for _, s := range m.streams {
			require.NoError(m, m.d.Wait(s))
		}
		all = append(all, time.Since(start).Seconds()/float64(n))
	}
	all = all[1:]
	slices.Sort(all)
	return all[len(all)/2]
}

func (m *meter) communicator(ranks int) *gpu.Communicator {
	m.Helper()
	c, err := gpu.New(slices.Repeat([]*cuda.Device{m.d}, ranks))
	require.NoError(m, err)
	m.Cleanup(func() { require.NoError(m, c.Close()) })
	return c
}

// calls returns an all-reduce's, on one stream or each rank's own.
func (m *meter) calls(ranks, bytes int, d kernels.DType, joined bool) []gpu.Call {
	calls := make([]gpu.Call, ranks)
	for r := range calls {
		calls[r] = gpu.Call{Kind: collective.AllReduce, DType: d, Count: bytes / d.Size(), Src: m.src[r].Ptr, Dst: m.dst[r].Ptr, Stream: m.streams[0]}
		if joined {
			calls[r].Stream = m.streams[r]
		}
	}
	return calls
}

// graph captures n calls.
func (m *meter) graph(c *gpu.Communicator, calls []gpu.Call, n int) *cuda.Graph {
	m.Helper()
	g, err := m.d.Capture(m.streams[0], func() error {
		other := slices.ContainsFunc(calls, func(c gpu.Call) bool { return c.Stream != m.streams[0] })
		if other {
			require.NoError(m, m.d.Record(m.from, m.streams[0]))
			for _, c := range calls[1:] {
				require.NoError(m, m.d.WaitEvent(c.Stream, m.from))
			}
		}
		for range n {
			if err := c.Group(calls); err != nil {
				return err
			}
		}
		if other {
			for _, c := range calls[1:] {
				require.NoError(m, m.d.Record(m.to, c.Stream))
				require.NoError(m, m.d.WaitEvent(m.streams[0], m.to))
			}
		}
		return nil
	})
	require.NoError(m, err)
	m.Cleanup(func() { require.NoError(m, g.Destroy()) })
	return g
}

func (m *meter) print(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// TestFigures prints the figures of the GPU path. Targets stand beside them; none fails the test: times belong to a machine.
func TestFigures(t *testing.T) {
	m := newMeter(t)
	info := m.d.Info()
	m.print("%s, compute capability %d.%d, %d multiprocessors, CUDA %d, DMA-BUF %v, GPUDirect RDMA %v, fabric %v", info.Name, info.Major, info.Minor, info.Multiprocessors, info.Driver, info.DMABuf, info.DirectRDMA, info.Fabric)
	m.print("copy by the driver, 1 GiB: %.3f TB/s", m.ceiling/1e12)
	m.bulk()
	m.short()
	m.long()
	m.eager()
}

func (m *meter) bulk() {
	for _, bytes := range []int{256 << 20, 1 << 30} {
		driver := 2 * float64(bytes) / m.device(10, func() error { return m.d.CopyAny(m.streams[0], m.dst[0].Ptr, m.src[0].Ptr, int64(bytes)) })
		line := func(what string, moved, seconds float64) {
			m.print("%-18s %6.1f %6.1f", what, moved/seconds/m.ceiling*100, moved/seconds/driver*100)
		}
		m.print("\nkernels, %d MiB, %% of the driver's copy of 1 GiB, and of %d MiB (want copy ≥ 99, reduce ≥ 102)", bytes>>20, bytes>>20)
		line("driver's copy", 2*float64(bytes), 2*float64(bytes)/driver)
		line("driver's memset", float64(bytes), m.device(10, func() error { return m.d.Fill(m.streams[0], m.dst[0].Ptr, 0x3C, int64(bytes)) }))
		line("copy", 2*float64(bytes), m.device(10, func() error {
			return m.d.Copy(m.streams[0], []unsafe.Pointer{m.dst[0].Ptr}, m.src[0].Ptr, int64(bytes))
		}))
		for _, d := range []kernels.DType{kernels.Float32, kernels.Bfloat16, kernels.Float16, kernels.Float64, kernels.Int8, kernels.Float8e4m3, kernels.Float8e5m2} {
			line("reduce "+d.String(), 3*float64(bytes), m.device(10, func() error {
				return m.d.Fold(m.streams[0], d, kernels.Sum, m.dst[0].Ptr, []unsafe.Pointer{m.src[0].Ptr, m.src[1].Ptr}, bytes/d.Size())
			}))
		}
	}
}

func (m *meter) short() {
	m.print("\nall_reduce float, µs a call, replayed graph of 20 calls: one stream for all ranks | a stream a rank")
	m.print("%8s %8s %8s %8s | %8s %8s %8s", "bytes", "n=2", "n=4", "n=8", "n=2", "n=4", "n=8")
	for _, bytes := range []int{1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20} {
		row := fmt.Sprintf("%8d", bytes)
		for _, joined := range []bool{false, true} {
			for _, n := range []int{2, 4, 8} {
				g := m.graph(m.communicator(n), m.calls(n, bytes, kernels.Float32, joined), 20)
				row += fmt.Sprintf(" %8.2f", m.wall(50, func() error { return g.Launch(m.streams[0]) })/20*1e6)
			}
			if !joined {
				row += " |"
			}
		}
		m.print("%s", row)
	}
	m.print("want 8 KiB ≤ 2.4 / 3.1 / 4.3, at 8 ranks 64 KiB 5.8, 256 KiB 7, 1 MiB 9")
	m.print("\ngraph of one call, 8 KiB, replay and host sync, µs (want n=2 ≤ 8.5, n=8 ≤ 10.5)")
	for _, joined := range []bool{false, true} {
		for _, n := range []int{2, 8} {
			g := m.graph(m.communicator(n), m.calls(n, 8<<10, kernels.Float32, joined), 1)
			m.print("n=%d, a stream a rank %v: %.2f, pipelined %.2f", n, joined, m.wall(200, func() error {
				if err := g.Launch(m.streams[0]); err != nil {
					return err
				}
				return m.d.Wait(m.streams[0])
			})*1e6, m.wall(200, func() error { return g.Launch(m.streams[0]) })*1e6)
		}
	}
}

func (m *meter) long() {
	m.print("\nall_reduce, device time, %% of the copy bandwidth by 2nS/t (want n=8: 16 MiB 82, 64 MiB 87, 256 MiB and more 93)")
	m.print("%-10s %11s %8s %8s %8s %8s %10s", "type", "bytes", "n=2", "n=3", "n=4", "n=8", "µs at n=8")
	for _, d := range []kernels.DType{kernels.Float32, kernels.Bfloat16, kernels.Float8e4m3} {
		for _, bytes := range []int{4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30} {
			row, last := fmt.Sprintf("%-10v %11d", d, bytes), 0.0
			for _, n := range []int{2, 3, 4, 8} {
				c, calls := m.communicator(n), m.calls(n, bytes, d, false)
				last = m.device(max(2, 64<<20/bytes), func() error { return c.Group(calls) })
				row += fmt.Sprintf(" %8.1f", 2*float64(n)*float64(bytes)/last/m.ceiling*100)
			}
			m.print("%s %10.1f", row, last*1e6)
		}
	}
	m.print("\nother kinds, float, 64 MiB a block of 8 MiB where there are several, n=8: µs and %% by bytes loaded and stored")
	for _, k := range []struct {
		kind  collective.Kind
		count int
		moved float64 // chunks of count elements loaded and stored by all ranks
	}{
		{collective.AllGather, 2 << 20, 8 + 64}, {collective.ReduceScatter, 2 << 20, 64 + 8}, {collective.Broadcast, 16 << 20, 1 + 8},
		{collective.Reduce, 16 << 20, 8 + 1}, {collective.AllToAll, 2 << 20, 64 + 64},
	} {
		calls := m.calls(8, 4, kernels.Float32, false)
		for r := range calls {
			calls[r].Kind, calls[r].Count = k.kind, k.count
		}
		c := m.communicator(8)
		s := m.device(5, func() error { return c.Group(calls) })
		m.print("%-15v %8.1f %6.1f", k.kind, s*1e6, k.moved*4*float64(k.count)/s/m.ceiling*100)
	}
}

// joins returns the seconds of a join of 8 streams that launches nothing.
func (m *meter) joins() float64 {
	m.Helper()
	j, err := m.d.NewJoin(7)
	require.NoError(m, err)
	defer func() { require.NoError(m, j.Destroy()) }()
	return m.wall(200, func() error { return m.d.Launch(nil, m.streams[0], m.streams[1:], j) })
}

func (m *meter) eager() {
	var empty [8]cuda.Program
	for i := range empty {
		empty[i].Reset(cuda.MoveBytes)
		empty[i].Lane()
	}
	m.print("\nfloor: an empty launch %.2f µs pipelined, %.2f with sync, one of eight in one call %.2f; events of 8 streams without a kernel %.2f",
		m.wall(200, func() error { return m.d.Launch(empty[:1], m.streams[0], nil, nil) })*1e6,
		m.wall(200, func() error {
			return errors.Join(m.d.Launch(empty[:1], m.streams[0], nil, nil), m.d.Wait(m.streams[0]))
		})*1e6,
		m.wall(25, func() error { return m.d.Launch(empty[:], m.streams[0], nil, nil) })/8*1e6, m.joins()*1e6)
	m.print("\neager, 8 KiB float, µs a call (want a Group of 8 pipelined ≤ 11.5, 8 goroutines ≤ 22, host cost of one rank ≤ 4)")
	for _, n := range []int{1, 2, 8} {
		for _, joined := range []bool{false, true} {
			c, calls := m.communicator(n), m.calls(n, 8<<10, kernels.Float32, joined)
			pipelined := m.wall(200, func() error { return c.Group(calls) })
			synced := m.wall(200, func() error {
				if err := c.Group(calls); err != nil {
					return err
				}
				return errors.Join(m.d.Wait(calls[0].Stream), m.d.Wait(calls[n-1].Stream))
			})
			var host []float64
			for range 21 {
				start := time.Now()
				for range 30 { // few enough for the launch queue
					require.NoError(m, c.Group(calls))
				}
				host = append(host, time.Since(start).Seconds()/30)
				require.NoError(m, m.d.Synchronize())
			}
			slices.Sort(host)
			// Another call each time: what writing programs costs.
			others := [2][]gpu.Call{calls, slices.Clone(calls)}
			for r := range others[1] {
				others[1][r].Count /= 2
			}
			turn := 0
			changing := m.wall(200, func() error {
				turn++
				return c.Group(others[turn%2])
			})
			m.print("Group of %d, a stream a rank %-5v: pipelined %.2f (%.2f where calls change), with sync %.2f, host %.2f", n, joined, pipelined*1e6, changing*1e6, synced*1e6, host[10]*1e6)
		}
	}
	c, calls := m.communicator(8), m.calls(8, 8<<10, kernels.Float32, true)
	m.print("ten all_reduces of 8 KiB of 8 ranks, a stream a rank, queued together: %.2f each", m.wall(100, func() error {
		var tickets [80]gpu.Ticket
		c.Hold()
		for i := range tickets {
			call := calls[i%8]
			call.Src, call.Dst = unsafe.Add(call.Src, i/8<<13), unsafe.Add(call.Dst, i/8<<13)
			var err error
			if tickets[i], err = c.Start(i%8, call); err != nil {
				return err
			}
		}
		c.Release()
		for _, t := range tickets {
			if err := t.Outcome(); err != nil {
				return err
			}
		}
		return nil
	})/10*1e6)
	const rounds = 2000
	var best time.Duration = math.MaxInt64
	for range 5 {
		start := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for r := range 8 {
			wg.Go(func() {
				for range rounds {
					if errs[r] = c.Do(context.Background(), r, calls[r]); errs[r] != nil {
						return
					}
				}
				errs[r] = m.d.Wait(calls[r].Stream)
			})
		}
		wg.Wait()
		require.NoError(m, errors.Join(errs...))
		best = min(best, time.Since(start)/rounds)
	}
	m.print("8 goroutines meeting: %.2f", float64(best.Nanoseconds())/1e3)

	second, err := cuda.Open(0)
	require.NoError(m, err)
	defer func() { require.NoError(m, second.Close()) }()
	for _, n := range []int{2, 8} {
		devices := slices.Repeat([]*cuda.Device{m.d, second}, n/2)
		c, err := gpu.New(devices)
		require.NoError(m, err)
		calls := m.calls(n, 8<<10, kernels.Float32, true)
		m.print("Group of %d on two handles of the GPU, which meet by events: pipelined %.2f", n, m.wall(200, func() error { return c.Group(calls) })*1e6)
		require.NoError(m, c.Close())
	}
}

// TestLinkedFigures prints what calls cost the host where two handles of one GPU stand for two that are linked: what two GPUs cost it, but on the
// GPU the kernels share its multiprocessors.
func TestLinkedFigures(t *testing.T) {
	if os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS") != "32" {
		t.Skip("two kernels of one GPU that wait for each other want CUDA_DEVICE_MAX_CONNECTIONS=32")
	}
	m := newMeter(t)
	second, err := cuda.Open(0)
	require.NoError(t, err)
	require.NoError(t, cuda.Connect(m.d, second))
	c, err := gpu.New([]*cuda.Device{m.d, second})
	require.NoError(t, err)
	calls := m.calls(2, 8<<10, kernels.Float32, true)
	others := [][]gpu.Call{calls}
	for i := range 40 { // more than are told apart
		others = append(others, slices.Clone(calls))
		for r := range calls {
			others[i+1][r].Count = 100 + i
		}
	}
	turn := 0
	m.print("all_reduce of 8 KiB, two handles of a GPU that are linked, eager, µs: pipelined %.2f, of changing lengths %.2f, with sync %.2f",
		m.wall(200, func() error { return c.Group(calls) })*1e6,
		m.wall(200, func() error { turn++; return c.Group(others[turn%len(others)]) })*1e6,
		m.wall(200, func() error {
			return errors.Join(c.Group(calls), m.d.Wait(calls[0].Stream), m.d.Wait(calls[1].Stream))
		})*1e6)
	require.NoError(t, c.Close())
	require.NoError(t, second.Close())
}

// TestShapes prints what shapes of launches reach, to choose those of package cuda by.
func TestShapes(t *testing.T) {
	if os.Getenv("GCCL_SHAPES") == "" {
		t.Skip("prints a table for GCCL_SHAPES=1")
	}
	m := newMeter(t)
	fold := func(d kernels.DType) cuda.Kernel {
		k, err := cuda.FoldKernel(d, kernels.Sum)
		require.NoError(t, err)
		return k
	}
	for _, row := range []struct {
		name       string
		kernel     cuda.Kernel
		elem       int
		srcs, dsts int
		bytes      int
	}{
		{"copy", cuda.MoveBytes, 1, 1, 1, 16 << 20}, {"copy", cuda.MoveBytes, 1, 1, 1, 256 << 20},
		{"copy to 8", cuda.MoveBytes, 1, 1, 8, 64 << 20},
		{"reduce float", fold(kernels.Float32), 4, 2, 1, 256 << 20}, {"reduce bfloat16", fold(kernels.Bfloat16), 2, 2, 1, 256 << 20},
		{"reduce int8", fold(kernels.Int8), 1, 2, 1, 256 << 20}, {"reduce f8e4m3", fold(kernels.Float8e4m3), 1, 2, 1, 256 << 20}, {"8 f8e4m3", fold(kernels.Float8e4m3), 1, 8, 8, 64 << 20},
		{"2 float", fold(kernels.Float32), 4, 2, 2, 4 << 20}, {"2 float", fold(kernels.Float32), 4, 2, 2, 16 << 20}, {"2 float", fold(kernels.Float32), 4, 2, 2, 64 << 20},
		{"3 float", fold(kernels.Float32), 4, 3, 3, 64 << 20}, {"4 float", fold(kernels.Float32), 4, 4, 4, 64 << 20},
		{"8 float", fold(kernels.Float32), 4, 8, 8, 256 << 10}, {"8 float", fold(kernels.Float32), 4, 8, 8, 4 << 20}, {"8 float", fold(kernels.Float32), 4, 8, 8, 16 << 20},
		{"8 float", fold(kernels.Float32), 4, 8, 8, 256 << 20}, {"8 bfloat16", fold(kernels.Bfloat16), 2, 8, 8, 256 << 20},
	} {
		line := fmt.Sprintf("%s %d MiB, %% at blocks x threads:", row.name, row.bytes>>20)
		packs := row.bytes / 16
		for _, threads := range []int{64, 128, 256} {
			for _, each := range []int{1, 2, 4, 16} { // packs a thread
				blocks := packs / each / threads
				if blocks == 0 {
					continue
				}
				var ps [1]cuda.Program
				p := &ps[0]
				p.Reset(row.kernel)
				p.Lane()
				var src, dst []unsafe.Pointer
				for r := range row.srcs {
					src = append(src, m.src[r].Ptr)
				}
				for r := range row.dsts {
					dst = append(dst, m.dst[r].Ptr)
				}
				require.True(t, p.Add(cuda.Instr{Code: cuda.Move, Count: uint64(row.bytes / row.elem)}, src, dst))
				p.SetShape(blocks, threads)
				s := m.device(max(3, 64<<20/row.bytes), func() error { return m.d.Launch(ps[:], m.streams[0], nil, nil) })
				line += fmt.Sprintf(" %dx%d %.1f", blocks, threads, float64(row.srcs+row.dsts)*float64(row.bytes)/s/m.ceiling*100)
			}
		}
		m.print("%s", line)
	}
}
