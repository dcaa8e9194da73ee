package gpu_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/tests/gpu/nccl"
)

// A rack is all GPUs of the machine, a rank and a stream on each, with buffers of 1 GiB.
type rack struct {
	*testing.T
	devices  []*cuda.Device
	streams  []cuda.Stream
	src, dst []kernels.Mem
	fork     []cuda.Event // one a GPU
	c        *gpu.Communicator
	peers    []peer
}

// A peer is what gccl is measured beside.
type peer struct {
	name string
	c    *nccl.Comm
}

func newRack(t *testing.T) *rack {
	n, err := cuda.Count()
	if errors.Is(err, errors.ErrUnsupported) || err == nil && n < 2 {
		t.Skipf("needs several GPUs, there are %d: %v", n, err)
	}
	require.NoError(t, err)
	k := &rack{T: t}
	for i := range n {
		d, err := cuda.Open(i)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		k.devices = append(k.devices, d)
	}
	require.NoError(t, cuda.Connect(k.devices...))
	for i, d := range k.devices {
		s, err := d.NewStream()
		require.NoError(t, err)
		k.streams = append(k.streams, s)
		for _, list := range []*[]kernels.Mem{&k.src, &k.dst} {
			m, err := d.Alloc(room)
			require.NoError(t, err)
			require.NoError(t, d.Fill(s, m.Ptr, byte(0x3C+i), room)) // floats near 0.01
			*list = append(*list, m)
		}
		e, err := d.NewEvent(false)
		require.NoError(t, err)
		k.fork = append(k.fork, e)
	}
	k.c, err = gpu.New(k.devices)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.c.Close()) })
	return k
}

// besides adds NCCL, plain and with registered buffers, where the machine has it.
func (k *rack) besides() {
	v, err := nccl.Version()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("NCCL %d.%d.%d, NCCL_NVLS_ENABLE=%s\n", v/10000, v/100%100, v%100, os.Getenv("NCCL_NVLS_ENABLE"))
	for _, registered := range []bool{false, true} {
		c, err := nccl.New(len(k.devices), room, registered)
		name := map[bool]string{false: "NCCL", true: "NCCL registered"}[registered]
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
			continue
		}
		for i, d := range k.devices {
			require.NoError(k, d.Fill(k.streams[i], c.Source(i), byte(0x3C+i), room))
		}
		k.wait()
		k.peers = append(k.peers, peer{name, c})
	}
}

func (k *rack) wait() {
	k.Helper()
	for i, d := range k.devices {
		require.NoError(k, d.Wait(k.streams[i]))
	}
}

// A load is one message of a kind, by bytes as nccl-tests counts them.
type load struct {
	kind  int // of package nccl
	dtype kernels.DType
	bytes int
}

var kindNames = [...]string{"all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"}

// count is of elements a block.
func (l load) count(ranks int) int {
	n := l.bytes / l.dtype.Size()
	if l.kind == nccl.AllGather || l.kind == nccl.ReduceScatter || l.kind == nccl.AllToAll {
		n /= ranks
	}
	return n
}

// busbw is in GB/s, of a call of so many seconds.
func (l load) busbw(ranks int, seconds float64) float64 {
	f := 1.0
	switch l.kind {
	case nccl.AllReduce:
		f = 2 * float64(ranks-1) / float64(ranks)
	case nccl.AllGather, nccl.ReduceScatter, nccl.AllToAll:
		f = float64(ranks-1) / float64(ranks)
	}
	return f * float64(l.bytes) / seconds / 1e9
}

// gccl returns what queues one call of all ranks.
func (k *rack) gccl(l load) func() error {
	n := len(k.devices)
	if l.kind == nccl.SendRecv {
		var ts []gpu.Transfer
		for r := range n {
			next := (r + 1) % n
			ts = append(ts, gpu.Transfer{From: r, To: next, Src: k.src[r].Ptr, Dst: k.dst[next].Ptr, Bytes: int64(l.bytes), FromStream: k.streams[r], ToStream: k.streams[next]})
		}
		return func() error { return k.c.Transfers(ts) }
	}
	kind := [...]collective.Kind{collective.AllReduce, collective.AllGather, collective.ReduceScatter, collective.AllToAll, collective.Broadcast}[l.kind]
	calls := make([]gpu.Call, n)
	for r := range calls {
		calls[r] = gpu.Call{Kind: kind, DType: l.dtype, Count: l.count(n), Src: k.src[r].Ptr, Dst: k.dst[r].Ptr, Stream: k.streams[r]}
		if kind == collective.Broadcast && r != 0 {
			calls[r].Src = nil
		}
	}
	return func() error { return k.c.Group(calls) }
}

func (k *rack) nccl(c *nccl.Comm, l load) func() error {
	streams := make([]uintptr, len(k.streams))
	for i, s := range k.streams {
		streams[i] = uintptr(s)
	}
	dtype := map[kernels.DType]int{kernels.Float32: nccl.Float32, kernels.Bfloat16: nccl.Bfloat16}[l.dtype]
	return func() error { return c.Do(l.kind, l.count(len(k.devices)), dtype, streams) }
}

// graphs captures n calls: a graph for each GPU, or where the calls stand between the GPUs by events one for all.
func (k *rack) graphs(n int, call func() error) (replay func() error, free func(), err error) {
	batch := func() error {
		for range n {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}
	graphs := make([]*cuda.Graph, len(k.devices))
	var capture func(i int) error
	capture = func(i int) (err error) {
		if i == len(graphs) {
			return batch()
		}
		graphs[i], err = k.devices[i].Capture(k.streams[i], func() error { return capture(i + 1) })
		return err
	}
	err = capture(0)
	if err != nil && strings.Contains(err.Error(), "CAPTURE") {
		for i, g := range graphs {
			if g != nil {
				_ = g.Destroy() // those that ended before another failed
				graphs[i] = nil
			}
		}
		graphs[0], err = k.devices[0].Capture(k.streams[0], func() error { return k.forked(batch) })
		graphs = graphs[:1]
	}
	if err != nil {
		return nil, nil, err
	}
	replay = func() error {
		for i, g := range graphs {
			if err := g.Launch(k.streams[i]); err != nil {
				return err
			}
		}
		return nil
	}
	free = func() {
		for _, g := range graphs {
			require.NoError(k, g.Destroy())
		}
	}
	return replay, free, nil
}

// forked has all streams take part in what the first one captures.
func (k *rack) forked(batch func() error) error {
	err := k.devices[0].Record(k.fork[0], k.streams[0])
	for i, d := range k.devices[1:] {
		err = errors.Join(err, d.WaitEvent(k.streams[i+1], k.fork[0]))
	}
	err = errors.Join(err, batch())
	for i, d := range k.devices[1:] {
		err = errors.Join(err, d.Record(k.fork[i+1], k.streams[i+1]), k.devices[0].WaitEvent(k.streams[0], k.fork[i+1]))
	}
	return err
}

// A runner is one of those that are measured in turn.
type runner struct {
	name  string
	batch func() error
	free  func()
	times []float64 // seconds of a call
}

func (r *runner) at(part float64) float64 {
	slices.Sort(r.times)
	return r.times[int(part*float64(len(r.times)-1)+0.5)]
}

// A contender is one of those to be measured, by what queues a call.
type contender struct {
	name string
	call func() error
}

// measure measures gccl and all peers.
func (k *rack) measure(l load, graph bool) []*runner {
	list := []contender{{"gccl", k.gccl(l)}}
	for _, p := range k.peers {
		if p.c.Registered() && (l.kind == nccl.Broadcast || l.kind == nccl.SendRecv) {
			continue // NCCL 2.28.3 never came back from a broadcast of 2 MiB out of a window
		}
		list = append(list, contender{p.name, k.nccl(p.c, l)})
	}
	return k.measureAll(l, graph, list)
}

// measureAll has everybody make batches in turn, and keeps the seconds of a call of each batch, until all GPUs are idle.
func (k *rack) measureAll(l load, graph bool, list []contender) (all []*runner) {
	k.Helper()
	calls, batches, turns := 20, 4, 21
	switch {
	case l.bytes > 64<<20:
		calls, batches, turns = 2, 1, 5
	case l.bytes > 16<<20:
		calls, batches, turns = 4, 1, 7
	case l.bytes > 1<<20:
		calls, batches, turns = 4, 4, 11
	}
	add := func(name string, call func() error) {
		r := &runner{name: name, free: func() {}}
		err := call() // what is made at first use
		k.wait()
		if err == nil && graph {
			var replay func() error
			replay, r.free, err = k.graphs(calls, call)
			r.batch = func() error {
				for range batches {
					if err := replay(); err != nil {
						return err
					}
				}
				return nil
			}
		} else if err == nil {
			r.batch = func() error {
				for range calls * batches {
					if err := call(); err != nil {
						return err
					}
				}
				return nil
			}
		}
		if err != nil {
			fmt.Printf("%s, %s of %d bytes, graph %v: %v\n", name, kindNames[l.kind], l.bytes, graph, err)
			return
		}
		all = append(all, r)
	}
	stuck := time.AfterFunc(30*time.Second, func() {
		panic(fmt.Sprintf("%s of %d bytes, graph %v: no end after 30 s", kindNames[l.kind], l.bytes, graph))
	})
	defer stuck.Stop()
	for _, c := range list {
		add(c.name, c.call)
	}
	for turn := range turns + 1 {
		for _, r := range all {
			start := time.Now()
			require.NoError(k, r.batch(), "%s", r.name)
			k.wait()
			if turn > 0 {
				r.times = append(r.times, time.Since(start).Seconds()/float64(calls*batches))
			}
		}
	}
	for _, r := range all {
		r.free()
	}
	return all
}

// TestMultiFigures prints what collectives over all GPUs take, gccl and NCCL in turn: p50 and p99 in µs, busbw in GB/s, and gccl's
// time by the best of NCCL's. GCCL_MULTI is a comma-separated list of kinds, or all.
func TestMultiFigures(t *testing.T) {
	want := os.Getenv("GCCL_MULTI")
	if want == "" {
		t.Skip("measures for GCCL_MULTI=all, or a list of kinds")
	}
	k := newRack(t)
	k.besides()
	fmt.Printf("%d × %s\n", len(k.devices), k.devices[0].Info().Name)
	n := len(k.devices)
	worst := map[bool]float64{}
	for kind, name := range kindNames {
		if want != "all" && !slices.Contains(strings.Split(want, ","), name) {
			continue
		}
		for _, dtype := range []kernels.DType{kernels.Float32, kernels.Bfloat16} {
			if dtype == kernels.Bfloat16 && kind != nccl.AllReduce && kind != nccl.ReduceScatter {
				continue // the same bytes
			}
			for _, graph := range []bool{true, false} {
				fmt.Printf("\n%s %v, %s\n", name, dtype, map[bool]string{true: "replayed graphs", false: "eager, one goroutine"}[graph])
				for _, bytes := range multiSizes() {
					l := load{kind, dtype, bytes}
					line, best := fmt.Sprintf("%10d", bytes), 0.0
					all := k.measure(l, graph)
					for i, r := range all {
						line += fmt.Sprintf(" | %s %8.2f %8.2f %6.1f", r.name, r.at(0.5)*1e6, r.at(0.99)*1e6, l.busbw(n, r.at(0.5)))
						if i > 0 && (best == 0 || r.at(0.5) < best) {
							best = r.at(0.5)
						}
					}
					if best > 0 {
						ratio := all[0].at(0.5) / best
						worst[graph] = max(worst[graph], ratio)
						line += fmt.Sprintf(" | × %.2f", ratio)
					}
					fmt.Println(line)
				}
			}
		}
	}
	fmt.Printf("\ngccl's time by the best of NCCL's, at worst: graphs × %.2f, eager × %.2f\n", worst[true], worst[false])
	shared(k)
	ceilings(k)
}

// shared prints all-reduces of two ranks on every GPU.
func shared(k *rack) {
	n := len(k.devices)
	c, err := gpu.New(append(slices.Clone(k.devices), k.devices...))
	require.NoError(k, err)
	defer func() { require.NoError(k, c.Close()) }()
	fmt.Printf("\nall_reduce float, %d ranks on %d GPUs, replayed graphs\n", 2*n, n)
	for _, bytes := range []int{8 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20} {
		l := load{nccl.AllReduce, kernels.Float32, bytes}
		calls := make([]gpu.Call, 2*n)
		for r := range calls {
			at := r / n * room / 2
			calls[r] = gpu.Call{Kind: collective.AllReduce, DType: l.dtype, Count: l.count(n), Src: unsafe.Add(k.src[r%n].Ptr, at), Dst: unsafe.Add(k.dst[r%n].Ptr, at), Stream: k.streams[r%n]}
		}
		all := k.measureAll(l, true, []contender{{"gccl", func() error { return c.Group(calls) }}})
		fmt.Printf("%10d | gccl %8.2f %8.2f %6.1f\n", bytes, all[0].at(0.5)*1e6, all[0].at(0.99)*1e6, l.busbw(2*n, all[0].at(0.5)))
	}
}

// multiSizes are 1 KiB … 1 GiB by fours, with some between where it is short.
func multiSizes() []int {
	sizes := []int{8 << 10}
	for b := 1 << 10; b <= room; b *= 4 {
		sizes = append(sizes, b)
	}
	sizes = append(sizes, 512<<10, 2<<20, 8<<20)
	slices.Sort(sizes)
	return sizes
}

// ceilings prints what the driver's copies reach between the first two GPUs, one way and both at once.
func ceilings(k *rack) {
	for _, both := range []bool{false, true} {
		best := 0.0
		for range 4 {
			start := time.Now()
			for range 4 {
				require.NoError(k, k.devices[0].CopyAny(k.streams[0], k.dst[1].Ptr, k.src[0].Ptr, room))
				if both {
					require.NoError(k, k.devices[1].CopyAny(k.streams[1], k.dst[0].Ptr, k.src[1].Ptr, room))
				}
			}
			k.wait()
			best = max(best, 4*room/time.Since(start).Seconds()/1e9)
		}
		fmt.Printf("driver's copy of 1 GiB, both ways %v: %.1f GB/s a direction\n", both, best)
	}
}
