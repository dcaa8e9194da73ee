package kernels

import "math"

// A BFloat16 is the upper half of a float32 in its bits: 1 sign, 8 exponent, 7 fraction. Go's
// operators on it are those of its bits, not of its value: convert to float32 first.
type BFloat16 uint16

// BFloat16FromFloat32 rounds f to nearest even. Magnitudes that round to 2^128 become infinite,
// denormals are rounded as such, and every NaN becomes the canonical quiet NaN 0x7fc0.
func BFloat16FromFloat32(f float32) BFloat16 {
	if f != f {
		return nanBFloat16
	}
	b := math.Float32bits(f)
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// BFloat16FromFloat64 rounds f to nearest even in one rounding; through float32 it would be two.
// The limits and NaN are as in [BFloat16FromFloat32].
func BFloat16FromFloat64(f float64) BFloat16 { return BFloat16FromFloat32(sticky(f)) }

// Float32 returns the value of h, which every BFloat16 has exactly in float32; every NaN gives the
// canonical quiet NaN 0x7fc00000.
func (h BFloat16) Float32() float32 {
	f := math.Float32frombits(uint32(h) << 16)
	if f != f {
		return math.Float32frombits(nanFloat32)
	}
	return f
}
