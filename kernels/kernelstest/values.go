package kernelstest

import (
	"math/rand/v2"

	"github.com/gccl-project/gccl/kernels"
)

// Specials returns the bits of the values of d at which kernels go wrong: for floating-point types
// NaNs of both signs with several payloads, quiet and signalling, zeros, infinities, the largest and
// smallest normal and denormal numbers, small integers and their neighbours; of 8 bits every one; for integers the ends.
func Specials(d kernels.DType) []uint64 {
	size := 8 * d.Size()
	if !d.IsFloat() {
		top := uint64(1) << (size - 1)
		all := top | (top - 1)
		return []uint64{0, 1, 2, 3, 10, 0x55 & all, top - 2, top - 1, top, top + 1, all - 1, all}
	}
	f := fraction(d)
	one := Encode(d, 1)
	if d.Size() == 1 {
		all := make([]uint64, 256)
		for x := range all {
			all[x] = uint64(x)
		}
		return all
	}
	infinity := quietNaN(d) &^ (1 << (f - 1))
	positive := []uint64{
		0, 1, 2, 1<<f - 1, // denormals
		1 << f, 1<<f + 1, // the smallest normals
		one - 1, one, one + 1, Encode(d, 1.5), Encode(d, 2), Encode(d, 3), Encode(d, 256), Encode(d, 1.0/3),
		infinity - 2, infinity - 1, infinity,
		infinity + 1, infinity + 3, infinity + 1<<(f-1), infinity + 1<<(f-1) + 5, infinity + 1<<f - 1, // NaNs
	}
	all := positive
	for _, x := range positive {
		all = append(all, x|1<<(size-1))
	}
	return all
}

// Random returns n elements of d: special values, values of like size whose sums round and cancel,
// and any bits. Equal arguments give equal elements.
func Random(d kernels.DType, n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(d)))
	specials := Specials(d)
	b := make([]byte, n*d.Size())
	for i := range n {
		x := rng.Uint64()
		switch c := rng.IntN(8); {
		case c < 2:
			x = specials[rng.IntN(len(specials))]
		case c < 6 && d.IsFloat():
			x = Encode(d, (rng.Float64()*2-1)*100)
		}
		setBits(d, b, i, x)
	}
	return b
}
