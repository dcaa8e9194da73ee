package gpu

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A builder writes programs for the moves of calls. It keeps its memory from call to call.
type builder struct {
	list       []cuda.Program
	used       int
	srcs, dsts []unsafe.Pointer
	factors    []uint64
	kernels    []cuda.Kernel // of the round at hand
	calls      []Call        // of the job at hand
	layout     collective.Layout
	longest    int64  // bytes of the longest move of the program at hand
	sources    int    // of the move with the most
	last       []Call // that all programs there are stand for; empty: none
}

// reset starts anew.
func (b *builder) reset() { b.used, b.last = 0, b.last[:0] }

// begin starts anew, for a call whose moves are m.
func (b *builder) begin(m *Moves, calls []Call) {
	b.reset()
	b.take(m, calls)
}

// take goes on with another call.
func (b *builder) take(m *Moves, calls []Call) { b.calls, b.layout = calls, calls[0].layout(m.Pieces) }

// programs returns what to launch, one after the other, valid until more is added.
func (b *builder) programs() []cuda.Program { return b.list[:b.used] }

// round adds what a device does, which devices has for each rank, in a round of jobs: a program for each kernel, or several.
func (b *builder) round(d *cuda.Device, devices []*cuda.Device, jobs []job, r round) error {
	b.kernels = append(b.kernels[:0], cuda.MoveBytes, cuda.SwapBytes)
	for i := range jobs {
		if j := &jobs[i]; j.calls != nil && j.stage == r.stage && r.phase < len(j.moves.Phases) {
			folds, err := j.calls[0].foldKernel()
			if err != nil {
				return err
			}
			if !slices.Contains(b.kernels, folds) {
				b.kernels = append(b.kernels, folds)
			}
		}
	}
	for _, kernel := range b.kernels {
		var p *cuda.Program
		for i := range jobs {
			j := &jobs[i]
			var err error
			switch {
			case j.stage != r.stage:
			case j.calls == nil && kernel == cuda.MoveBytes && r.phase == 0:
				p, err = b.message(d, devices, p, &j.transfer)
			case j.calls != nil && r.phase < len(j.moves.Phases):
				b.take(j.moves, j.calls)
				p, err = b.phase(d, devices, p, kernel, j.moves.Phases[r.phase])
			}
			if err != nil {
				return err
			}
		}
		b.shape(d, p)
	}
	return nil
}

// phase adds the moves of the call at hand that are done on a device by a kernel. p is a program that has room, or nil.
func (b *builder) phase(d *cuda.Device, devices []*cuda.Device, p *cuda.Program, kernel cuda.Kernel, phase []Move) (*cuda.Program, error) {
	call := &b.calls[0]
	folds, err := call.foldKernel()
	if err != nil {
		return nil, err
	}
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
		b.factors = b.factors[:0]
		if call.Factor.Set && mv.Scaled != 0 {
			b.factorsOf(&in, mv.Srcs)
		}
		if p, err = b.add(d, p, kernel, in); err != nil {
			return nil, fmt.Errorf("gpu: %v: %w", call, err)
		}
		b.longest, b.sources = max(b.longest, int64(n)*int64(b.layout.Elem)), max(b.sources, len(b.srcs))
	}
	return p, nil
}

// factorsOf finds what each source's rank multiplies its input by.
func (b *builder) factorsOf(in *cuda.Instr, srcs []Place) {
	for _, s := range srcs {
		f := &b.calls[s.Rank].Factor
		bits := uint64(uintptr(f.At))
		if f.At == nil {
			bits = cuda.FactorBits(b.calls[0].DType, f.Value)
		} else {
			in.Flags = cuda.Fetch // all do: see Call.same
		}
		b.factors = append(b.factors, bits)
	}
}

// add appends an instr on b.srcs, b.dsts and b.factors to a program, or to the next one.
func (b *builder) add(d *cuda.Device, p *cuda.Program, kernel cuda.Kernel, in cuda.Instr) (*cuda.Program, error) {
	for {
		if p != nil && p.Lane() {
			if len(b.factors) > 0 && p.AddScaled(in, b.srcs, b.dsts, b.factors) || len(b.factors) == 0 && p.Add(in, b.srcs, b.dsts) {
				return p, nil
			}
			if p.Empty() {
				return nil, fmt.Errorf("a move of %d sources to %d places fits no launch", len(b.srcs), len(b.dsts))
			}
		}
		b.shape(d, p)
		factor := uint64(0)
		if kernel != cuda.MoveBytes {
			factor = cuda.FactorBits(b.calls[0].DType, 1/float64(len(b.calls)))
		}
		p = b.program(kernel, factor)
	}
}

// message adds a message that one of a device's ranks sends.
func (b *builder) message(d *cuda.Device, devices []*cuda.Device, p *cuda.Program, t *Transfer) (*cuda.Program, error) {
	if t.Bytes == 0 || devices[t.From] != d {
		return p, nil
	}
	b.srcs, b.dsts, b.factors = append(b.srcs[:0], t.Src), append(b.dsts[:0], t.Dst), b.factors[:0]
	p, err := b.add(d, p, cuda.MoveBytes, cuda.Instr{Code: cuda.Move, Count: uint64(t.Bytes)})
	b.longest, b.sources = max(b.longest, t.Bytes), max(b.sources, 1)
	return p, err
}

// foldKernel returns the kernel of what is folded.
func (c *Call) foldKernel() (cuda.Kernel, error) {
	op := c.RedOp
	if c.Factor.Set {
		op = kernels.Avg // a sum that scales
	}
	return cuda.FoldKernel(c.DType, op)
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
func (b *builder) shape(d *cuda.Device, p *cuda.Program) {
	if p != nil {
		p.SetShape(d.BulkShape(p.Lanes(), b.longest, b.sources))
	}
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

// after adds the division, by the number of ranks, of the results of a device's ranks, in the jobs of a stage that want it.
func (b *builder) after(d *cuda.Device, devices []*cuda.Device, jobs []job, stage int) error {
	var p *cuda.Program
	for i := range jobs {
		j := &jobs[i]
		if j.calls == nil || j.stage != stage || !j.calls[0].divides() {
			continue
		}
		b.take(j.moves, j.calls)
		in, err := cuda.DivideInstr(b.calls[0].DType, b.layout.Count)
		if err != nil {
			return err
		}
		for r := range b.calls {
			if !j.moves.Shape.HasOut(r) || devices[r] != d {
				continue
			}
			b.dsts = append(b.dsts[:0], b.calls[r].Dst)
			for p == nil || !p.Lane() || !p.Add(in, b.dsts, b.dsts) {
				b.shape(d, p)
				p = b.program(cuda.SwapBytes, uint64(len(b.calls)))
			}
			b.longest, b.sources = max(b.longest, int64(b.layout.Count)*16), 1 // an element a thread
		}
	}
	b.shape(d, p)
	return nil
}
