package kernelstest

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/gccl-project/gccl/kernels"
)

// bits returns element i of b, in the machine's byte order, as an unsigned number.
func bits(d kernels.DType, b []byte, i int) uint64 {
	b = b[i*d.Size():]
	switch d.Size() {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

// setBits is the inverse of bits. It drops what does not fit, as integers wrap.
func setBits(d kernels.DType, b []byte, i int, x uint64) {
	b = b[i*d.Size():]
	switch d.Size() {
	case 1:
		b[0] = byte(x)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(x))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(x))
	default:
		binary.NativeEndian.PutUint64(b, x)
	}
}

// signed returns the value of x as a number of the signed type d.
func signed(d kernels.DType, x uint64) int64 {
	unused := 64 - 8*d.Size()
	return int64(x<<unused) >> unused
}

// fraction bits of the floating-point types.
func fraction(d kernels.DType) int {
	switch d {
	case kernels.Float8e4m3:
		return 3
	case kernels.Float8e5m2:
		return 2
	case kernels.Float16:
		return 10
	case kernels.Bfloat16:
		return 7
	case kernels.Float32:
		return 23
	case kernels.Float64:
		return 52
	}
	panic(fmt.Sprintf("kernelstest: %s is no floating-point type", d))
}

// quietNaN returns the canonical NaN of d: exponent all ones, first fraction bit, nothing else; of 8 bits, all ones but the sign.
func quietNaN(d kernels.DType) uint64 {
	if d.Size() == 1 {
		return 0x7f
	}
	f := fraction(d)
	width := 8*d.Size() - 1 - f
	return (1<<width-1)<<f | 1<<(f-1)
}

// Decode returns the value of x, the bits of a number of the floating-point type d, from the
// definition of such formats. It is exact.
func Decode(d kernels.DType, x uint64) float64 {
	f := fraction(d)
	width := 8*d.Size() - 1 - f
	sign := 1.0
	if x>>(f+width)&1 == 1 {
		sign = -1
	}
	exponent, frac := int(x>>f)&(1<<width-1), x&(1<<f-1)
	bias := 1<<(width-1) - 1
	endless := d == kernels.Float8e4m3 // its greatest exponent is of numbers, but for one NaN
	switch {
	case exponent == 1<<width-1 && (!endless && frac != 0 || frac == 1<<f-1):
		return math.NaN()
	case exponent == 1<<width-1 && !endless:
		return sign * math.Inf(1)
	case exponent == 0:
		return math.Copysign(math.Ldexp(float64(frac), 1-bias-f), sign)
	}
	return sign * math.Ldexp(float64(frac|1<<f), exponent-bias-f)
}

// Encode returns the bits of the number of the floating-point type d that is nearest to v, the even
// one of two that are equally near; every NaN gives the canonical one. Types of 8 bits have no infinity here.
func Encode(d kernels.DType, v float64) uint64 {
	switch {
	case math.IsNaN(v):
		return quietNaN(d)
	case d == kernels.Float64:
		return math.Float64bits(v)
	case d == kernels.Float32:
		return uint64(math.Float32bits(float32(v)))
	}
	table := ladder(d)
	var sign uint64
	if math.Signbit(v) {
		sign = 1 << (8*d.Size() - 1)
		v = -v
	}
	hi := sort.SearchFloat64s(table, v)
	if last := len(table) - 1; d.Size() == 1 && hi >= last {
		return sign | uint64(last-1)
	} else if hi > last {
		return sign | uint64(last)
	}
	if table[hi] == v {
		return sign | uint64(hi)
	}
	lo := hi - 1
	below, above := v-table[lo], table[hi]-v
	if below < above || below == above && lo%2 == 0 {
		return sign | uint64(lo)
	}
	return sign | uint64(hi)
}

var ladders = map[kernels.DType]func() []float64{
	kernels.Float16:  sync.OnceValue(func() []float64 { return climb(kernels.Float16) }),
	kernels.Bfloat16: sync.OnceValue(func() []float64 { return climb(kernels.Bfloat16) }),

	kernels.Float8e4m3: sync.OnceValue(func() []float64 { return climb(kernels.Float8e4m3) }),
	kernels.Float8e5m2: sync.OnceValue(func() []float64 { return climb(kernels.Float8e5m2) }),
}

// ladder returns the values of the short format d from 0 up, each at the index that is its bits.
// The last stands for infinity, or the first NaN, and is what the next number would be, so that rounding to nearest
// goes to it when it should.
func ladder(d kernels.DType) []float64 { return ladders[d]() }

func climb(d kernels.DType) []float64 {
	var table []float64
	for x := uint64(0); ; x++ {
		v := Decode(d, x)
		if math.IsInf(v, 1) || math.IsNaN(v) {
			last := len(table) - 1
			return append(table, table[last]+(table[last]-table[last-1]))
		}
		table = append(table, v)
	}
}
