package reference

import (
	"fmt"
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// float is a reduction of floating-point elements in work.
type float struct {
	hi, lo    float64 // the finite operands' sum or product, hi + lo
	size      float64 // of a sum Σ|v|, of a product ∏max(1,|v|)
	shrink    float64 // of a product, ∏ of the |v| < 1 that aren't 0
	best      uint64  // of a minimum or maximum
	bestValue float64
	set       bool // best is one
	nan       bool
	inf       [2]bool // positive, negative
	zero      bool    // some operand is 0
	nonzero   bool
	positive  bool // some operand has no minus sign
	odd       bool // the number of minus signs
	faded     bool // some scaled operand was rounded in the range of denormals
}

// rules are what float's folds and judgements need, worked out once for a message.
type rules struct {
	op      kernels.RedOp
	f       format
	scaled  bool // operands are multiplied by scale: of an average 1/n, rounded to the type, else the rank's factor
	scale   float64
	whole   float64 // sums of whole numbers, scaled as an average's are, are exact up to it; 0: none
	rel     float64 // error bound, relative to size
	abs     float64 // error bound, to be scaled by size when a product's
	largest float64
}

func newRules(in Input) *rules {
	f := formatOf(in.DType)
	r := &rules{op: in.RedOp, f: f, largest: f.largest(), whole: float64(f.whole())}
	steps := float64(in.Ranks - 1)
	switch in.RedOp {
	case kernels.Avg:
		r.scaled, r.scale = true, f.decode(f.encode(1/float64(in.Ranks)))
		r.whole *= r.scale
		if in.Ranks&(in.Ranks-1) != 0 {
			r.whole = 0
		}
		steps++
		r.abs = steps * f.tiny
	case kernels.Prod:
		r.abs = steps * f.tiny // half of it for the library's roundings, half for ours in float64
	}
	if in.Factors {
		r.scaled = true
		steps++
		r.abs = steps * f.tiny
	}
	// The last term covers the rounding of these very bounds.
	r.rel = math.Expm1(steps*(math.Log1p(f.unit())+math.Log1p(0x1p-24))) * (1 + 0x1p-20)
	if in.DType == kernels.Float64 {
		r.rel = math.Expm1(steps*math.Log1p(f.unit())) * (1 + 0x1p-20)
	}
	return r
}

// fold adds an operand.
func (r *rules) fold(s *float, bits uint64) {
	v := r.f.decode(bits)
	if v != v {
		s.nan = true
		return
	}
	minus := math.Signbit(v)
	if r.op == kernels.Min || r.op == kernels.Max {
		// In place of a comparison that doesn't tell -0 from +0.
		less := v < s.bestValue || v == s.bestValue && minus && !math.Signbit(s.bestValue)
		if !s.set || less == (r.op == kernels.Min) {
			s.best, s.bestValue, s.set = bits, v, true
		}
		return
	}
	s.positive = s.positive || !minus
	s.odd = s.odd != minus
	if r.op == kernels.Prod && s.size == 0 {
		s.hi, s.size, s.shrink = 1, 1, 1
	}
	if math.IsInf(v, 0) {
		s.inf[btoi(minus)] = true
		return
	}
	if r.op == kernels.Prod {
		s.multiply(v)
		return
	}
	if r.scaled {
		scaled := r.f.decode(r.f.encode(v * r.scale))
		s.faded = s.faded || v != 0 && math.Abs(scaled) < r.f.smallest
		v = scaled
	}
	s.zero = s.zero || v == 0
	s.nonzero = s.nonzero || v != 0
	s.size += math.Abs(v)
	// Knuth's sum of two numbers and its rounding error, exactly.
	t := s.hi + v
	z := t - s.hi
	s.lo += (s.hi - (t - z)) + (v - z)
	s.hi = t
}

// multiply multiplies by a finite factor. Where nothing underflows the error is exact as well.
func (s *float) multiply(v float64) {
	if v == 0 {
		s.zero = true
		return
	}
	a := math.Abs(v)
	s.size *= max(1, a)
	s.shrink *= min(1, a)
	p := s.hi * v
	s.lo = math.FMA(s.hi, v, -p) + s.lo*v
	s.hi = p
}

// expect says what the result of a finished fold may be. exact says that the operands came from
// Input.exact.
func (r *rules) expect(s *float, exact bool) expectation {
	f := r.f
	switch {
	case s.nan:
		return only(f.nan())
	case r.op == kernels.Min || r.op == kernels.Max:
		return only(s.best)
	case r.op == kernels.Prod:
		return r.expectProduct(s, exact)
	case s.inf[0] && s.inf[1]:
		return only(f.nan())
	case s.inf[0]:
		return only(f.infinity())
	case s.inf[1]:
		return only(f.infinity() | f.negative())
	case !s.nonzero && !s.faded && s.positive:
		return only(0)
	case !s.nonzero && !s.faded:
		return only(f.negative())
	case exact && s.size <= r.whole:
		return only(f.encode(s.hi))
	}
	return expectation{hi: s.hi, lo: s.lo, bound: r.rel*s.size + r.abs, orInf: s.size >= r.largest, orAny: f.most != 0 && s.size >= r.largest, notMinusZero: !s.faded}
}

func (r *rules) expectProduct(s *float, exact bool) expectation {
	f := r.f
	var sign uint64
	if s.odd {
		sign = f.negative()
	}
	infinite := s.inf[0] || s.inf[1]
	e := expectation{exact: true, signed: true, minus: s.odd}
	// In some orders a partial product underflows to 0 and meets an infinity later, or overflows and
	// meets a 0.
	e.orNaN = infinite && s.shrink < f.tiny || s.zero && s.size >= r.largest
	switch {
	case infinite && s.zero:
		return only(f.nan())
	case infinite:
		e.bits = sign | f.infinity()
	case s.zero:
		e.bits = sign
	case exact && s.size < r.largest && s.shrink >= f.smallest:
		return only(f.encode(s.hi))
	default:
		e.exact = false
		e.orAny = f.most != 0 && s.size >= r.largest
		e.hi, e.lo, e.bound, e.orInf = s.hi, s.lo, r.rel*math.Abs(s.hi)+r.abs*s.size, s.size >= r.largest
	}
	return e
}

// expectation is what a result may be: these bits, or a finite number not further than bound from
// hi + lo.
type expectation struct {
	exact         bool
	bits          uint64
	hi, lo, bound float64
	orNaN, orInf  bool // some order of the operands gives that
	orAny         bool // some order saturates on its way: any number
	signed, minus bool // whether the sign is known, and which
	notMinusZero  bool
}

func only(bits uint64) expectation { return expectation{exact: true, bits: bits} }

// allows reports whether the result may have these bits.
func (e expectation) allows(f format, got uint64) bool {
	v := f.decode(got)
	switch {
	case e.exact && got == e.bits, e.orNaN && got == f.nan():
		return true
	case e.exact, e.signed && got&f.negative() != 0 != e.minus, e.notMinusZero && got == f.negative():
		return false
	}
	return e.orAny && v == v || e.orInf && math.IsInf(v, 0) || math.Abs((v-e.hi)-e.lo) <= e.bound
}

func (e expectation) text(f format) string {
	switch {
	case e.exact:
		return fmt.Sprintf("%g (%#x)", f.decode(e.bits), e.bits)
	case e.notMinusZero:
		return fmt.Sprintf("%.17g ± %.3g, not -0", e.hi+e.lo, e.bound)
	}
	return fmt.Sprintf("%.17g ± %.3g", e.hi+e.lo, e.bound)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
