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

// Calls of some few kinds and lengths by turns, as programs make them, and messages to and fro.
func BenchmarkByTurns(b *testing.B) {
	for name, call := range map[string]func(r, i int, c *comm.Comm, dst, src []float32) error{
		"same": func(_, _ int, c *comm.Comm, dst, src []float32) error {
			return comm.AllReduce(background, c, dst[:2], src[:2], kernels.Sum)
		},
		"lengths": func(_, i int, c *comm.Comm, dst, src []float32) error {
			n := 2 + 2*(i%3)
			return comm.AllReduce(background, c, dst[:n], src[:n], kernels.Sum)
		},
		"kinds": func(_, i int, c *comm.Comm, dst, src []float32) error {
			if i%2 == 0 {
				return c.Barrier(background)
			}
			return comm.AllReduce(background, c, dst[:2], src[:2], kernels.Sum)
		},
		"pingpong": func(r, i int, c *comm.Comm, dst, src []float32) error {
			if i%2 == r {
				return comm.Send(background, c, src[:2], 1-r)
			}
			return comm.Recv(background, c, dst[:2], 1-r)
		},
	} {
		b.Run(name, func(b *testing.B) {
			comms := world(b, 2, func(r int, c *comm.Config) {
				transports()["shm"](r, c)
				c.Driver = engine.NewDriver()
			})
			n := b.N
			loop := func(r int) error {
				dst, src := make([]float32, 8), make([]float32, 8)
				for i := range n {
					if err := call(r, i, comms[r], dst, src); err != nil {
						return err
					}
				}
				return nil
			}
			done := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { done <- loop(1) }()
			if err := loop(0); err != nil {
				b.Fatal(err)
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
