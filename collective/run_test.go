package collective

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func compiled(t *testing.T, all []Schedule, opt Options) []*Plan {
	t.Helper()
	plans := make([]*Plan, len(all))
	for r, s := range all {
		p, err := Compile(s, opt)
		require.NoError(t, err)
		plans[r] = p
	}
	return plans
}

// TestUC83_EveryElementOfEverySize runs all algorithms on numbers: ranks 2…8 (and some
// more), awkward counts, rounds that do and don't divide them. All elements are looked at.
func TestUC83_EveryElementOfEverySize(t *testing.T) {
	forCatalog(t, func(t *testing.T, a Algorithm) {
		for _, n := range []int{2, 3, 4, 5, 6, 7, 8, 11, 16} {
			for i, opt := range allOptions {
				plans := compiled(t, schedulesOf(a, n, (n-1)*btoi(a.Kind.Rooted())), opt)
				for _, count := range []int{0, 1, 2, 3, 15, 16, 17, 64, 100, 257} {
					for _, round := range []int{5, 32, 1000} {
						l := Layout{Count: count, Elem: 4, Round: round, Pieces: plans[0].Pieces}
						x := newRunner(plans, l, rand.New(rand.NewPCG(uint64(count*round+i), 3)))
						require.Empty(t, x.run(), "%d ranks, %+v, %+v", n, opt, l)
						require.Empty(t, x.wrongElement(), "%d ranks, %+v, %+v", n, opt, l)
					}
				}
			}
		}
	})
}

// TestUC82_InPlaceIsTheSameBitForBit: the same tree of values in place and out of place, at
// the documented offsets.
func TestUC82_InPlaceIsTheSameBitForBit(t *testing.T) {
	forCatalog(t, func(t *testing.T, a Algorithm) {
		for n := 2; n <= 16; n++ {
			for _, scale := range []bool{false, true} {
				var trees [2][][]string
				for i, inPlace := range []bool{false, true} {
					w := worldOf(t, schedulesOf(a, n, 0), Options{InPlace: inPlace, Scale: scale})
					out, err := w.runLinear()
					require.NoError(t, err)
					for r := range out {
						var rank []string
						for _, x := range out[r] {
							rank = append(rank, w.values.tree(x))
						}
						trees[i] = append(trees[i], rank)
					}
				}
				require.Equal(t, trees[0], trees[1], "%d ranks", n)
			}
		}
	})
}

// bfloat16 rounds x to the nearest bfloat16, ties to even.
func bfloat16(x float32) float32 {
	b := math.Float32bits(x)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// TestUC73_LowPrecisionSums: bfloat16, one rank has 256, the others 1. Sums are made in
// float32 with one rounding per fold: all ranks get the same bits, no further off than the documented
// bound, and what folds all inputs at once gets 264, the bfloat16 nearest to 263.
func TestUC73_LowPrecisionSums(t *testing.T) {
	const n = 8
	for _, big := range []int32{0, n - 1} {
		for _, a := range Catalog(AllReduce) {
			w := worldOf(t, schedulesOf(a, n, 0), Options{})
			out, err := w.runLinear()
			require.NoError(t, err)
			var eval func(x int32) float32
			eval = func(x int32) float32 {
				node := w.values.nodes[x]
				if node.sum == nil && node.rank == big {
					return 256
				} else if node.sum == nil {
					return 1
				}
				var sum float32
				for _, y := range node.sum {
					sum += eval(y)
				}
				return bfloat16(sum)
			}
			for r := range out {
				for c, x := range out[r] {
					got := eval(x)
					require.Equal(t, eval(out[0][c]), got, "%s: rank %d", a.Name, r)
					require.InDelta(t, 263, got, (n-1)*2/2, "%s: (n-1)·ulp/2", a.Name)
					if a.RankOrder {
						require.EqualValues(t, 264, got, a.Name)
					}
				}
			}
		}
	}
}
