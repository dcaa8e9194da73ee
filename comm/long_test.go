package comm_test

import (
	"fmt"
	"testing"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Messages of some pieces, and of more than caches hold, give right values from both kinds of memory, in place and not, call after call: how
// they are copied changes meanwhile.
func TestLongMessages(t *testing.T) {
	for _, n := range []int{2, 3} {
		comms := world(t, n, func(_ int, c *comm.Config) { c.Transport = "shm" })
		for _, memory := range []string{"slice", "alloc"} {
			for _, count := range []int{5000, 50_000, 1_100_000} {
				t.Run(fmt.Sprintf("%d/%s/%d", n, memory, count), func(t *testing.T) {
					each(n, func(r int) {
						if err := longMessages(comms[r], memory, count); err != nil {
							t.Errorf("rank %d: %v", r, err)
						}
					})
				})
			}
		}
	}
}

func longMessages(c *comm.Comm, memory string, count int) error {
	n, r := c.Size(), c.Rank()
	src, dst := make([]int64, n*count), make([]int64, n*count)
	if memory == "alloc" {
		var err error
		if src, err = comm.AllocSlice[int64](c, n*count); err != nil {
			return err
		}
		if dst, err = comm.AllocSlice[int64](c, n*count); err != nil {
			return err
		}
		defer c.Free(kernels.MemOf(src))
		defer c.Free(kernels.MemOf(dst))
	}
	value := func(turn, rank, i int) int64 { return int64(turn)<<40 + int64(rank+1)*1_000_003 + int64(i) }
	sum := func(turn, i int) (x int64) {
		for rank := range n {
			x += value(turn, rank, i)
		}
		return x
	}
	turns := 1 + 100_000/count
	for turn := range turns {
		for k, kind := range []comm.Kind{comm.KindAllReduce, comm.KindAllReduce, comm.KindReduceScatter, comm.KindAllGather, comm.KindBroadcast} {
			call := comm.Call{Kind: kind, Count: count, DType: kernels.Int64}
			in, out, inPlace := src[:count], dst[:count], k == 1
			want := func(i int) int64 { return sum(turn, i) }
			switch kind {
			case comm.KindReduceScatter:
				in = src
				want = func(i int) int64 { return sum(turn, r*count+i) }
			case comm.KindAllGather:
				out = dst
				want = func(i int) int64 { return value(turn, i/count, i%count) }
			case comm.KindBroadcast:
				want = func(i int) int64 { return value(turn, 0, i) }
			}
			if inPlace {
				in = out
			} else {
				for i := range out {
					out[i] = -1
				}
			}
			for i := range in {
				in[i] = value(turn, r, i)
			}
			call.Src, call.Dst = kernels.MemOf(in), kernels.MemOf(out)
			if err := c.Do(background, call); err != nil {
				return err
			}
			for i, x := range out {
				if x != want(i) {
					return fmt.Errorf("turn %d: element %d of %v is %d, want %d", turn, i, &call, x, want(i))
				}
			}
		}
	}
	return nil
}
