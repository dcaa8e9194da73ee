package gpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A builder writes programs for the moves of a call. It keeps its memory from call to call.
type builder struct {
	list       []cuda.Program
	used       int
	srcs, dsts []unsafe.Pointer
	calls      []Call
	layout     collective.Layout
	longest    int64 // bytes of the longest move of the program at hand
}

// programs returns what to launch, one after the other, valid until the next use of the builder.
func (b *builder) programs(d *cuda.Device, m *Moves, calls []Call) ([]cuda.Program, error) {
	b.used, b.calls, b.layout = 0, calls, calls[0].layout(m.Pieces)
	call := &calls[0]
	folds, err := cuda.FoldKernel(call.DType, call.RedOp, false)
	if err != nil {
		return nil, err
	}
	factor := cuda.FactorBits(call.DType, 1/float64(m.Shape.Ranks))
	for _, phase := range m.Phases {
		for _, bytes := range [2]bool{true, false} { // the two kinds of kernels, each with its moves
			var p *cuda.Program
			for i := range phase {
				mv := &phase[i]
				at, n := b.layout.Piece(0, int(mv.Dsts[0].Piece))
				if n == 0 || isCopy(mv) != bytes {
					continue
				}
				b.srcs, b.dsts = b.resolve(b.srcs, mv.Srcs, at), b.resolve(b.dsts, mv.Dsts, at)
				in := cuda.Instr{Code: cuda.Move, Count: uint64(n), Scaled: mv.Scaled}
				if bytes {
					in.Count *= uint64(b.layout.Elem)
				}
				if mv.Exchange {
					in.Code = cuda.Exchange
				}
				for p == nil || !p.Lane() || !p.Add(in, b.srcs, b.dsts) {
					if p != nil && p.Empty() {
						return nil, fmt.Errorf("gpu: %v: a move of %d sources to %d places fits no launch", call, len(b.srcs), len(b.dsts))
					}
					b.shape(d, p, bytes)
					kernel := folds
					if bytes {
						kernel = cuda.MoveBytes
					}
					p = b.program(kernel, factor)
				}
				b.longest = max(b.longest, int64(n)*int64(b.layout.Elem))
			}
			b.shape(d, p, bytes)
		}
	}
	if call.divides() {
		return b.list[:b.used], b.divide(d, m)
	}
	return b.list[:b.used], nil
}

// isCopy reports whether a move changes no bits.
func isCopy(m *Move) bool { return m.Exchange || len(m.Srcs) == 1 && m.Scaled == 0 }

func (b *builder) program(k cuda.Kernel, factor uint64) *cuda.Program {
	if b.used == len(b.list) {
		b.list = append(b.list, cuda.Program{})
	}
	p := &b.list[b.used]
	b.used++
	b.longest = 0
	p.Reset(k)
	p.SetFactor(factor)
	return p
}

// shape gives a program that is complete its blocks.
func (b *builder) shape(d *cuda.Device, p *cuda.Program, bytes bool) {
	if p == nil {
		return
	}
	unroll := 1
	if bytes {
		unroll = cuda.CopyUnroll
	}
	p.SetShape(d.BulkShape(p.Lanes(), b.longest, unroll))
}

// resolve returns the addresses of places, at elements into their block.
func (b *builder) resolve(out []unsafe.Pointer, places []Place, at int) []unsafe.Pointer {
	out = out[:0]
	for _, p := range places {
		base := b.calls[p.Rank].Dst
		if p.Space == collective.In {
			base = b.calls[p.Rank].Src
		}
		out = append(out, unsafe.Add(base, (int(p.Block)*b.layout.Count+at)*b.layout.Elem))
	}
	return out
}

// divide adds the division of every rank's result by the number of ranks.
func (b *builder) divide(d *cuda.Device, m *Moves) error {
	in, err := cuda.DivideInstr(b.calls[0].DType, b.layout.Count)
	if err != nil {
		return err
	}
	var p *cuda.Program
	for r := range b.calls {
		if !m.Shape.HasOut(r) {
			continue
		}
		b.dsts = append(b.dsts[:0], b.calls[r].Dst)
		for p == nil || !p.Lane() || !p.Add(in, b.dsts, b.dsts) {
			if p != nil {
				p.SetShape(d.BulkShape(p.Lanes(), int64(b.layout.Count)*16, 1))
			}
			p = b.program(cuda.MoveBytes, uint64(m.Shape.Ranks))
		}
	}
	if p != nil {
		p.SetShape(d.BulkShape(p.Lanes(), int64(b.layout.Count)*16, 1)) // an element a thread
	}
	return nil
}
