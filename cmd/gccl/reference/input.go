package reference

import (
	"math"
	mathbits "math/bits"

	"github.com/gccl-project/gccl/kernels"
)

// Input says what the ranks' inputs hold, so that every rank can compute every other's: element i of
// rank q is a function of (seed, q, i), whatever the length of the message.
type Input struct {
	DType   kernels.DType
	RedOp   kernels.RedOp // shapes the values: products must stay in range
	Factors bool          // each rank's is multiplied by its Factor before the sum, which is of floating-point numbers
	Ranks   int
	Seed    uint64
	Special bool // NaNs, zeros of both signs, infinities and denormals among them; ignored for integers
}

// Factor is what a rank's input is multiplied by where Input.Factors is set: powers of two, so that only denormals are rounded.
func Factor(rank int) float64 { return 1 / float64(1+rank%2) }

// hash is splitmix64's output function over a counter.
func hash(seed uint64, rank int, i uint64) uint64 {
	z := (seed+uint64(rank)*0xd1342543de82ef95+1)*0xaf251af3b0f025b5 + i*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill writes the bits of rank's elements from first on.
func (in Input) fill(bits []uint64, rank, first int) {
	switch {
	case !in.DType.IsFloat():
		mask := uint64(math.MaxUint64) >> (64 - 8*in.DType.Size())
		var odd uint64
		if in.RedOp == kernels.Prod {
			odd = 1 // the product of many random numbers is 0
		}
		for k := range bits {
			bits[k] = hash(in.Seed, rank, uint64(first+k))&mask | odd
		}
		return
	case in.RedOp == kernels.Prod:
		// Factors about 1, so that with any number of ranks no partial product leaves the range.
		f, width := formatOf(in.DType), min(0.5, 4/float64(in.Ranks))
		for k := range bits {
			h := hash(in.Seed, rank, uint64(first+k))
			bits[k] = f.encode(1 + width*(float64(int64(h)>>10)/(1<<53)))
		}
	default:
		// All of the fraction, one of four exponents, both signs: sums cancel, shift and round.
		f := formatOf(in.DType)
		mask, low := uint64(1)<<f.frac-1, uint64(f.bias()-2)
		for k := range bits {
			h := hash(in.Seed, rank, uint64(first+k))
			bits[k] = h&mask | (low+h>>61&3)<<f.frac | h>>63<<(f.frac+f.exp)
		}
	}
	switch {
	case in.Special:
		for k := range bits {
			bits[k] = in.specialAt(bits[k], rank, uint64(first+k))
		}
	default:
		in.fillExact(bits, rank, first)
	}
}

// exactAt reports whether the elements with this index are such that their reduction rounds nothing,
// in any order. With many ranks and few bits the bound on rounding errors grows until a
// missing operand hides below it; here it can't.
func (in Input) exactAt(i int) bool { return i&1 == 1 && !in.Special && in.DType.IsFloat() }

// fillExact replaces the elements that exactAt tells: by whole numbers so small that the sum of all is
// one that the type has, or for a product by powers of two.
func (in Input) fillExact(bits []uint64, rank, first int) {
	f := formatOf(in.DType)
	whole, unit := f.whole(), 1.0
	if in.Factors {
		whole, unit = whole/2, 1/Factor(1) // they are whole afterwards
	}
	one, most := f.encode(1), max(1, whole/uint64(in.Ranks))
	few := uint64(in.Ranks) > whole // then not all ranks can have a number that counts
	mask := uint64(1)<<(mathbits.Len64(most)-1) - 1
	for k := 1 - first&1; k < len(bits); k += 2 {
		h := hash(in.Seed, rank, uint64(first+k))
		sign := h >> 63 << (f.frac + f.exp)
		switch {
		case few && in.RedOp != kernels.Prod && (uint64(rank)+hash(in.Seed, -2, uint64(first+k)))%uint64(in.Ranks) >= whole:
			bits[k] = 0
		case in.RedOp != kernels.Prod:
			bits[k] = sign | f.encode(unit*float64(1+h&mask))
		case h&0xffff*uint64(in.Ranks)>>16 >= 6:
			bits[k] = sign | one // about six of many ranks give another factor
		default:
			bits[k] = sign | one + h>>40&1<<(f.frac+1) - 1<<f.frac // 2 or 1/2
		}
	}
}

// specialAt returns what stands in place of an ordinary element. What is mixed depends on the
// index, so that some sums are of zeros alone, some of denormals, and not all are NaN.
func (in Input) specialAt(ordinary uint64, rank int, i uint64) uint64 {
	f := formatOf(in.DType)
	h := hash(^in.Seed, rank, i)
	sign := h >> 63 << (f.frac + f.exp)
	zero := sign
	denormal := sign | max(1, h&(1<<f.frac-1)>>(h>>60&7))
	infinity := sign | f.infinity()
	nan := sign | f.infinity() | max(1, h&(1<<f.frac-1)) // quiet or signalling, any payload
	if f.most != 0 {                                     // with saturation the result would depend on where it comes
		infinity, nan = ordinary, sign|f.nan()
	}
	pick := h >> 40 % 8
	switch hash(in.Seed, -1, i) % 8 {
	case 0:
		return zero
	case 1:
		if pick < 4 {
			return zero
		}
	case 2:
		return denormal
	case 3:
		if pick < 4 {
			return zero
		}
		return denormal
	case 4:
		if pick < 2 {
			return infinity
		}
	case 5:
		if pick < 1 {
			return nan
		}
	default:
		switch {
		case pick < 2:
			return zero
		case pick < 4:
			return denormal
		case pick < 5:
			return infinity
		case pick < 6 && h>>32&1 == 0:
			return nan
		}
	}
	return ordinary
}

// Write fills b with rank's elements from first on.
func (in Input) Write(b []byte, rank, first int) {
	var bits [block]uint64
	size := in.DType.Size()
	for n := len(b) / size; n > 0; n = len(b) / size {
		part := bits[:min(n, block)]
		in.fill(part, rank, first)
		put(in.DType, b, part)
		b, first = b[len(part)*size:], first+len(part)
	}
}

// block is how many elements are computed at a time: what fits the first-level cache.
const block = 512
