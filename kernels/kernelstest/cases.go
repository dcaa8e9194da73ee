package kernelstest

import (
	"math"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// runCases checks users' cases, with values that were worked out by hand.
func runCases(t *testing.T, device Device) {
	t.Run("UC73_LowPrecisionSum", func(t *testing.T) {
		// 256 + 7·1 = 263 lies between the bfloat16 numbers 262 and 264 and goes to the even one. Step
		// by step in bfloat16 it would have stayed 256.
		for _, first := range []int{0, 7} {
			values := []float64{1, 1, 1, 1, 1, 1, 1, 1}
			values[first] = 256
			equal(t, reduce(t, device, kernels.Bfloat16, kernels.Sum, values...), 264)
		}
		equal(t, reduce(t, device, kernels.Float16, kernels.Sum, 2048, 1, 1, 1), 2052) // 2051, halfway, to even
	})
	t.Run("UC74_AverageStaysInRange", func(t *testing.T) {
		kernel, err := device.PreMul(kernels.Float16)
		need(t, err)
		same := []float64{10000, 10000, 10000, 10000, 10000, 10000, 10000, 10000}
		equal(t, reduce(t, device, kernels.Float16, kernels.Sum, same...), math.Inf(1))
		equal(t, reduce(t, device, kernels.Float16, kernels.Avg, same...), math.Inf(1)) // Avg's own fold does not scale

		// All at once, or by doubling, nothing is lost to rounding.
		equal(t, average(t, device, kernels.Float16, same...), 10000)
		half := elements(kernels.Float16, []float64{10000, 10000})
		kernel(half[0], half[:1], 1, 0, 1.0/8)
		kernel(half[1], half[1:], 1, 0, 1.0/8)
		equal(t, value(kernels.Float16, half[0]), 1250)
		double, err := device.Reducer(kernels.Float16, kernels.Sum)
		need(t, err)
		for range 3 {
			double(half[0], half, 1)
			copy((*[8]byte)(half[1])[:], (*[8]byte)(half[0])[:])
		}
		equal(t, value(kernels.Float16, half[0]), 10000)

		// Around a ring each rank adds its own share to what came in, and the sums 6250, 7498, 8746 and
		// 9994 are not numbers of the format: they are rounded to 6248, 7496, 8744 and 9992.
		ring := elements(kernels.Float16, []float64{10000, 10000})
		kernel(ring[0], ring[:1], 1, 0, 1.0/8)
		for range 7 {
			kernel(ring[0], ring, 1, 1, 1.0/8)
		}
		equal(t, value(kernels.Float16, ring[0]), 9992)

		// A third is not exact; the average of three ones is within one unit in the last place.
		for _, d := range []kernels.DType{kernels.Float16, kernels.Bfloat16} {
			got := average(t, device, d, 1, 1, 1)
			if ulp := math.Ldexp(1, -fraction(d)); math.Abs(got-1) > ulp {
				t.Errorf("%s: the average of three ones is %v, want 1 within %v", d, got, ulp)
			}
		}
	})
	t.Run("UC76_AverageOverRanks", func(t *testing.T) {
		for _, d := range kernels.DTypes() {
			if d.IsFloat() {
				equal(t, average(t, device, d, 1, 2, 3, 4), 2.5)
			} else {
				equal(t, average(t, device, d, 1, 2, 3, 4), 2)
			}
		}
		for _, d := range []kernels.DType{kernels.Int8, kernels.Int32, kernels.Int64} {
			equal(t, average(t, device, d, -1, -2, -3, -4), -2) // -2.5, toward zero
		}
	})
}

func equal(t *testing.T, got, want float64) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// elements returns one-element sources, in words so that they are aligned for every type.
func elements(d kernels.DType, values []float64) []unsafe.Pointer {
	srcs := make([]unsafe.Pointer, len(values))
	for k, v := range values {
		word := unsafe.Pointer(new(uint64))
		srcs[k] = word
		x := uint64(int64(v))
		if d.IsFloat() {
			x = Encode(d, v)
		}
		setBits(d, (*[8]byte)(word)[:], 0, x)
	}
	return srcs
}

// value returns what element of d p points to.
func value(d kernels.DType, p unsafe.Pointer) float64 {
	x := bits(d, (*[8]byte)(p)[:], 0)
	switch {
	case d.IsFloat():
		return Decode(d, x)
	case isSigned(d):
		return float64(signed(d, x))
	}
	return float64(x)
}

func reduce(t *testing.T, device Device, d kernels.DType, op kernels.RedOp, values ...float64) float64 {
	t.Helper()
	kernel, err := device.Reducer(d, op)
	need(t, err)
	srcs := elements(d, values)
	kernel(srcs[0], srcs, 1)
	return value(d, srcs[0])
}

// average folds all ranks' inputs at once, as the package comment of kernels says averages are made.
func average(t *testing.T, device Device, d kernels.DType, values ...float64) float64 {
	t.Helper()
	srcs := elements(d, values)
	if d.IsFloat() {
		kernel, err := device.PreMul(d)
		need(t, err)
		kernel(srcs[0], srcs, 1, kernels.AllSources, 1/float64(len(values)))
		return value(d, srcs[0])
	}
	sum, err := device.Reducer(d, kernels.Avg)
	need(t, err)
	divide, err := device.PostDiv(d)
	need(t, err)
	sum(srcs[0], srcs, 1)
	divide(srcs[0], 1, int64(len(values)))
	return value(d, srcs[0])
}
