package cpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A span is a Reduce of elements from…to-1 of all buffers.
type span = func(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int)

// whole is a span from the first element on.
func whole(f span) Reduce {
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
		if n > 0 {
			f(dst, srcs, 0, n)
		}
	}
}

func sum[T element](dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	d := at[T](dst, from, to)
	switch len(srcs) {
	case 2:
		sum2(d, at[T](srcs[0], from, to), at[T](srcs[1], from, to))
	case 3:
		sum3(d, at[T](srcs[0], from, to), at[T](srcs[1], from, to), at[T](srcs[2], from, to))
	case 4:
		sum4(d, at[T](srcs[0], from, to), at[T](srcs[1], from, to), at[T](srcs[2], from, to), at[T](srcs[3], from, to))
	default:
		fold(kernels.Sum, d, srcs, from)
	}
}

func prod[T element](dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	fold(kernels.Prod, at[T](dst, from, to), srcs, from)
}

func maximum[T element](dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	fold(kernels.Max, at[T](dst, from, to), srcs, from)
}

func minimum[T element](dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	fold(kernels.Min, at[T](dst, from, to), srcs, from)
}

// at returns elements i to j of src.
func at[T any](src unsafe.Pointer, i, j int) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Add(src, uintptr(i)*unsafe.Sizeof(zero))), j-i)
}

// fold runs any number of sources, from an element on, in one pass over memory.
func fold[T element](op kernels.RedOp, d []T, srcs []unsafe.Pointer, from int) {
	var zero T
	switch {
	case len(srcs) == 1:
		canonical(d, at[T](srcs[0], from, from+len(d)))
	case len(srcs) == 2:
		combine(op, d, at[T](srcs[0], from, from+len(d)), at[T](srcs[1], from, from+len(d)))
	case uintptr(len(d))*unsafe.Sizeof(zero) <= unsafe.Sizeof(small{}):
		var block small // clearing a block is most of a short fold
		foldBlocks(op, d, srcs, from, at[T](unsafe.Pointer(&block), 0, int(unsafe.Sizeof(block)/unsafe.Sizeof(zero))))
	default:
		var block large
		foldBlocks(op, d, srcs, from, at[T](unsafe.Pointer(&block), 0, int(unsafe.Sizeof(block)/unsafe.Sizeof(zero))))
	}
}

// Blocks that hold partial results: d cannot, since it may be a source that is still to come. They
// are of words, so that they are aligned for every element, and stay in the first-level cache.
type (
	small [16]uint64
	large [128]uint64
)

// foldBlocks folds more than two sources, a block of elements at a time.
func foldBlocks[T element](op kernels.RedOp, d []T, srcs []unsafe.Pointer, from int, block []T) {
	last := len(srcs) - 1
	to := from + len(d)
	for i := from; i < to; i += len(block) {
		j := min(i+len(block), to)
		partial := block[:j-i]
		k := 2
		if op == kernels.Sum && last > 3 {
			sum4(partial, at[T](srcs[0], i, j), at[T](srcs[1], i, j), at[T](srcs[2], i, j), at[T](srcs[3], i, j))
			for k = 4; k+3 <= last; k += 3 {
				sum4(partial, partial, at[T](srcs[k], i, j), at[T](srcs[k+1], i, j), at[T](srcs[k+2], i, j))
			}
		} else {
			combine(op, partial, at[T](srcs[0], i, j), at[T](srcs[1], i, j))
		}
		for ; k < last; k++ {
			combine(op, partial, partial, at[T](srcs[k], i, j))
		}
		combine(op, d[i-from:j-from], partial, at[T](srcs[last], i, j))
	}
}

func combine[T element](op kernels.RedOp, d, a, b []T) {
	switch op {
	case kernels.Sum:
		sum2(d, a, b)
	case kernels.Prod:
		prod2(d, a, b)
	case kernels.Max:
		max2(d, a, b)
	default:
		min2(d, a, b)
	}
}
