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
	sources    int   // of the move with the most
}

// begin starts anew, for a call whose moves are m.
func (b *builder) begin(m *Moves, calls []Call) {
	b.used, b.calls, b.layout = 0, calls, calls[0].layout(m.Pieces)
}

// programs returns what to launch, one after the other, valid until more is added.
func (b *builder) programs() []cuda.Program { return b.list[:b.used] }

// phase adds the moves that are done on a device, which devices has for each rank.
func (b *builder) phase(d *cuda.Device, devices []*cuda.Device, phase []Move) error {
	call := &b.calls[0]
	folds, err := cuda.FoldKernel(call.DType, call.RedOp, false)
	if err != nil {
		return err
	}
	factor := cuda.FactorBits(call.DType, 1/float64(len(b.calls)))
	for _, kernel := range [3]cuda.Kernel{cuda.MoveBytes, cuda.SwapBytes, folds} { // each with its moves
		var p *cuda.Program
		for i := range phase {
			mv := &phase[i]
			at, n := b.layout.Piece(0, int(mv.Dsts[0].Piece))
			if n == 0 || kernelOf(mv, folds) != kernel || devices[mv.Rank] != d {
				continue
			}
			b.srcs, b.dsts = b.resolve(b.srcs, mv.Srcs, at), b.resolve(b.dsts, mv.Dsts, at)
			in := cuda.Instr{Code: cuda.Move, Count: uint64(n), Scaled: mv.Scaled}
			if kernel != folds {
				in.Count *= uint64(b.layout.Elem)
			}
			if mv.Exchange {
				in.Code = cuda.Exchange
			}
			for p == nil || !p.Lane() || !p.Add(in, b.srcs, b.dsts) {
				if p != nil && p.Empty() {
					return fmt.Errorf("gpu: %v: a move of %d sources to %d places fits no launch", call, len(b.srcs), len(b.dsts))
				}
				b.shape(d, p, kernel)
				p = b.program(kernel, factor)
			}
			b.longest, b.sources = max(b.longest, int64(n)*int64(b.layout.Elem)), max(b.sources, len(b.srcs))
		}
		b.shape(d, p, kernel)
	}
	return nil
}

// kernelOf returns the kernel for a move; folds is the one for those that change bits.
func kernelOf(m *Move, folds cuda.Kernel) cuda.Kernel {
	switch {
	case m.Exchange:
		return cuda.SwapBytes
	case len(m.Srcs) == 1 && m.Scaled == 0:
		return cuda.MoveBytes
	}
	return folds
}

func (b *builder) program(k cuda.Kernel, factor uint64) *cuda.Program {
	if b.used == len(b.list) {
		b.list = append(b.list, cuda.Program{})
	}
	p := &b.list[b.used]
	b.used++
	b.longest, b.sources = 0, 0
	p.Reset(k)
	p.SetFactor(factor)
	return p
}

// shape gives a program that is complete its blocks.
func (b *builder) shape(d *cuda.Device, p *cuda.Program, k cuda.Kernel) {
	if p == nil {
		return
	}
	unroll := cuda.FoldUnroll(b.sources)
	if k == cuda.MoveBytes {
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

// divide adds the division, by the number of ranks, of the results of a device's ranks.
func (b *builder) divide(d *cuda.Device, devices []*cuda.Device, m *Moves) error {
	in, err := cuda.DivideInstr(b.calls[0].DType, b.layout.Count)
	if err != nil {
		return err
	}
	var p *cuda.Program
	shape := func() {
		if p != nil {
			p.SetShape(d.BulkShape(p.Lanes(), int64(b.layout.Count)*16, 1)) // an element a thread
		}
	}
	for r := range b.calls {
		if !m.Shape.HasOut(r) || devices[r] != d {
			continue
		}
		b.dsts = append(b.dsts[:0], b.calls[r].Dst)
		for p == nil || !p.Lane() || !p.Add(in, b.dsts, b.dsts) {
			shape()
			p = b.program(cuda.SwapBytes, uint64(len(b.calls)))
		}
	}
	shape()
	return nil
}
