package cpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// The 16-bit formats are folded in float32, a block of elements at a time.

func sumHalf(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(half, kernels.Sum, dst, srcs, from, to)
}

func prodHalf(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(half, kernels.Prod, dst, srcs, from, to)
}

func maximumHalf(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(half, kernels.Max, dst, srcs, from, to)
}

func minimumHalf(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(half, kernels.Min, dst, srcs, from, to)
}

func sumBFloat16(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(bfloat16, kernels.Sum, dst, srcs, from, to)
}

func prodBFloat16(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(bfloat16, kernels.Prod, dst, srcs, from, to)
}

func maximumBFloat16(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(bfloat16, kernels.Max, dst, srcs, from, to)
}

func minimumBFloat16(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	foldHalves(bfloat16, kernels.Min, dst, srcs, from, to)
}

func preMulHalf(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, factor float64) {
	preMulHalves(half, dst, srcs, from, to, scaled, kernels.HalfFromFloat64(factor).Float32())
}

func preMulBFloat16(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, factor float64) {
	preMulHalves(bfloat16, dst, srcs, from, to, scaled, kernels.BFloat16FromFloat64(factor).Float32())
}

// Elements of a block, and of the block for short folds, of which clearing is most.
const (
	manyHalves = 256
	fewHalves  = 32
)

func foldHalves(form format, op kernels.RedOp, dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	if op == kernels.Sum && len(srcs) == 2 {
		form.sum2(at[uint16](dst, from, to), at[uint16](srcs[0], from, to), at[uint16](srcs[1], from, to))
		return
	}
	if to-from <= fewHalves {
		var partial, next [fewHalves]float32
		foldHalfBlocks(form, op, dst, srcs, from, to, partial[:], next[:])
		return
	}
	var partial, next [manyHalves]float32
	foldHalfBlocks(form, op, dst, srcs, from, to, partial[:], next[:])
}

func foldHalfBlocks(form format, op kernels.RedOp, dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int, partial, next []float32) {
	for i := from; i < to; i += len(partial) {
		j := min(i+len(partial), to)
		p, x := partial[:j-i], next[:j-i]
		form.widen(p, at[uint16](srcs[0], i, j))
		for _, src := range srcs[1:] {
			if op == kernels.Sum {
				form.add(p, at[uint16](src, i, j))
				continue
			}
			form.widen(x, at[uint16](src, i, j))
			combine(op, p, p, x)
		}
		form.narrow(at[uint16](dst, i, j), p)
	}
}

func preMulHalves(form format, dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, f float32) {
	if to-from <= fewHalves {
		var partial, next [fewHalves]float32
		preMulHalfBlocks(form, dst, srcs, from, to, scaled, f, partial[:], next[:])
		return
	}
	var partial, next [manyHalves]float32
	preMulHalfBlocks(form, dst, srcs, from, to, scaled, f, partial[:], next[:])
}

func preMulHalfBlocks(form format, dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, f float32, partial, next []float32) {
	for i := from; i < to; i += len(partial) {
		j := min(i+len(partial), to)
		p := partial[:j-i]
		for k, src := range srcs {
			x := next[:j-i]
			if k == 0 {
				x = p
			}
			form.widen(x, at[uint16](src, i, j))
			if k == scaled || scaled == kernels.AllSources {
				form.scale(x, f)
			}
			if k > 0 {
				sum2(p, p, x)
			}
		}
		form.narrow(at[uint16](dst, i, j), p)
	}
}
