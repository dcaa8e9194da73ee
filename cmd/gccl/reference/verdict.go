package reference

import (
	"fmt"
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// Verdict is what a comparison found: how many elements were wrong, and the first of them in words.
type Verdict struct {
	Wrong int64
	First string
}

// Add joins what another comparison found.
func (v *Verdict) Add(more Verdict) {
	if v.Wrong == 0 {
		v.First = more.First
	}
	v.Wrong += more.Wrong
}

// fail counts a wrong element and keeps what tell says of the first.
func (v *Verdict) fail(tell func() string) {
	if v.Wrong == 0 {
		v.First = tell()
	}
	v.Wrong++
}

// Copied compares b with rank's elements from first on, bit by bit.
func (in Input) Copied(b []byte, rank, first int) (v Verdict) {
	var want [block]uint64
	size := in.DType.Size()
	for at := 0; at < len(b)/size; at += block {
		part := want[:min(block, len(b)/size-at)]
		in.fill(part, rank, first+at)
		for k, w := range part {
			if got := element(in.DType, b, at+k); got != w {
				v.fail(func() string {
					return fmt.Sprintf("element %d is %s, want rank %d's %s", first+at+k, in.text(got), rank, in.text(w))
				})
			}
		}
	}
	return v
}

// Reduced compares b with the reduction of all ranks' elements from first on. One rank's reduction
// is a copy, but for a Factor's.
//
// Integers, minima and maxima have one right value each. Of a floating-point sum or product of n
// elements the order is the library's choice, so the right values are those within an error that any
// order keeps: with u = half an ulp of 1, n-1 roundings of Σ|vᵢ| for a sum,
//
//	|got − Σvᵢ| ≤ ((1+u)ⁿ⁻¹·(1+2⁻²⁴)ⁿ⁻¹ − 1) · Σ|vᵢ|
//
// and the same factor of |∏vᵢ| for a product. The second factor is for partial sums in float32
// (and is nothing beside the first for wider types). A product in the range of denormals may besides
// lose half the smallest one, η/2, at each step, and later factors scale that up. An average sums the
// inputs times 1/n, each rounded to the type or not: one more rounding, and n·η. So does a sum of inputs times Factors. The reference
// itself is computed in twice float64's precision, so its error is none beside these.
//
// Half of the ordinary floating-point inputs are such that no order rounds: there the right value is
// one. A result that is NaN must be the canonical NaN, and the sign of zero must be right.
func (in Input) Reduced(b []byte, first int) (v Verdict) {
	if in.Ranks == 1 && !in.Factors {
		return in.Copied(b, 0, first)
	}
	count := len(b) / in.DType.Size()
	var bits, wrapped [block]uint64
	var sums [block]float
	r := newRules(in)
	for at := 0; at < count; at += block {
		n := min(block, count-at)
		clear(sums[:n])
		for q := range in.Ranks {
			if in.Factors {
				r.scale = Factor(q)
			}
			in.fill(bits[:n], q, first+at)
			switch {
			case in.DType.IsFloat():
				for k, x := range bits[:n] {
					r.fold(&sums[k], x)
				}
			case q == 0:
				copy(wrapped[:n], bits[:n])
			default:
				for k, x := range bits[:n] {
					wrapped[k] = in.foldInteger(wrapped[k], x)
				}
			}
		}
		for k := range n {
			got := element(in.DType, b, at+k)
			if in.DType.IsFloat() {
				if e := r.expect(&sums[k], in.exactAt(first+at+k)); !e.allows(r.f, got) {
					v.fail(func() string { return in.tell(first+at+k, got, e.text(r.f)) })
				}
			} else if want := in.finishInteger(wrapped[k]); got != want {
				v.fail(func() string { return in.tell(first+at+k, got, in.text(want)) })
			}
		}
	}
	return v
}

// signed returns the value of the bits of a signed integer type.
func (in Input) signed(x uint64) int64 {
	unused := 64 - 8*in.DType.Size()
	return int64(x<<unused) >> unused
}

func (in Input) isSigned() bool {
	return in.DType == kernels.Int8 || in.DType == kernels.Int32 || in.DType == kernels.Int64
}

// foldInteger returns x ⊕ y, wrapped.
func (in Input) foldInteger(x, y uint64) uint64 {
	less := x < y
	if in.isSigned() {
		less = in.signed(x) < in.signed(y)
	}
	switch in.RedOp {
	case kernels.Prod:
		x *= y
	case kernels.Min:
		if !less {
			x = y
		}
	case kernels.Max:
		if less {
			x = y
		}
	default:
		x += y
	}
	return x & (math.MaxUint64 >> (64 - 8*in.DType.Size()))
}

// finishInteger divides the sum of an average, dropping the fraction.
func (in Input) finishInteger(x uint64) uint64 {
	switch {
	case in.RedOp != kernels.Avg:
		return x
	case in.isSigned():
		return uint64(in.signed(x)/int64(in.Ranks)) & (math.MaxUint64 >> (64 - 8*in.DType.Size()))
	}
	return x / uint64(in.Ranks)
}

// tell says what is wrong with a reduced element.
func (in Input) tell(i int, got uint64, want string) string {
	return fmt.Sprintf("element %d is %s, want %s (%s of %d ranks)", i, in.text(got), want, in.RedOp, in.Ranks)
}

// text shows an element's value and bits.
func (in Input) text(x uint64) string {
	switch {
	case in.DType.IsFloat():
		f := formatOf(in.DType)
		return fmt.Sprintf("%g (%#0*x)", f.decode(x), 2*in.DType.Size()+2, x)
	case in.isSigned():
		return fmt.Sprint(in.signed(x))
	}
	return fmt.Sprint(x)
}
