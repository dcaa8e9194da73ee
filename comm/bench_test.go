package comm_test

import (
	"fmt"
	"testing"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// BenchmarkAllReduce is the public call, back to back, between two ranks of this process, each with a driver of its
// own. Between processes: gccl bench.
func BenchmarkAllReduce(b *testing.B) {
	for name, edit := range transports() {
		for _, bytes := range []int{8, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, bytes), func(b *testing.B) {
				comms := world(b, 2, func(r int, c *comm.Config) {
					edit(r, c)
					c.Driver = engine.NewDriver()
				})
				n := b.N
				done := make(chan error, 1)
				loop := func(r int) (err error) {
					buf := make([]float32, bytes/4)
					dst := make([]float32, bytes/4)
					for range n {
						if err := comm.AllReduce(background, comms[r], dst, buf, kernels.Sum); err != nil {
							return err
						}
					}
					return nil
				}
				b.SetBytes(int64(bytes))
				b.ReportAllocs()
				b.ResetTimer()
				go func() { done <- loop(1) }()
				if err := loop(0); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
