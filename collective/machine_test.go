package collective

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The machine's order contains the linear one: each op is ready once those before it are done.
func TestLinearIsATopologicalOrder(t *testing.T) {
	for _, a := range catalog {
		for _, n := range []int{2, 3, 8, 13} {
			for _, opt := range allOptions {
				for _, p := range compiled(t, schedulesOf(a, n, 0), opt) {
					m := NewMachine(p)
					for range 2 { // a machine can be used again
						ready := map[int32]bool{}
						for _, i := range m.Reset(nil) {
							ready[i] = true
						}
						for i := range p.Ops {
							require.True(t, ready[int32(i)], "%s, %d ranks, rank %d, %+v: op %d, %s", a.title(), n, p.Rank, opt, i, p.Describe(i))
							for _, j := range m.Done(int32(i), nil) {
								ready[j] = true
							}
						}
					}
				}
			}
		}
	}
}

// benchmarkPlans are the plans that both readings are measured on.
func benchmarkPlans(b *testing.B, f func(b *testing.B, p *Plan)) {
	for _, c := range []struct {
		name string
		a    Algorithm
		n    int
	}{
		{"oneshot/ranks=2", Algorithm{Kind: AllReduce, Build: oneshot}, 2},
		{"ring/ranks=8", Algorithm{Kind: AllReduce, Build: ringAllReduce}, 8},
	} {
		p, err := Compile(c.a.Build(Shape{Kind: c.a.Kind, Ranks: c.n}, 0), Options{})
		require.NoError(b, err)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			f(b, p)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(p.Ops)), "ns/op-of-plan")
		})
	}
}

// work is what both benchmarks do with an op, instead of messages and sums.
func work(p *Plan, o *Op) int {
	sum := int(o.Peer) + int(o.Dst.Block)
	for _, src := range p.Sources(o) {
		sum += int(src.Block)
	}
	return sum
}

var sink int

func BenchmarkMachine(b *testing.B) {
	benchmarkPlans(b, func(b *testing.B, p *Plan) {
		m := NewMachine(p)
		ready, next := make([]int32, 0, len(p.Ops)), make([]int32, 0, len(p.Ops))
		for b.Loop() {
			ready = m.Reset(ready[:0])
			for len(ready) > 0 {
				i := ready[len(ready)-1]
				ready = ready[:len(ready)-1]
				sink += work(p, &p.Ops[i])
				next = m.Done(i, next[:0])
				ready = append(ready, next...)
			}
		}
	})
}

func BenchmarkLinearWalk(b *testing.B) {
	benchmarkPlans(b, func(b *testing.B, p *Plan) {
		for b.Loop() {
			ops := p.Linear()
			for i := range ops {
				sink += work(p, &ops[i])
			}
		}
	})
}

func TestRunningAPlanAllocatesNothing(t *testing.T) {
	p, err := Compile(ringAllReduce(Shape{Kind: AllReduce, Ranks: 8}, 0), Options{})
	require.NoError(t, err)
	m := NewMachine(p)
	ready := make([]int32, 0, len(p.Ops))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ready = m.Reset(ready[:0])
		for len(ready) > 0 {
			i := ready[len(ready)-1]
			ready = m.Done(i, ready[:len(ready)-1])
		}
		for i := range p.Linear() {
			sink += work(p, &p.Ops[i])
		}
	}))
}
