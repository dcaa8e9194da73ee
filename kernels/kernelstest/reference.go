package kernelstest

import (
	"math"
	"math/big"

	"github.com/gccl-project/gccl/kernels"
)

// Reduce returns what the fold of d and op must give for srcs, buffers of one length in the machine's
// byte order. Avg is taken as Sum, as kernels do. It panics on values that are not valid.
func Reduce(d kernels.DType, op kernels.RedOp, srcs [][]byte) []byte {
	if op == kernels.Avg {
		op = kernels.Sum
	}
	dst := make([]byte, len(srcs[0]))
	for i := range len(dst) / d.Size() {
		if !d.IsFloat() {
			x := bits(d, srcs[0], i)
			for _, src := range srcs[1:] {
				x = combineInts(d, op, x, bits(d, src, i))
			}
			setBits(d, dst, i, x)
			continue
		}
		v := Decode(d, bits(d, srcs[0], i))
		for _, src := range srcs[1:] {
			v = combineFloats(d, op, v, Decode(d, bits(d, src, i)))
		}
		setBits(d, dst, i, Encode(d, v))
	}
	return dst
}

// PreMul returns what the pre-multiplying Sum fold must give. It panics when d is no floating-point
// type.
func PreMul(d kernels.DType, srcs [][]byte, scaled int, factor float64) []byte {
	factor = Decode(d, Encode(d, factor))
	dst := make([]byte, len(srcs[0]))
	for i := range len(dst) / d.Size() {
		var v float64
		for k, src := range srcs {
			x := Decode(d, bits(d, src, i))
			if k == scaled || scaled == kernels.AllSources {
				// Two numbers of 24 bits or fewer have an exact product in 53.
				if d == kernels.Float64 {
					x = exactly(kernels.Prod, x, factor)
				} else {
					x = Decode(d, Encode(d, x*factor))
				}
			}
			if k == 0 {
				v = x
			} else {
				v = combineFloats(d, kernels.Sum, v, x)
			}
		}
		setBits(d, dst, i, Encode(d, v))
	}
	return dst
}

// PostDiv returns what the division must give. It panics when d is a floating-point type.
func PostDiv(d kernels.DType, src []byte, divisor int64) []byte {
	dst := make([]byte, len(src))
	by := big.NewInt(divisor)
	for i := range len(dst) / d.Size() {
		x := new(big.Int)
		if isSigned(d) {
			x.SetInt64(signed(d, bits(d, src, i))).Quo(x, by)
			setBits(d, dst, i, uint64(x.Int64()))
		} else {
			x.SetUint64(bits(d, src, i)).Quo(x, by)
			setBits(d, dst, i, x.Uint64())
		}
	}
	return dst
}

func isSigned(d kernels.DType) bool {
	switch d {
	case kernels.Int8, kernels.Int32, kernels.Int64:
		return true
	case kernels.Uint8, kernels.Uint32, kernels.Uint64:
		return false
	}
	panic("kernelstest: " + d.String() + " is no integer type")
}

func combineInts(d kernels.DType, op kernels.RedOp, a, b uint64) uint64 {
	less := a < b
	if isSigned(d) {
		less = signed(d, a) < signed(d, b)
	}
	switch {
	case op == kernels.Sum:
		return a + b
	case op == kernels.Prod:
		return a * b
	case op == kernels.Min && less, op == kernels.Max && !less:
		return a
	case op == kernels.Min, op == kernels.Max:
		return b
	}
	panic("kernelstest: no reference for " + op.String())
}

// combineFloats returns a ⊕ b rounded to the type that folds of d compute in.
func combineFloats(d kernels.DType, op kernels.RedOp, a, b float64) float64 {
	switch op {
	case kernels.Min, kernels.Max:
		if math.IsNaN(a) || math.IsNaN(b) {
			return math.NaN()
		}
		less := a < b || a == b && math.Signbit(a)
		if less == (op == kernels.Min) {
			return a
		}
		return b
	case kernels.Sum, kernels.Prod:
		if d == kernels.Float64 {
			return exactly(op, a, b)
		}
		// The product of two float32 is exact in float64. Their sum may not be, but 53 bits are more
		// than twice 24 and two, and then rounding twice gives what rounding once does.
		if op == kernels.Sum {
			return float64(float32(a + b))
		}
		return float64(float32(a * b))
	}
	panic("kernelstest: no reference for " + op.String())
}

// exactly returns a ⊕ b, a sum or a product, computed without loss and rounded once to float64.
func exactly(op kernels.RedOp, a, b float64) float64 {
	for _, v := range []float64{a, b} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			// Nothing is rounded here, and big.Float has no NaN.
			if op == kernels.Sum {
				return a + b
			}
			return a * b
		}
	}
	x, y := new(big.Float).SetFloat64(a), new(big.Float).SetFloat64(b)
	z := new(big.Float).SetPrec(2200) // from the smallest to the largest float64, and one carry
	if op == kernels.Sum {
		z.Add(x, y)
	} else {
		z.Mul(x, y)
	}
	v, _ := z.Float64()
	return v
}
