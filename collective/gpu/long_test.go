package gpu

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// Long messages, whole, for types of each size.
func TestLongOnGPU(t *testing.T) {
	const count = 100003
	g := newRig(t, 8, 8*count+4096)
	for _, ranks := range []int{2, 5, 8} {
		c := newCommunicator(t, g.d, ranks)
		for i, kind := range collective.Kinds() {
			ins, outs := kind.Blocks(ranks)
			if kind == collective.Barrier {
				continue
			}
			for j, dtype := range []kernels.DType{kernels.Float32, kernels.Bfloat16, kernels.Int8, kernels.Float64} {
				for _, op := range []kernels.RedOp{kernels.Sum, kernels.Avg}[:min(2, len(redops(kind)))] {
					s := sampleOf(Call{Kind: kind, DType: dtype, RedOp: op, Count: count / max(ins, outs)}, ranks, i+j)
					calls := s.lay(g)
					require.NoError(t, c.Group(calls), "%s", s)
					s.check(g, calls)
				}
			}
		}
	}
}

// TestUC78_LongOfEveryKindTypeAndOperatorOnGPU is TestUC78_EveryKindTypeAndOperatorOnGPU at counts that take many blocks, compared byte by byte on
// the GPU. Every block of an input repeats a short one, and so must every block of an output repeat what a short call has. Counts are those of
// the longer buffer.
func TestUC78_LongOfEveryKindTypeAndOperatorOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a real GPU's memory, not with -short")
	}
	const (
		most   = 8
		period = 8 * 8191 // elements; an offset that is wrong by any power of two hits another place
	)
	for _, count := range []int{1000003, 1 << 26} {
		g := newRig(t, most, 8*int64(count)+4096)
		short := newRig(t, most, 8*most*period+4096)
		differ := cudatest.NewDiffer(t, g.d)
		variant, run := 0, 0
		for ranks := 1; ranks <= most; ranks++ {
			c := newCommunicator(t, g.d, ranks)
			for _, kind := range collective.Kinds() {
				if kind == collective.Barrier {
					continue
				}
				ins, outs := kind.Blocks(ranks)
				for _, dtype := range kernels.DTypes() {
					for _, op := range redops(kind) {
						variant++
						call := Call{Kind: kind, DType: dtype, RedOp: op, Count: period}
						if kind.Rooted() {
							call.Root = variant % ranks
						}
						s := sampleOf(call, ranks, variant)
						x := longSample{s, g, short, count / max(ins, outs), ins, outs}
						calls := x.lay()
						require.NoError(t, c.Group(calls), "%s", s)
						x.check(differ, calls)
						run++
					}
				}
			}
		}
		t.Logf("%d collectives of %d elements", run, count)
	}
}

// A longSample is a short one of which every block is repeated.
type longSample struct {
	*sample
	g, short  *rig
	count     int // elements of a block
	ins, outs int
}

// lay writes the inputs, and 0xE7 where outputs go and behind them.
func (x *longSample) lay() []Call {
	x.g.Helper()
	size := x.DType.Size()
	block, unit := int64(x.count*size), int64(x.sample.block())
	calls := make([]Call, x.ranks)
	for r := range calls {
		d, stream := x.g.d, x.g.streams[0]
		call := x.Call
		call.Count, call.Stream = x.count, x.g.streams[r]
		src, dst := unsafe.Add(x.g.src[r].Ptr, 256+x.shift[r]), unsafe.Add(x.g.dst[r].Ptr, 256+x.shift[r])
		if x.shapeOf().HasOut(r) {
			call.Dst = dst
			require.NoError(x.g, d.Fill(stream, x.g.dst[r].Ptr, 0xE7, int64(x.outs)*block+1024))
		}
		if x.shapeOf().HasIn(r) {
			call.Src = src
			if x.place[r] && call.Dst != nil {
				switch x.Kind {
				case collective.AllGather:
					call.Src = unsafe.Add(dst, int64(r)*block)
				case collective.ReduceScatter:
					call.Dst = unsafe.Add(src, int64(r)*block)
				default:
					call.Src = dst
				}
			}
			x.short.up(r, x.short.src[r].Ptr, x.inputs[r])
			for b := range x.ins {
				at := unsafe.Add(call.Src, int64(b)*block)
				require.NoError(x.g, d.CopyAny(stream, at, unsafe.Add(x.short.src[r].Ptr, int64(b)*unit), min(unit, block)))
				for done := unit; done < block; done *= 2 {
					require.NoError(x.g, d.CopyAny(stream, unsafe.Add(at, done), at, min(done, block-done)))
				}
			}
		}
		calls[r] = call
	}
	require.NoError(x.g, x.g.d.Synchronize())
	return calls
}

// check compares every byte of every output, and some behind it.
func (x *longSample) check(differ *cudatest.Differ, calls []Call) {
	x.g.Helper()
	x.g.waitAll()
	size := x.DType.Size()
	block, unit := int64(x.count*size), int64(x.sample.block())
	s := x.g.streams[0]
	differ.Begin(s)
	var same []byte
	for r := range calls {
		if calls[r].Dst == nil {
			continue
		}
		want := same
		if want == nil || x.Kind == collective.ReduceScatter || x.Kind == collective.AllToAll {
			want = x.want(r)
			x.short.up(0, x.short.dst[0].Ptr, want)
			same = want
		}
		for b := range x.outs {
			differ.Add(s, unsafe.Add(calls[r].Dst, int64(b)*block), block, unsafe.Add(x.short.dst[0].Ptr, int64(b)*unit), unit)
		}
		if !x.place[r] || x.Kind != collective.ReduceScatter {
			require.Equal(x.g, fmt.Sprintf("%x", fill(64)), fmt.Sprintf("%x", x.g.down(r, unsafe.Add(calls[r].Dst, int64(x.outs)*block), 64)), "%s: rank %d: behind the output", x, r)
		}
		require.NoError(x.g, x.g.d.Wait(s)) // what is wanted is overwritten by the next rank's
	}
	if n := differ.End(s); n != 0 {
		x.g.Fatalf("%s of %d elements a block: %d bytes differ", x, x.count, n)
	}
}

func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xE7
	}
	return b
}
