package reference

import (
	"encoding/binary"
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// format is a binary floating-point format, taken from its definition and not from package kernels:
// what checks a library shares none of its arithmetic.
type format struct {
	frac int // fraction bits, without the leading one
	exp  int // exponent bits
}

// formatOf returns the format of a floating-point type.
func formatOf(d kernels.DType) format {
	switch d {
	case kernels.Float16:
		return format{10, 5}
	case kernels.Bfloat16:
		return format{7, 8}
	case kernels.Float32:
		return format{23, 8}
	default:
		return format{52, 11}
	}
}

func (f format) bias() int           { return 1<<(f.exp-1) - 1 }
func (f format) infinity() uint64    { return (1<<f.exp - 1) << f.frac }
func (f format) nan() uint64         { return f.infinity() | 1<<(f.frac-1) } // canonical: positive, quiet, no payload
func (f format) negative() uint64    { return 1 << (f.frac + f.exp) }
func (f format) unit() float64       { return math.Ldexp(1, -f.frac-1) } // half an ulp of 1: what one rounding may lose, relatively
func (f format) tiny() float64       { return math.Ldexp(1, 1-f.bias()-f.frac) }
func (f format) largest() float64    { return math.Ldexp(2-math.Ldexp(1, -f.frac), f.bias()) }
func (f format) smallest() float64   { return math.Ldexp(1, 1-f.bias()) } // normal
func (f format) whole() uint64       { return 1 << (f.frac + 1) }         // all whole numbers up to it are in the format
func (f format) isNaN(b uint64) bool { return b&^f.negative() > f.infinity() }

// decode returns the value of the number with these bits, exactly.
func (f format) decode(b uint64) float64 {
	switch f.frac { // the processor's own
	case 52:
		return math.Float64frombits(b)
	case 23:
		return float64(math.Float32frombits(uint32(b)))
	}
	sign := (b & f.negative()) << (63 - f.frac - f.exp)
	b &^= f.negative()
	switch {
	case b > f.infinity():
		return math.NaN()
	case b == f.infinity():
		return math.Float64frombits(sign | 0x7ff<<52)
	case b < 1<<f.frac:
		return math.Copysign(float64(b)*f.tiny(), math.Float64frombits(sign))
	}
	return math.Float64frombits(sign | (b<<(52-f.frac) + uint64(1023-f.bias())<<52))
}

// encode returns the bits of the number nearest to v, of two equally near ones the even one. A NaN
// gives the canonical one.
func (f format) encode(v float64) uint64 {
	b := math.Float64bits(v)
	sign := b >> 63 << (f.frac + f.exp)
	b &^= 1 << 63
	switch {
	case v != v:
		return f.nan()
	case f.frac == 52:
		return sign | b
	case math.Abs(v) < f.smallest():
		// Exact: a power of two. What rounds up to the smallest normal number has its bits.
		return sign | uint64(math.RoundToEven(math.Abs(v)/f.tiny()))
	}
	drop := 52 - f.frac
	b += 1<<(drop-1) - 1 + b>>drop&1
	b >>= drop
	b -= uint64(1023-f.bias()) << f.frac
	return sign | min(b, f.infinity())
}

// element returns the bits of element i of b.
func element(d kernels.DType, b []byte, i int) uint64 {
	switch d.Size() {
	case 1:
		return uint64(b[i])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b[2*i:]))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return binary.NativeEndian.Uint64(b[8*i:])
}

// put writes elements from their bits.
func put(d kernels.DType, b []byte, bits []uint64) {
	switch d.Size() {
	case 1:
		for i, x := range bits {
			b[i] = byte(x)
		}
	case 2:
		for i, x := range bits {
			binary.NativeEndian.PutUint16(b[2*i:], uint16(x))
		}
	case 4:
		for i, x := range bits {
			binary.NativeEndian.PutUint32(b[4*i:], uint32(x))
		}
	default:
		for i, x := range bits {
			binary.NativeEndian.PutUint64(b[8*i:], x)
		}
	}
}
