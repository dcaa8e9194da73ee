package cpu

import "math"

// element is a type that the processor computes with.
type element interface {
	int8 | uint8 | int32 | uint32 | int64 | uint64 | float32 | float64
}

// quietNaN returns the canonical quiet NaN of a floating-point T (math.NaN has a payload). For an
// integer it is meaningless, and the comparison before its use is never true.
func quietNaN[T element]() T { return T(math.Float64frombits(0x7ff8000000000000)) }

// The loops below make one pass over slices that are as long as d. d may be any of the others. They
// are told apart by name rather than given an operator: a function argument or a method of a type
// parameter would be called for each element.

// canonical copies a, NaNs made canonical.
func canonical[T element](d, a []T) {
	nan := quietNaN[T]()
	a = a[:len(d)]
	for i := range d {
		x := a[i]
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

func sum2[T element](d, a, b []T) {
	nan := quietNaN[T]()
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		x := a[i] + b[i]
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

func sum3[T element](d, a, b, c []T) {
	nan := quietNaN[T]()
	a, b, c = a[:len(d)], b[:len(d)], c[:len(d)]
	for i := range d {
		x := a[i] + b[i] + c[i]
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

func sum4[T element](d, a, b, c, e []T) {
	nan := quietNaN[T]()
	a, b, c, e = a[:len(d)], b[:len(d)], c[:len(d)], e[:len(d)]
	for i := range d {
		x := a[i] + b[i] + c[i] + e[i]
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

func prod2[T element](d, a, b []T) {
	nan := quietNaN[T]()
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		x := a[i] * b[i]
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

// max2 leaves NaN and signed zeros to the language: max gives NaN if any operand is, and has
// -0 < +0.
func max2[T element](d, a, b []T) {
	nan := quietNaN[T]()
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		x := max(a[i], b[i])
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

// min2 is as max2.
func min2[T element](d, a, b []T) {
	nan := quietNaN[T]()
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		x := min(a[i], b[i])
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

// scale is d = a·f, NaNs made canonical.
func scale[T float32 | float64](d, a []T, f T) {
	nan := quietNaN[T]()
	a = a[:len(d)]
	for i := range d {
		x := a[i] * f
		if x != x {
			x = nan
		}
		d[i] = x
	}
}

// sumScaled is d = a + b·f. The conversion rounds the product: without it some processors would
// fuse it with the sum.
func sumScaled[T float32 | float64](d, a, b []T, f T) {
	nan := quietNaN[T]()
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		x := a[i] + T(b[i]*f)
		if x != x {
			x = nan
		}
		d[i] = x
	}
}
