// Package cpu folds host memory: it holds the kernels that add, multiply and compare the elements of
// several buffers into one. What a fold computes, to the bit, is promised in package kernels.
//
// A kernel is looked up once, by data type and operator, and is then an ordinary function: it
// allocates nothing, keeps nothing, never blocks and never fails, and any number of goroutines may
// run it at once on different destinations. Since it cannot fail, its arguments are the caller's
// duty:
//
//   - there is at least one source, and n counts elements; with n ≤ 0 nothing is touched, and
//     pointers may be nil;
//   - every pointer is aligned to the element's size, and n elements long;
//   - dst may be equal to one source (in place, at any position), but overlaps none in part.
//
// An example: fold what two peers sent into our own buffer, in rank order.
//
//	sum, err := cpu.Reducer(kernels.Float32, kernels.Sum)
//	if err != nil {
//		return err
//	}
//	sum(mine, []unsafe.Pointer{fromRank0, mine, fromRank2}, count)
//
// The kernels come in implementations: plain Go ("generic"), which is always there, and what the build and the processor
// add: "avx2" on amd64, unless the build has the tag purego. All of them give the same bits. The package's functions use the
// best one; [Choose] takes another.
package cpu

//go:generate go -C _asm run . -out ../zavx2_amd64.s -stubs ../zavx2_amd64.go -pkg cpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A Reduce folds n elements: dst[i] = srcs[0][i] ⊕ srcs[1][i] ⊕ … in that order. The package
// comment says what its arguments must be.
type Reduce = func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int)

// A PreMulReduce is a Sum fold in which the elements of srcs[scaled] are first multiplied by factor;
// scaled = [kernels.AllSources] means every source. The factor is rounded to the data type, and so is each
// product before it is added. With one source it is a scaled copy. Any other value of scaled is a
// programming error and panics.
type PreMulReduce = func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64)

// A PostDivide divides n elements in place, dropping the fraction (truncation toward zero). The
// divisor is at least 1, normally the number of ranks; less is a programming error and panics.
type PostDivide = func(dst unsafe.Pointer, n int, divisor int64)

// Reducer returns the fold for d and op. Avg gives the fold for Sum: its scaling is apart, done by
// [PreMul] for floating-point types and by [PostDiv] for integers. An unknown d or op is a
// *[kernels.ValueError].
func Reducer(d kernels.DType, op kernels.RedOp) (Reduce, error) {
	return implementations[0].Reducer(d, op)
}

// PreMul returns the pre-multiplying Sum fold for a floating-point type; an average of n ranks is
// this fold with factor 1/n. An integer type is a *[kernels.UnsupportedError], an unknown one a
// *[kernels.ValueError].
func PreMul(d kernels.DType) (PreMulReduce, error) { return implementations[0].PreMul(d) }

// PostDiv returns the division for an integer type. A floating-point type is a
// *[kernels.UnsupportedError], an unknown one a *[kernels.ValueError].
func PostDiv(d kernels.DType) (PostDivide, error) { return implementations[0].PostDiv(d) }
