package comm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestDeviceGroupOrderOfSeveral: calls of a Group that touch the same memory are done in its order, whichever communicators they are of, and whether
// a goroutine makes the calls of one rank or of all.
func TestDeviceGroupOrderOfSeveral(t *testing.T) {
	const ranks, n = 2, 1000
	for name, make := range map[string]func() *deviceWorld{
		"one process": func() *deviceWorld { return newDeviceWorld(t, ranks, 4*n, nil) },
		"apart":       func() *deviceWorld { return apartWorld(t, ranks, 4*n, nil) },
		"linked":      func() *deviceWorld { return linkedWorld(t, ranks) },
	} {
		w := make()
		v := w.more(4 * n)
		split := w.split()
		group := func(r int) []comm.Call {
			first := w.call(r, n)
			first.Kind, first.Dst = comm.KindReduce, first.Src
			then, last := first, first
			then.Kind, then.Comm, last.Kind = comm.KindAllReduce, split[r], comm.KindBroadcast
			// The same of other memory, where rank 0 alone reads what it has of the first call.
			other, behind := first, then
			if other.Src, other.Dst = v.src[r], v.dst[r]; r == 1 {
				other.Dst = kernels.Mem{}
			}
			if behind.Src, behind.Dst = v.src[r], w.dst[r]; r == 0 {
				behind.Src = v.dst[r]
			}
			all := last
			all.Src, all.Dst = w.dst[r], w.dst[r]
			if name != "one process" {
				return []comm.Call{first, then, last}
			}
			return []comm.Call{first, then, last, other, behind, all}
		}
		for round := range 4 {
			v.fill(n, round)
			sum := w.fill(n, round)
			for r := range ranks {
				require.NoError(t, w.on(r).Wait(v.streams[r]))
			}
			alone := w.read(1, w.src[1], n)
			for i := range sum {
				sum[i] += alone[i] // rank 0 has the sum by then, rank 1 its own
			}
			if round%2 == 0 || name == "linked" { // its ranks are taken to be in processes of their own
				each(ranks, func(r int) {
					if err := comm.Group(context.Background(), group(r)...); err != nil {
						t.Errorf("%s: rank %d: %v", name, r, err)
					}
				})
			} else {
				require.NoError(t, comm.Group(context.Background(), append(group(0), group(1)...)...))
			}
			for r := range ranks {
				require.Equal(t, sum, w.read(r, w.src[r], n), "%s: rank %d, round %d", name, r, round)
			}
			if name == "one process" {
				w.check(sum)
			}
		}
	}
}
