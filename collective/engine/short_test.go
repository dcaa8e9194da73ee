package engine

import (
	"context"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
)

// A call that is made again and again takes the short way, and gives the same sums as the first time, on fresh inputs and in other
// memory; another call in between gives its own.
func TestShort(t *testing.T) {
	for kind, algorithm := range map[collective.Kind]string{collective.AllReduce: "oneshot", collective.ReduceScatter: "direct"} {
		for _, n := range []int{2, 3, 5} {
			testShort(t, kind, algorithm, n)
		}
	}
}

func testShort(t *testing.T, kind collective.Kind, algorithm string, n int) {
	j := newJob(t, n, NewDriver)
	const rounds = 12
	shape := collective.Shape{Kind: kind, Ranks: n}
	blocks, _ := kind.Blocks(n)
	var wg sync.WaitGroup
	outs := make([][]int64, n)
	shorts := make([]int, n)
	for r := range n {
		short := newTestCall(t, shape, r, algorithm, 3, 1<<10, 1, false)
		var others []*testCall
		for _, a := range collective.Catalog(collective.AllReduce) {
			if all := (collective.Shape{Kind: collective.AllReduce, Ranks: n}); a.Name != "oneshot" {
				others = append(others, newTestCall(t, all, r, a.Name, 40, 64, 1, false), newTestCall(t, all, r, a.Name, 40, 8, 1, false))
			}
		}
		wg.Go(func() {
			for k := range rounds {
				if k == rounds/2 {
					for _, c := range others {
						c.run(t, j.ports[r])
						c.run(t, j.ports[r])
						require.Equal(t, want(n, 39, 0), c.out[39])
					}
				}
				in, out := make([]int64, 3*blocks), make([]int64, 3)
				for i := range in {
					in[i] = input(r, i) + int64(k)
				}
				short.tasks[0].In, short.tasks[0].Out = unsafe.Pointer(&in[0]), unsafe.Pointer(&out[0])
				short.run(t, j.ports[r])
				outs[r] = append(outs[r], out...)
				if j.ports[r].lanes[0].short != nil {
					shorts[r]++
				}
			}
		})
	}
	wg.Wait()
	for r := range n {
		first := 0 // element of the input that the first of the output is the sum of
		if blocks > 1 {
			first = 3 * r
		}
		for k := range rounds {
			for i := range 3 {
				require.Equal(t, want(n, i+first, k), outs[r][3*k+i], "%v: rank %d of %d, round %d, element %d", kind, r, n, k, i)
			}
		}
		require.Equal(t, rounds-2, shorts[r], "calls of rank %d by the short way: all but the first and the one after another call", r)
	}
}

// A lane whose short call is done but for the reading of what it lent comes back to it. It must not fold again: the views are given back,
// and in place the destination is an operand.
func TestShortFoldsOnce(t *testing.T) {
	folds := 0
	task := &Task{Fold: func(unsafe.Pointer, []unsafe.Pointer, int) { folds++ }}
	l := &Lane{ops: make([]collective.Op, 1), size: []int{8}, elems: []int{1}}
	s := &short{operand: []int{-1}, srcs: make([]unsafe.Pointer, 1)}
	for range 3 {
		done, err := s.advance(l, task)
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, 1, folds)
		require.Equal(t, len(l.ops), l.pc)
	}
}

func (c *testCall) run(t testing.TB, p *Port) {
	holds := p.TryStart(&c.Call, 0, c.tasks...)
	require.NoError(t, c.Wait(context.Background(), holds))
}

// want is element i of the sum over n ranks of inputs to each of which more was added.
func want(n, i, more int) (sum int64) {
	for r := range n {
		sum += input(r, i) + int64(more)
	}
	return sum
}
