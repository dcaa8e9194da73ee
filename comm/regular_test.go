package comm

import (
	"math/rand/v2"
	"testing"

	"github.com/gccl-project/gccl/kernels"
)

// Whatever again takes for a call like the last one, the long way would take for the same: memory that is long enough, and in place, or not, as
// that one was.
func TestAgainIsRight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]float32, 256)
	at := func(i, n int) kernels.Mem { return kernels.MemOf(buf[i : i+n]) }
	var taken, refused int
	for range 200_000 {
		c := &Comm{rank: rng.IntN(3), world: []int{0, 1, 2}}
		call := Call{Kind: Kind(rng.IntN(int(KindBarrier))), Count: 1 + rng.IntN(12), DType: kernels.Float32}
		if call.Kind == KindBroadcast || call.Kind == KindReduce {
			call.Root = rng.IntN(3)
		}
		src, dst, err := c.sizes(&call)
		if err != nil {
			t.Fatal(err)
		}
		p := &prepared{signature: signature{kind: call.Kind, dtype: call.DType, count: call.Count, root: call.Root, inPlace: rng.IntN(2) == 0}, src: src, dst: dst, apart: c.apart(&call)}
		call.Src, call.Dst = at(64+rng.IntN(64), rng.IntN(60)), at(64+rng.IntN(64), rng.IntN(60))
		if rng.IntN(2) == 0 { // in place, or nearly
			off := int(int64(p.apart))/4 + max(0, rng.IntN(8)-6)
			call.Dst = at(100, int(dst)/4)
			call.Src = at(100+off, int(src)/4)
		}
		if rng.IntN(8) == 0 {
			call.Src.Ptr = nil
		}
		if rng.IntN(8) == 0 {
			call.Dst.Ptr = nil
		}
		right := c.inPlace(&call) == p.inPlace && c.checkMemory(&call, src, dst, p.inPlace) == nil
		switch got := c.again(p, &call); {
		case got && !right:
			t.Fatalf("%v on rank %d is taken: Src %v, Dst %v, in place %v", &call, c.rank, call.Src, call.Dst, p.inPlace)
		case got:
			taken++
		case right && src > 0 && dst > 0:
			t.Fatalf("%v on rank %d is refused: Src %v, Dst %v, in place %v", &call, c.rank, call.Src, call.Dst, p.inPlace)
		default:
			refused++
		}
	}
	if taken < 10_000 || refused < 10_000 {
		t.Errorf("%d were taken, %d refused", taken, refused)
	}
}
