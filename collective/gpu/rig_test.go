package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// A rig is a GPU, or several, with buffers for some ranks, and a stream for each.
type rig struct {
	testing.TB
	d        *cuda.Device   // rank 0's
	devices  []*cuda.Device // of each rank
	streams  []cuda.Stream
	src, dst []kernels.Mem
	bounce   []byte
}

// newRig makes room for so many bytes in each buffer of each rank.
func newRig(t testing.TB, ranks int, room int64) *rig {
	return newRigOn(t, slices.Repeat([]*cuda.Device{cudatest.Open(t)}, ranks), room)
}

// newRigOn does so on the device of each rank; they are connected.
func newRigOn(t testing.TB, devices []*cuda.Device, room int64) *rig {
	g := &rig{TB: t, d: devices[0], devices: devices}
	for _, d := range devices {
		s, err := d.NewStream()
		require.NoError(t, err)
		src, err := d.Alloc(room)
		require.NoError(t, err)
		dst, err := d.Alloc(room)
		require.NoError(t, err)
		g.streams, g.src, g.dst = append(g.streams, s), append(g.src, src), append(g.dst, dst)
	}
	t.Cleanup(func() {
		g.waitAll()
		for r, d := range devices {
			require.NoError(t, d.DestroyStream(g.streams[r]))
			require.NoError(t, d.Free(g.src[r]))
			require.NoError(t, d.Free(g.dst[r]))
		}
	})
	return g
}

// TestMain gives each handle of a GPU, where several stand for several GPUs, a queue of its own: by default streams share eight, and a kernel
// behind another in a queue does not begin before that one has ended, also if it is what that one waits for. The driver reads it once.
func TestMain(m *testing.M) {
	if os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS") == "" {
		_ = os.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
	}
	os.Exit(m.Run())
}

// several returns a device for each rank: all GPUs in turn, or where there is one, several handles of it. They are connected.
func several(t testing.TB, handles, ranks int) []*cuda.Device {
	t.Helper()
	return severalBy(t, cuda.Open, handles, ranks)
}

// severalBy is several, opened by a function of one's own.
func severalBy(t testing.TB, open func(ordinal int) (*cuda.Device, error), handles, ranks int) []*cuda.Device {
	t.Helper()
	devices := []*cuda.Device{cudatest.OpenBy(t, open, 0)}
	n, err := cuda.Count()
	require.NoError(t, err)
	for i := 1; i < handles; i++ {
		devices = append(devices, cudatest.OpenBy(t, open, i%n))
	}
	require.NoError(t, cuda.Connect(devices...))
	all := make([]*cuda.Device, ranks)
	for r := range all {
		all[r] = devices[r%handles]
	}
	return all
}

func (g *rig) up(r int, p unsafe.Pointer, b []byte) {
	g.Helper()
	if len(b) > 0 {
		require.NoError(g, g.devices[r].CopyAny(g.streams[r], p, unsafe.Pointer(&b[0]), int64(len(b))))
		require.NoError(g, g.devices[r].Wait(g.streams[r]))
	}
}

// down returns n bytes, valid until the next use.
func (g *rig) down(r int, p unsafe.Pointer, n int) []byte {
	g.Helper()
	if len(g.bounce) < n {
		g.bounce = make([]byte, n)
	}
	if n > 0 {
		require.NoError(g, g.devices[r].CopyAny(g.streams[r], unsafe.Pointer(&g.bounce[0]), p, int64(n)))
		require.NoError(g, g.devices[r].Wait(g.streams[r]))
	}
	return g.bounce[:n]
}

func (g *rig) waitAll() {
	g.Helper()
	for r, s := range g.streams {
		require.NoError(g, g.devices[r].Wait(s))
	}
}

// A sample is one collective on given inputs, and what must come out.
type sample struct {
	Call
	ranks  int
	shift  []int    // bytes that a rank's buffers lie past an address that is a multiple of 256
	place  []bool   // in place, by rank
	inputs [][]byte // of each rank; nil if it has none

	bySites *links    // not nil: the ranks of a site are folded first
	factors []float64 // by rank, if the call has them
	fetched kernels.Mem
}

func newSample(call Call, ranks int, seed uint64) *sample {
	s := &sample{Call: call, ranks: ranks, shift: make([]int, ranks), place: make([]bool, ranks)}
	ins, _ := call.Kind.Blocks(ranks)
	for r := range ranks {
		s.inputs = append(s.inputs, nil)
		if s.shapeOf().HasIn(r) {
			s.inputs[r] = random(call.DType, ins*call.Count, seed*1000+uint64(r))
		}
	}
	return s
}

// random is kernelstest.Random for short inputs, and any bits for long ones, which are made faster.
func random(d kernels.DType, n int, seed uint64) []byte {
	if n < 20000 {
		return kernelstest.Random(d, n, seed)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n*d.Size()+8)
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n*d.Size()]
}

func (s *sample) shapeOf() collective.Shape {
	return collective.Shape{Kind: s.Kind, Ranks: s.ranks, Root: s.Root}
}

func (s *sample) block() int { return s.Count * s.DType.Size() }

// want returns what rank r's output must hold, by the kernels of package cpu, in rank order.
func (s *sample) want(r int) []byte {
	b := s.block()
	switch s.Kind {
	case collective.AllGather:
		return bytes.Join(s.inputs, nil)
	case collective.Broadcast:
		return s.inputs[s.Root]
	case collective.AllToAll:
		var parts [][]byte
		for _, in := range s.inputs {
			parts = append(parts, in[r*b:][:b])
		}
		return bytes.Join(parts, nil)
	}
	from := 0
	if s.Kind == collective.ReduceScatter {
		from = r * b
	}
	if s.Count == 0 {
		return nil
	}
	words := make([]uint64, b/8+1)
	out := unsafe.Pointer(&words[0])
	srcs := make([]unsafe.Pointer, s.ranks)
	for k := range srcs {
		copied := make([]uint64, b/8+1) // aligned
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&copied[0])), b), s.inputs[k][from:])
		srcs[k] = unsafe.Pointer(&copied[0])
	}
	switch {
	case s.factors != nil: // each product is rounded before the sum
		f, err := cpu.PreMul(s.DType)
		if err != nil {
			panic(err)
		}
		for k := range srcs {
			f(srcs[k], srcs[k:k+1], s.Count, 0, s.factors[k])
		}
		sum, err := cpu.Reducer(s.DType, kernels.Sum)
		if err != nil {
			panic(err)
		}
		sum(out, srcs, s.Count)
	case s.scales():
		f, err := cpu.PreMul(s.DType)
		if err != nil {
			panic(err)
		}
		f(out, srcs, s.Count, kernels.AllSources, 1/float64(s.ranks))
	default:
		f, err := cpu.Reducer(s.DType, s.RedOp)
		if err != nil {
			panic(err)
		}
		if s.ranks == 1 { // one rank alone copies
			copy(unsafe.Slice((*byte)(out), b), s.inputs[0])
		} else {
			f(out, srcs, s.Count)
		}
		if s.divides() {
			div, err := cpu.PostDiv(s.DType)
			if err != nil {
				panic(err)
			}
			div(out, s.Count, int64(s.ranks))
		}
	}
	return unsafe.Slice((*byte)(out), b)
}

// lay writes the inputs and returns the calls. Outputs, and everything about them, hold 0xE7.
func (s *sample) lay(g *rig) []Call {
	g.Helper()
	calls := make([]Call, s.ranks)
	ins, outs := s.Kind.Blocks(s.ranks)
	longest := max(ins, outs) * s.block()
	for r := range calls {
		c := s.Call
		c.Stream = g.streams[r]
		src, dst := unsafe.Add(g.src[r].Ptr, 256+s.shift[r]), unsafe.Add(g.dst[r].Ptr, 256+s.shift[r])
		require.NoError(g, g.devices[r].Fill(c.Stream, g.dst[r].Ptr, 0xE7, int64(longest+1024)))
		require.NoError(g, g.devices[r].Fill(c.Stream, g.src[r].Ptr, 0xE7, int64(longest+1024)))
		if s.shapeOf().HasOut(r) {
			c.Dst = dst
		}
		if s.shapeOf().HasIn(r) {
			c.Src = src
			if s.place[r] && c.Dst != nil {
				switch s.Kind {
				case collective.AllGather:
					c.Src = unsafe.Add(dst, r*s.block())
				case collective.ReduceScatter:
					c.Dst = unsafe.Add(src, r*s.block())
				default:
					c.Src = dst
				}
			}
			g.up(r, c.Src, s.inputs[r])
		}
		if s.factors != nil {
			c.Factor = kernels.FactorOf(s.factors[r])
			if s.fetched.Ptr != nil {
				c.Factor = kernels.FactorAt(unsafe.Add(s.fetched.Ptr, r*s.DType.Size()))
			}
		}
		calls[r] = c
	}
	return calls
}

// check waits for all ranks and compares what they have.
func (s *sample) check(g *rig, calls []Call) {
	g.Helper()
	g.waitAll()
	s.compare(g, calls)
}

// compare compares every rank's output, and what lies about it, to the bit, as soon as that rank's stream has come so far.
func (s *sample) compare(g *rig, calls []Call) {
	g.Helper()
	var same []byte
	for r, c := range calls {
		if c.Dst == nil || s.Kind == collective.Barrier {
			continue
		}
		want := same
		if want == nil || s.Kind == collective.ReduceScatter || s.Kind == collective.AllToAll {
			if want = s.want(r); s.bySites != nil {
				want = s.wantBySites(s.bySites, r)
			}
			if s.Kind == collective.AllReduce || s.Kind == collective.AllGather || s.Kind == collective.Broadcast {
				same = want
			}
		}
		const margin = 64
		before, after := margin, margin
		if s.place[r] && s.Kind == collective.ReduceScatter {
			before, after = 0, 0 // the input goes on
		}
		got := g.down(r, unsafe.Add(c.Dst, -before), before+len(want)+after)
		edge := bytes.Repeat([]byte{0xE7}, margin)
		if !bytes.Equal(got[:before], edge[:before]) || !bytes.Equal(got[before+len(want):], edge[:after]) {
			g.Fatalf("%s: rank %d: written before or after the output", s, r)
		}
		if got = got[before : before+len(want)]; !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			size := s.DType.Size()
			i -= i % size
			var in []string
			for _, b := range s.inputs {
				if i+size <= len(b) {
					in = append(in, fmt.Sprintf("%x", b[i:i+size]))
				}
			}
			g.Fatalf("%s: rank %d: element %d is %x, want %x (inputs at that index %v)", s, r, i/size, got[i:i+size], want[i:i+size], in)
		}
	}
}

func (s *sample) String() string {
	return fmt.Sprintf("%v over %d ranks, in place %v, shifted %v", &s.Call, s.ranks, s.place, s.shift)
}

// sampleOf varies places and alignment by a number.
func sampleOf(call Call, ranks, variant int) *sample {
	s := newSample(call, ranks, uint64(variant))
	size := call.DType.Size()
	for r := range ranks {
		switch variant % 4 {
		case 1:
			s.place[r] = true
		case 2:
			s.shift[r] = size // all alike
		case 3:
			s.shift[r], s.place[r] = size*(r%3), r%2 == 0
		}
	}
	return s
}
