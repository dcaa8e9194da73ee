package comm_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestUC74_AveragesStayInRange: an average divides before it adds, where the sum would be too large for the type.
func TestUC74_AveragesStayInRange(t *testing.T) {
	ten, one := kernels.HalfFromFloat32(10000), kernels.HalfFromFloat32(1)
	const infinity = 0x7c00 // 80000 is more than 65504
	near := func(got, want uint16) {
		t.Helper()
		require.InDelta(t, float64(want), float64(got), 1, "%#x", got) // in units of the last place: partial sums are rounded
	}
	for v := range reduced(t, 8, kernels.Float16, kernels.Avg, ten) {
		near(uint16(v), uint16(ten))
	}
	require.Equal(t, map[kernels.Half]bool{infinity: true}, reduced(t, 8, kernels.Float16, kernels.Sum, ten))
	for v := range reduced(t, 3, kernels.Float16, kernels.Avg, one) {
		near(uint16(v), uint16(one))
	}
	one2 := kernels.BFloat16FromFloat32(1)
	for v := range reduced(t, 3, kernels.Bfloat16, kernels.Avg, one2) {
		near(uint16(v), uint16(one2))
	}
	// One fold of all operands rounds once.
	require.Equal(t, map[kernels.Half]bool{ten: true}, reduced(t, 8, kernels.Float16, kernels.Avg, ten, "oneshot", "twoshot", ""))
}

// reduced returns what values an all-reduce has, on all ranks, by these algorithms (none: by all), where every element of the inputs is x.
func reduced[T kernels.Number](t *testing.T, ranks int, d kernels.DType, op kernels.RedOp, x T, algorithms ...string) map[T]bool {
	const n = 1001
	comms := world(t, ranks, nil)
	src, values := slices.Repeat([]T{x}, n), map[T]bool{}
	if algorithms == nil {
		for _, a := range collective.Catalog(collective.AllReduce) {
			algorithms = append(algorithms, a.Name)
		}
	}
	for _, a := range algorithms {
		dst := make([][]T, ranks)
		each(ranks, func(r int) {
			dst[r] = make([]T, n)
			call := comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(src), Dst: kernels.MemOf(dst[r]), Count: n, DType: d, RedOp: op, Algorithm: a}
			if err := comms[r].Do(t.Context(), call); err != nil {
				t.Errorf("%q: rank %d: %v", a, r, err)
			}
		})
		for _, v := range slices.Concat(dst...) {
			values[v] = true
		}
	}
	return values
}

// TestUC84_SameBitsAgain: equal inputs give equal bits, on all ranks and again and again, whoever comes late.
func TestUC84_SameBitsAgain(t *testing.T) {
	const ranks, n = 4, 1_000_000
	repeats := 100
	if testing.Short() {
		repeats = 5
	}
	comms := world(t, ranks, nil)
	src := make([][]float32, ranks)
	for r := range src {
		rng := rand.New(rand.NewPCG(84, uint64(r)))
		src[r] = make([]float32, n)
		for i := range src[r] {
			src[r][i] = rng.Float32()*2 - 1
		}
	}
	dst := make([][]float32, ranks)
	for r := range dst {
		dst[r] = make([]float32, n)
	}
	again := func(algorithm string, repeats, n int) {
		first := make([]float32, n)
		for k := range repeats {
			each(ranks, func(r int) {
				clear(dst[r][:n])
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				call := comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(src[r][:n]), Dst: kernels.MemOf(dst[r][:n]), Count: n, DType: kernels.Float32, Algorithm: algorithm}
				if err := comms[r].Do(t.Context(), call); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			if k == 0 {
				copy(first, dst[0])
			}
			for r := range ranks {
				for i, v := range dst[r][:n] {
					if v != first[i] {
						t.Fatalf("%q: call %d: rank %d: element %d is %v, in the first call rank 0 had %v", algorithm, k, r, i, v, first[i])
					}
				}
			}
		}
	}
	again("", repeats, n)
	for _, a := range collective.Catalog(collective.AllReduce) {
		again(a.Name, repeats/5, 10_007)
	}
}
