package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// Fold queues dst[i] = srcs[0][i] ⊕ srcs[1][i] ⊕ … of n elements on a stream, in one pass. dst may be one of the sources; any other
// overlap is the caller's mistake. Pointers are aligned to the element's size; the same alignment to 16 bytes is fastest. Avg is
// Sum, as in package cpu: averages are made by FoldScaled and Divide.
func (d *Device) Fold(s Stream, t kernels.DType, op kernels.RedOp, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) error {
	if op == kernels.Avg {
		op = kernels.Sum
	}
	return d.fold(s, t, op, 0, 0, dst, srcs, n)
}

// FoldScaled queues a Sum in which source scaled, or with kernels.AllSources every one, is first multiplied by factor; the factor and
// each product are rounded to the type. t is a floating-point type.
func (d *Device) FoldScaled(s Stream, t kernels.DType, dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64) error {
	if err := t.Check(); err != nil {
		return err
	}
	if !t.IsFloat() {
		return &kernels.UnsupportedError{Kernel: "PreMul", Device: "cuda", DType: t, Accepted: "half, float, double, bfloat16, f8e4m3, f8e5m2"}
	}
	mask := ^uint64(0)
	if scaled != kernels.AllSources {
		mask = 1 << scaled
	}
	return d.fold(s, t, kernels.Avg, mask, FactorBits(t, factor), dst, srcs, n)
}

// FactorBits returns a factor as Program.SetFactor wants it: rounded to the type, in the bits of what the kernels compute in.
func FactorBits(t kernels.DType, factor float64) uint64 {
	switch t {
	case kernels.Float64:
		return math.Float64bits(factor)
	case kernels.Float16:
		return uint64(math.Float32bits(kernels.HalfFromFloat64(factor).Float32()))
	case kernels.Bfloat16:
		return uint64(math.Float32bits(kernels.BFloat16FromFloat64(factor).Float32()))
	case kernels.Float8e4m3:
		return uint64(math.Float32bits(kernels.Float8E4M3FromFloat64(factor).Float32()))
	case kernels.Float8e5m2:
		return uint64(math.Float32bits(kernels.Float8E5M2FromFloat64(factor).Float32()))
	}
	return uint64(math.Float32bits(float32(factor)))
}

func (d *Device) fold(s Stream, t kernels.DType, op kernels.RedOp, scaled, factor uint64, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) error {
	k, err := FoldKernel(t, op)
	if err == nil {
		err = d.Folds(t)
	}
	if err != nil {
		return err
	}
	if n <= 0 {
		return nil
	}
	var p [1]Program
	p[0].Reset(k)
	p[0].SetFactor(factor)
	p[0].Lane()
	if !p[0].Add(Instr{Code: Move, Count: uint64(n), Scaled: scaled}, srcs, []unsafe.Pointer{dst}) {
		return fmt.Errorf("cuda: fold of %d sources, want at most 255: %w", len(srcs), kernels.ErrInvalid)
	}
	p[0].SetShape(d.BulkShape(1, int64(n)*int64(t.Size()), len(srcs)))
	return d.Launch(p[:], s, nil, nil)
}

// Divide queues the division of n integers in place, fractions dropped. The divisor is at least 1.
func (d *Device) Divide(s Stream, t kernels.DType, dst unsafe.Pointer, n int, divisor int64) error {
	in, err := DivideInstr(t, n)
	if err != nil || n <= 0 {
		return err
	}
	var p [1]Program
	p[0].Reset(SwapBytes)
	p[0].SetFactor(uint64(divisor))
	p[0].Lane()
	p[0].Add(in, []unsafe.Pointer{dst}, []unsafe.Pointer{dst})
	p[0].SetShape(d.BulkShape(1, int64(n)*16, 1)) // an element a thread
	return d.Launch(p[:], s, nil, nil)
}

// DivideInstr returns the instr that divides n integers of type t. A floating-point type is a *kernels.UnsupportedError.
func DivideInstr(t kernels.DType, n int) (Instr, error) {
	if err := t.Check(); err != nil {
		return Instr{}, err
	}
	in := Instr{Code: Divide, Count: uint64(max(n, 0)), Plain: uint8(t.Size())}
	switch t {
	case kernels.Int8, kernels.Int32, kernels.Int64:
		in.Flags = Signed
	case kernels.Uint8, kernels.Uint32, kernels.Uint64:
	default:
		return Instr{}, &kernels.UnsupportedError{Kernel: "PostDiv", Device: "cuda", DType: t, Accepted: "int8, uint8, int32, uint32, int64, uint64"}
	}
	return in, nil
}

// Copy queues a copy by a kernel from one place to several, which don't overlap.
func (d *Device) Copy(s Stream, dsts []unsafe.Pointer, src unsafe.Pointer, bytes int64) error {
	if bytes <= 0 || len(dsts) == 0 {
		return nil
	}
	var p [1]Program
	p[0].Reset(MoveBytes)
	p[0].Lane()
	if !p[0].Add(Instr{Code: Move, Count: uint64(bytes)}, []unsafe.Pointer{src}, dsts) {
		return fmt.Errorf("cuda: copy to %d places, want at most 255: %w", len(dsts), kernels.ErrInvalid)
	}
	p[0].SetShape(d.BulkShape(1, bytes, 1))
	return d.Launch(p[:], s, nil, nil)
}

// BulkShape returns blocks of a lane and threads of a block for lanes that wait for nobody and move so many bytes each, by moves of
// so many sources at most: a pack of 16 bytes for every thread. Small blocks let few threads use many multiprocessors. Where there are
// more packs than threads that run at once, a thread of a copy has so little to do that starting small blocks takes longer, and one of
// a fold of two sources takes two packs. TestShapes in tests/gpu prints what others reach.
func (d *Device) BulkShape(lanes int, bytes int64, sources int) (blocks, threads int) {
	turns := max((bytes+15)/16, 1)
	all, short := turns*int64(lanes), int64(256*d.info.Multiprocessors)
	threads = 64
	switch {
	case all > short && sources == 1, all > short/4 && all <= short:
		threads = 128
	case all > short && sources == 2:
		turns = (turns + pairs - 1) / pairs
	}
	return int(min((turns+int64(threads)-1)/int64(threads), maxGrid/int64(lanes))), threads
}

const pairs = 2 // packs of two sources that move.h has in flight

// maxGrid is the most blocks of a launch.
const maxGrid = 1 << 24
