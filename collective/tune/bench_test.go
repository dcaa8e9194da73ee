package tune

import (
	"fmt"
	"testing"

	"github.com/gccl-project/gccl/collective"
)

// BenchmarkChoose measures a choice that nobody cached, for all-reduce, the kind with most algorithms, and one that a Tuner knows the
// algorithms of.
func BenchmarkChoose(b *testing.B) {
	m := tcpAndShm(b)
	for _, n := range []int{2, 4, 8, 16, 64, 512, 1024} {
		shapes := map[string]collective.Shape{"flat": {Kind: collective.AllReduce, Ranks: n}}
		if n > 8 {
			shapes["hosts of 8"] = onHosts(b, collective.AllReduce, 8, n/8)
		}
		for name, s := range shapes {
			for how, choose := range map[string]func(Model, collective.Shape, int, int) (Choice, error){"anew": Choose, "known": new(Tuner).Choose} {
				b.Run(fmt.Sprintf("n=%d/%s/%s", n, name, how), func(b *testing.B) {
					b.ReportAllocs()
					once := func() {
						if _, err := choose(m, s, 1<<20, 4); err != nil {
							b.Fatal(err)
						}
					}
					once()
					for b.Loop() {
						once()
					}
				})
			}
		}
	}
}
