package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// form is one of the short formats, as numbers of its bits.
type form struct {
	dtype  kernels.DType
	nan    uint16
	from32 func(float32) uint16
	from64 func(float64) uint16
	to32   func(uint16) float32
}

var forms = []form{
	{
		kernels.Float16, 0x7e00,
		func(f float32) uint16 { return uint16(kernels.HalfFromFloat32(f)) },
		func(f float64) uint16 { return uint16(kernels.HalfFromFloat64(f)) },
		func(x uint16) float32 { return kernels.Half(x).Float32() },
	},
	{
		kernels.Bfloat16, 0x7fc0,
		func(f float32) uint16 { return uint16(kernels.BFloat16FromFloat32(f)) },
		func(f float64) uint16 { return uint16(kernels.BFloat16FromFloat64(f)) },
		func(x uint16) float32 { return kernels.BFloat16(x).Float32() },
	},
	{
		kernels.Float8e4m3, 0x7f,
		func(f float32) uint16 { return uint16(kernels.Float8E4M3FromFloat32(f)) },
		func(f float64) uint16 { return uint16(kernels.Float8E4M3FromFloat64(f)) },
		func(x uint16) float32 { return kernels.Float8E4M3(x).Float32() },
	},
	{
		kernels.Float8e5m2, 0x7f,
		func(f float32) uint16 { return uint16(kernels.Float8E5M2FromFloat32(f)) },
		func(f float64) uint16 { return uint16(kernels.Float8E5M2FromFloat64(f)) },
		func(x uint16) float32 { return kernels.Float8E5M2(x).Float32() },
	},
}

// numbers is how many there are of the format.
func (h form) numbers() int { return 1 << (8 * h.dtype.Size()) }

func eachForm(t *testing.T, f func(*testing.T, form)) {
	for _, h := range forms {
		t.Run(h.dtype.String(), func(t *testing.T) { f(t, h) })
	}
}

func TestHalfToFloat(t *testing.T) {
	eachForm(t, func(t *testing.T, h form) {
		for x := range h.numbers() {
			got := h.to32(uint16(x))
			want := kernelstest.Decode(h.dtype, uint64(x))
			if math.IsNaN(want) {
				if math.Float32bits(got) != 0x7fc00000 {
					t.Fatalf("%#x gives %#x, want the canonical NaN", x, math.Float32bits(got))
				}
				continue
			}
			if math.Float64bits(float64(got)) != math.Float64bits(want) {
				t.Fatalf("%#x gives %v, want %v", x, got, want)
			}
		}
	})
}

func TestHalfFromFloatInvertsToFloat(t *testing.T) {
	eachForm(t, func(t *testing.T, h form) {
		for x := range h.numbers() {
			f := h.to32(uint16(x))
			want := uint16(x)
			switch {
			case f != f:
				want = h.nan
			case h.dtype.Size() == 1 && math.IsInf(float64(f), 0):
				want-- // the largest number
			}
			if got := h.from32(f); got != want {
				t.Fatalf("%#x becomes %v and then %#x, want %#x", x, f, got, want)
			}
			if got := h.from64(float64(f)); got != want {
				t.Fatalf("%#x becomes %v and through float64 %#x, want %#x", x, f, got, want)
			}
		}
	})
}

// What lies halfway between two neighbours, and just beside: all that rounding can get wrong.
func TestHalfRoundsToNearestEven(t *testing.T) {
	eachForm(t, func(t *testing.T, h form) {
		for x := range uint64(h.numbers() / 2) {
			low, high := kernelstest.Decode(h.dtype, x), kernelstest.Decode(h.dtype, x+1)
			if math.IsInf(high, 0) || math.IsNaN(high) {
				high = low + (low - kernelstest.Decode(h.dtype, x-1)) // the number that would be next
			}
			if math.IsInf(low, 0) || math.IsNaN(low) {
				break
			}
			middle := (low + high) / 2
			for _, sign := range []float64{1, -1} {
				for _, f := range []float64{low, middle, math.Nextafter(middle, 0), math.Nextafter(middle, math.Inf(1))} {
					h.check64(t, sign*f)
				}
				m := float32(sign * middle)
				for _, f := range []float32{m, math.Nextafter32(m, 0), math.Nextafter32(m, m*2)} {
					h.check32(t, f)
				}
			}
		}
	})
}

func TestHalfFromAnyFloat(t *testing.T) {
	eachForm(t, func(t *testing.T, h form) {
		stride, rounds := uint64(1009), 1<<20 // a prime, so that all patterns of low bits occur
		if testing.Short() {
			stride, rounds = 10007, 1<<16
		}
		for b := uint64(0); b < 1<<32; b += stride {
			h.check32(t, math.Float32frombits(uint32(b)))
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range rounds {
			h.check64(t, math.Float64frombits(rng.Uint64()))
			// Most float64 are far out of the format's range; these are not.
			h.check64(t, math.Ldexp(rng.Float64()*2-1, rng.IntN(60)-40))
			h.check64(t, math.Ldexp(rng.Float64()*2-1, rng.IntN(280)-145))
		}
		for _, f := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(),
			math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, math.MaxFloat32, math.SmallestNonzeroFloat32,
			65504, 65519.999, 65520, 65536, 0x1p-24, 0x1p-25, 0x1.000002p-25} {
			h.check64(t, f)
			h.check32(t, float32(f))
		}
	})
}

func (h form) check32(t *testing.T, f float32) {
	t.Helper()
	if got, want := uint64(h.from32(f)), kernelstest.Encode(h.dtype, float64(f)); got != want {
		t.Fatalf("float32 %v (%#x) gives %#x, want %#x", f, math.Float32bits(f), got, want)
	}
}

func (h form) check64(t *testing.T, f float64) {
	t.Helper()
	if got, want := uint64(h.from64(f)), kernelstest.Encode(h.dtype, f); got != want {
		t.Fatalf("float64 %v (%#x) gives %#x, want %#x", f, math.Float64bits(f), got, want)
	}
}

func ExampleHalfFromFloat32() {
	third := kernels.HalfFromFloat32(1.0 / 3)
	fmt.Printf("%#04x %v\n", uint16(third), third.Float32())
	fmt.Println(kernels.HalfFromFloat32(70000).Float32())
	// Output:
	// 0x3555 0.33325195
	// +Inf
}
