//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// TestJudge hands wrong results to the judge of this package: a single changed bit, a missing element, a write beside the
// buffers or into the source must each be seen.
func TestJudge(t *testing.T) {
	comms := world(t, 3, overTransport("mem"))
	for _, d := range deeds([]kernels.RedOp{kernels.Sum, kernels.Avg, kernels.Prod, kernels.Max}) {
		if d.kind == comm.KindBarrier {
			continue
		}
		for _, dtype := range []kernels.DType{kernels.Uint8, kernels.Int64, kernels.Bfloat16, kernels.Float32} {
			s := d.spec(dtype, 21, 2) // rank 2 judges an all_reduce
			if d.kind == comm.KindBroadcast || d.kind == comm.KindReduce {
				s.root = 2
			}
			check := func(name string, spoil func(b *buffers)) error {
				errs := make([]error, 3)
				each(3, func(r int) {
					g, err := newGround(comms[r], []spec{s})
					require.NoError(t, err)
					after := func(b *buffers) {
						if r == 2 {
							spoil(b)
						}
					}
					errs[r] = s.runAnd(comms[r], g, &cluster.Case{}, after)
				})
				require.NoError(t, errs[0], "%v: %s", s, name)
				require.NoError(t, errs[1], "%v: %s", s, name)
				return errs[2]
			}
			require.NoError(t, check("nothing", func(*buffers) {}), "%v", s)
			for name, spoil := range map[string]func(b *buffers){
				"canary before":  func(b *buffers) { b.guards[2][len(b.guards[2])-1] ^= 1 },
				"canary behind":  func(b *buffers) { b.guards[3][0] ^= 1 },
				"source":         func(b *buffers) { b.src[3] ^= 1 },
				"high byte":      func(b *buffers) { b.dst[len(b.dst)-1] ^= 0x40 },
				"first sign":     func(b *buffers) { b.dst[dtype.Size()-1] ^= 0x80 },
				"poison at last": func(b *buffers) { fill(b.dst[len(b.dst)-dtype.Size():], poison) },
			} {
				if name == "source" && s.kind == comm.KindBroadcast {
					continue // its destination is judged by what the seed says
				}
				require.Error(t, check(name, spoil), "%v: %s", s, name)
			}
			exact := !s.reduces()
			if !exact {
				var err error
				exact, err = s.exact(comms[2])
				require.NoError(t, err)
			}
			if exact {
				require.Error(t, check("last bit", func(b *buffers) { b.dst[0] ^= 1 }), "%v", s)
			}
		}
	}
}

// TestJudgeComparesAllOfALongMessage: also between the windows that are compared bit by bit.
func TestJudgeComparesAllOfALongMessage(t *testing.T) {
	comms := world(t, 2, overTransport("mem"))
	s := spec{kind: comm.KindAllReduce, algorithm: "ring", dtype: kernels.Int32, redop: kernels.Sum, count: 20_000}
	for _, at := range []int{0, 1500, 7000, 18_499, 19_999} {
		errs := make([]error, 2)
		each(2, func(r int) {
			g, err := newGround(comms[r], []spec{s})
			require.NoError(t, err)
			errs[r] = s.runAnd(comms[r], g, &cluster.Case{}, func(b *buffers) { b.dst[4*at] ^= 1 })
		})
		require.ErrorContains(t, errs[0], fmt.Sprintf("element %d is", at))
	}
}

// TestTable says how much of the product is run, and that every algorithm of the catalog is in it for every number of ranks.
func TestTable(t *testing.T) {
	for _, w := range slices.Concat(ways, rdma) {
		for _, n := range w.worlds {
			met := map[string]int{}
			for _, s := range cases(w, n) {
				for _, m := range w.memories {
					if s.memory == m {
						met[fmt.Sprint(s.kind, s.algorithm, m)]++
					}
				}
			}
			for _, d := range deeds([]kernels.RedOp{kernels.Sum}) {
				for _, m := range w.memories {
					if d.kind == comm.KindBarrier && m != w.memories[0] {
						continue
					}
					require.GreaterOrEqual(t, met[fmt.Sprint(d.kind, d.algorithm, m)], 1, "%s with %d ranks: %v %s %v", w.name, n, d.kind, d.algorithm, m)
				}
			}
			t.Logf("%s, %d ranks: %d cases", w.name, n, len(cases(w, n)))
		}
	}
}
