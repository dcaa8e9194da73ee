package cpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A preMulSpan is a PreMulReduce of elements from…to-1 of all buffers.
type preMulSpan = func(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, factor float64)

// wholePreMul is a preMulSpan from the first element on.
func wholePreMul(f preMulSpan) PreMulReduce {
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64) {
		checkScaled(scaled, len(srcs))
		if n > 0 {
			f(dst, srcs, 0, n, scaled, factor)
		}
	}
}

func preMul[T float32 | float64](dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, factor float64) {
	f := T(factor)
	d := at[T](dst, from, to)
	switch {
	case len(srcs) == 1:
		scale(d, at[T](srcs[0], from, to), f)
	case len(srcs) == 2 && scaled >= 0:
		// A sum does not depend on the order of two operands, but for NaN, and NaN is canonical.
		sumScaled(d, at[T](srcs[1-scaled], from, to), at[T](srcs[scaled], from, to), f)
	default:
		var block large
		preMulBlocks(d, srcs, from, scaled, f, at[T](unsafe.Pointer(&block), 0, len(block)*8/int(unsafe.Sizeof(f))))
	}
}

// preMulBlocks folds two or more sources, a block of elements at a time.
func preMulBlocks[T float32 | float64](d []T, srcs []unsafe.Pointer, from, scaled int, f T, block []T) {
	to := from + len(d)
	for i := from; i < to; i += len(block) {
		j := min(i+len(block), to)
		partial := at[T](srcs[0], i, j)
		if scaled == 0 || scaled == kernels.AllSources {
			scale(block[:j-i], partial, f)
			partial = block[:j-i]
		}
		for k := 1; k < len(srcs); k++ {
			out, src := block[:j-i], at[T](srcs[k], i, j)
			if k == len(srcs)-1 {
				out = d[i-from : j-from]
			}
			if scaled == k || scaled == kernels.AllSources {
				sumScaled(out, partial, src, f)
			} else {
				sum2(out, partial, src)
			}
			partial = out
		}
	}
}

// checkScaled panics on a caller's broken promise, also when there is nothing to scale.
func checkScaled(scaled, sources int) {
	if scaled < kernels.AllSources || scaled >= sources {
		panic(fmt.Sprintf("cpu: PreMul: source %d of %d cannot be scaled; want 0 to %d, or AllSources", scaled, sources, sources-1))
	}
}
