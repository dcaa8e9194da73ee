package kernels

import "math"

// A Half is an IEEE 754 binary16 number in its bits: 1 sign, 5 exponent, 10 fraction. Go's
// operators on it are those of its bits, not of its value: convert to float32 first.
type Half uint16

// Canonical quiet NaNs, positive and with an empty payload.
const (
	nanHalf     = 0x7e00
	nanBFloat16 = 0x7fc0
	nanFloat32  = 0x7fc00000
)

// HalfFromFloat32 rounds f to nearest even. Magnitudes from 65520 on become infinite, denormals
// are rounded as such, and every NaN becomes the canonical quiet NaN 0x7e00.
func HalfFromFloat32(f float32) Half {
	const (
		infinity = 0x7f800000
		tooBig   = (15 + 1 + 127) << 23 // 2^16: above the largest Half whatever the rounding
		smallest = (127 - 14) << 23     // 2^-14, the smallest normal Half
		rebias   = (127 - 15) << 23     // between the two exponents
		aligner  = 0.5                  // the last bit of its float32 is worth 2^-24, as a denormal Half's
		bits     = (127 - 1) << 23      // aligner's own
	)
	b := math.Float32bits(f)
	sign := Half(b >> 16 & 0x8000)
	b &= 1<<31 - 1
	switch {
	case b > infinity:
		return nanHalf
	case b >= tooBig:
		b = 0x7c00
	case b < smallest:
		// The addition shifts the fraction into place and rounds it, both done by the processor.
		b = math.Float32bits(math.Float32frombits(b)+aligner) - bits
	default:
		b = (b - rebias + 0xfff + b>>13&1) >> 13
	}
	return sign | Half(b)
}

// HalfFromFloat64 rounds f to nearest even in one rounding; through float32 it would be two. The
// limits and NaN are as in [HalfFromFloat32].
func HalfFromFloat64(f float64) Half { return HalfFromFloat32(sticky(f)) }

// Float32 returns the value of h, which every Half has exactly in float32; every NaN gives the
// canonical quiet NaN 0x7fc00000.
func (h Half) Float32() float32 {
	const (
		rebias   = (127 - 15) << 23
		exponent = 0x7c00 << 13
		smallest = (127 - 14) << 23
		infinity = 0x7f800000
	)
	sign := uint32(h&0x8000) << 16
	b := uint32(h&0x7fff) << 13
	switch b & exponent {
	case exponent:
		if b != exponent {
			return math.Float32frombits(nanFloat32)
		}
		b = infinity
	case 0:
		// A fraction without its leading bit: give it one of weight 2^-14, and take that away again.
		b = math.Float32bits(math.Float32frombits(b|smallest) - math.Float32frombits(smallest))
	default:
		b += rebias
	}
	return math.Float32frombits(sign | b)
}

// sticky returns f truncated to float32 with its last bit set when that lost anything (rounding to
// odd). A float32 keeps more than two bits below those of the 16-bit formats, so that rounding the
// result to nearest gives what rounding f itself would have given.
func sticky(f float64) float32 {
	g := float32(f)
	if float64(g) == f || g != g {
		return g
	}
	b := math.Float32bits(g)
	if math.Abs(float64(g)) > math.Abs(f) {
		b-- // the conversion rounded away from zero; also from infinity to the largest float32
	}
	return math.Float32frombits(b | 1)
}
