package comm_test

import (
	"context"
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestUC76_Factors: each rank's input is multiplied by its own factor, by every algorithm of every kind that sums.
func TestUC76_Factors(t *testing.T) {
	const n = 1001
	for _, ranks := range []int{1, 3} {
		comms := world(t, ranks, nil)
		for _, kind := range []comm.Kind{comm.KindAllReduce, comm.KindReduceScatter, comm.KindReduce} {
			for _, a := range collective.Catalog(collective.Kind(kind)) {
				ins, _ := collective.Kind(kind).Blocks(ranks)
				each(ranks, func(r int) {
					src, dst := make([]float32, ins*n), make([]float32, n)
					for i := range src {
						src[i] = float32(i%50 - r)
					}
					call := comm.Call{Kind: kind, Src: kernels.MemOf(src), Dst: kernels.MemOf(dst), Count: n, DType: kernels.Float32, Factor: kernels.FactorOf(float64(r) + 2), Algorithm: a.Name}
					if err := comms[r].Do(context.Background(), call); err != nil {
						t.Errorf("%v by %s: rank %d: %v", kind, a.Name, r, err)
						return
					}
					if kind == comm.KindReduce && r != 0 {
						return
					}
					for i := range dst {
						at, want := i, float32(0)
						if kind == comm.KindReduceScatter {
							at += r * n
						}
						for q := range ranks {
							want += float32(at%50-q) * float32(q+2)
						}
						if dst[i] != want {
							t.Errorf("%v by %s: rank %d: element %d is %v, want %v", kind, a.Name, r, i, dst[i], want)
							return
						}
					}
				})
			}
		}
	}
}

// A factor is for sums of floating-point numbers, and one in a GPU's memory for numbers there; all ranks have one or none has.
func TestBadFactors(t *testing.T) {
	comms := world(t, 2, nil)
	x := []float32{1}
	call := comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(x), Dst: kernels.MemOf(x), Count: 1, DType: kernels.Float32, Factor: kernels.FactorOf(2)}
	for name, spoil := range map[string]func(*comm.Call){
		"max":      func(c *comm.Call) { c.RedOp = kernels.Max },
		"avg":      func(c *comm.Call) { c.RedOp = kernels.Avg },
		"integers": func(c *comm.Call) { c.DType = kernels.Int32 },
		"gather":   func(c *comm.Call) { c.Kind = comm.KindAllGather },
		"send":     func(c *comm.Call) { c.Kind, c.Peer = comm.KindSend, 1 },
		"on a GPU": func(c *comm.Call) { c.Factor = kernels.FactorAt(unsafe.Pointer(&x[0])) },
	} {
		bad := call
		spoil(&bad)
		require.ErrorIs(t, comms[0].Do(context.Background(), bad), comm.ErrArgument, name)
	}
	each(2, func(r int) {
		mine := call
		y := []float32{1}
		mine.Src, mine.Dst = kernels.MemOf(y), kernels.MemOf(y)
		mine.Factor.Set = r == 0
		if err := comms[r].Do(context.Background(), mine); !errors.Is(err, comm.ErrMismatch) {
			t.Errorf("rank %d: %v, want ErrMismatch", r, err)
		}
	})
}
