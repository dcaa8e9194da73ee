package reference

import (
	"encoding/binary"
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// format is a binary floating-point format, taken from its definition and not from package kernels:
// what checks a library shares none of its arithmetic.
type format struct {
	frac, exp int     // bits of fraction, without the leading one, and exponent
	most      uint64  // bits of the largest number, where there is no infinity or nothing becomes one; else 0
	tiny      float64 // the smallest number above 0
	smallest  float64 // the smallest normal number
}

func newFormat(frac, exp int) format {
	f := format{frac: frac, exp: exp}
	f.tiny, f.smallest = math.Ldexp(1, 1-f.bias()-frac), math.Ldexp(1, 1-f.bias())
	return f
}

var half, bfloat16, single, double = newFormat(10, 5), newFormat(7, 8), newFormat(23, 8), newFormat(52, 11)

// The 8-bit formats saturate. The first has numbers where others have infinity and most NaNs.
var e4m3, e5m2 = newFormat(3, 4).saturated(0x7e), newFormat(2, 5).saturated(0x7b)

func (f format) saturated(most uint64) format {
	f.most = most
	return f
}

// formatOf returns the format of a floating-point type.
func formatOf(d kernels.DType) format {
	switch d {
	case kernels.Float16:
		return half
	case kernels.Bfloat16:
		return bfloat16
	case kernels.Float32:
		return single
	case kernels.Float8e4m3:
		return e4m3
	case kernels.Float8e5m2:
		return e5m2
	default:
		return double
	}
}

func (f format) bias() int        { return 1<<(f.exp-1) - 1 }
func (f format) infinity() uint64 { return (1<<f.exp - 1) << f.frac }
func (f format) negative() uint64 { return 1 << (f.frac + f.exp) }
func (f format) unit() float64    { return math.Ldexp(1, -f.frac-1) } // half an ulp of 1: what one rounding may lose, relatively
func (f format) whole() uint64    { return 1 << (f.frac + 1) }        // all whole numbers up to it are in the format

// nan is the canonical one: positive, quiet, no payload; of 8 bits all ones.
func (f format) nan() uint64 {
	if f.most != 0 {
		return f.negative() - 1
	}
	return f.infinity() | 1<<(f.frac-1)
}

func (f format) largest() float64 {
	if f.most != 0 {
		return f.decode(f.most)
	}
	return math.Ldexp(2-math.Ldexp(1, -f.frac), f.bias())
}

func (f format) isNaN(b uint64) bool {
	b &^= f.negative()
	return b > max(f.infinity(), f.most)
}

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
	case f.isNaN(b):
		return math.NaN()
	case b == f.infinity() && f.most < b:
		return math.Float64frombits(sign | 0x7ff<<52)
	case b < 1<<f.frac:
		return math.Copysign(float64(b)*f.tiny, math.Float64frombits(sign))
	}
	return math.Float64frombits(sign | (b<<(52-f.frac) + uint64(1023-f.bias())<<52))
}

// encode returns the bits of the number nearest to v, of two equally near ones the even one. A NaN
// gives the canonical one.
func (f format) encode(v float64) uint64 {
	if a := math.Abs(v); a < f.smallest || a != a || f.frac == 52 {
		return f.encodeRest(v)
	}
	b := math.Float64bits(v)
	sign := b >> 63 << (f.frac + f.exp)
	drop := 52 - f.frac
	b &^= 1 << 63
	b += 1<<(drop-1) - 1 + b>>drop&1
	limit := f.infinity()
	if f.most != 0 {
		limit = f.most
	}
	return sign | min(b>>drop-uint64(1023-f.bias())<<f.frac, limit)
}

func (f format) encodeRest(v float64) uint64 {
	switch {
	case v != v:
		return f.nan()
	case f.frac == 52:
		return math.Float64bits(v)
	}
	// Exact: a power of two. What rounds up to the smallest normal number has its bits.
	return math.Float64bits(v)>>63<<(f.frac+f.exp) | uint64(math.RoundToEven(math.Abs(v)/f.tiny))
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
