package kernels

import "math"

// A Float8E4M3 is an 8-bit floating-point number in its bits: 1 sign, 4 exponent, 3 fraction, bias 7. It has no infinity, and one
// NaN of each sign, 0x7f and 0xff; the largest number is 448. Go's operators on it are those of its bits, not of its value:
// convert to float32 first. A type made from it is a plain uint8 to DTypeOf.
type Float8E4M3 uint8

// A Float8E5M2 is an 8-bit floating-point number in its bits: 1 sign, 5 exponent, 2 fraction, bias 15, otherwise as IEEE 754 has
// them; the largest number is 57344. For Go it is what Float8E4M3 is.
type Float8E5M2 uint8

const nanFloat8 = 0x7f // of both, as processors that convert to them have it

// Float8E4M3FromFloat32 rounds f to nearest even. Magnitudes above 448, infinity too, become 448, and every NaN becomes 0x7f.
func Float8E4M3FromFloat32(f float32) Float8E4M3 { return Float8E4M3(float8(f, 3, 7, 0x7e)) }

// Float8E4M3FromFloat64 is as Float8E4M3FromFloat32, in one rounding.
func Float8E4M3FromFloat64(f float64) Float8E4M3 { return Float8E4M3FromFloat32(sticky(f)) }

// Float32 returns the value; both NaNs give the canonical quiet NaN 0x7fc00000.
func (h Float8E4M3) Float32() float32 {
	if h&0x7f == 0x7f {
		return math.Float32frombits(nanFloat32)
	}
	return Half(uint16(h&0x80)<<8|uint16(h&0x7f)<<7).Float32() * 256 // the same bits under another bias
}

// Float8E5M2FromFloat32 rounds f to nearest even. Magnitudes above 57344, infinity too, become 57344, and every NaN becomes 0x7f.
func Float8E5M2FromFloat32(f float32) Float8E5M2 { return Float8E5M2(float8(f, 2, 15, 0x7b)) }

// Float8E5M2FromFloat64 is as Float8E5M2FromFloat32, in one rounding.
func Float8E5M2FromFloat64(f float64) Float8E5M2 { return Float8E5M2FromFloat32(sticky(f)) }

// Float32 returns the value; every NaN gives the canonical quiet NaN 0x7fc00000.
func (h Float8E5M2) Float32() float32 { return Half(uint16(h) << 8).Float32() }

// float8 rounds to a format of so many bits of fraction, whose largest number has the bits most.
func float8(f float32, fraction, bias, most uint32) uint8 {
	const infinity = 0x7f800000
	b := math.Float32bits(f)
	sign := uint8(b >> 24 & 0x80)
	b &= 1<<31 - 1
	drop := 23 - fraction
	switch smallest := (128 - bias) << 23; {
	case b > infinity:
		return nanFloat8
	case b < smallest:
		// The addition shifts the fraction into place and rounds it: the last bit of the other operand is worth a denormal's.
		aligner := (128 - bias + drop) << 23
		b = math.Float32bits(math.Float32frombits(b)+math.Float32frombits(aligner)) - aligner
	default:
		b = (b - (127-bias)<<23 + 1<<(drop-1) - 1 + b>>drop&1) >> drop
	}
	return sign | uint8(min(b, most))
}
