package tune

import (
	"fmt"
	"testing"

	"github.com/gccl-project/gccl/collective"
)

// BenchmarkChoose measures a choice that nobody cached, for all-reduce, the kind with most algorithms.
func BenchmarkChoose(b *testing.B) {
	m, err := Default("tcp")
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{2, 4, 8, 16, 64, 1024} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			s := collective.Shape{Kind: collective.AllReduce, Ranks: n}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Choose(m, s, 1<<20, 4); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
