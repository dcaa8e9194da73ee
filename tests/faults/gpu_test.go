//go:build linux

package faults

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/tests/cluster"
)

// TestStrikesOnGPU: a rank of a loop of calls on GPU memory, each rank in a process of its own, is killed, or stopped and let go on when the
// others are through: their streams go on, they name it, and the survivors' calls are right.
func TestStrikesOnGPU(t *testing.T) {
	if n, err := cuda.Count(); n == 0 {
		if cluster.Required("cuda") {
			t.Fatal(err)
		}
		t.Skipf("no GPU (%v); make test-gpu has emulated ones", err)
	}
	ways := []string{"shm", "tcp"}
	if n, _ := cuda.Count(); n >= 3 { // a rank each, which are linked
		ways = append(ways, "auto")
	}
	for _, fault := range []string{"kill", "stop"} {
		for _, over := range ways {
			t.Run(fault+"/"+over, func(t *testing.T) {
				p, path := newPage(t)
				s := strike{Fault: fault, Ranks: 3, Victim: 1, Other: 1, Own: true, Call: 7}
				l := cluster.Launch{Job: "onGPU", Ranks: s.Ranks, Timeout: 3 * patience,
					Env: []string{"GCCL_TRANSPORT=" + over, pageVar + "=" + path, s.env()}}
				if fault == "kill" {
					l.Dies = map[int]syscall.Signal{s.Victim: syscall.SIGKILL}
				} else {
					l.Started = func(ps []*os.Process) {
						p.awaitStage(finished, 2*patience, s.survivors()...)
						ps[s.Victim].Signal(syscall.SIGCONT)
					}
				}
				cluster.Run(t, l)
			})
		}
	}
}

// onGPU is a rank's job.
func onGPU(r *cluster.Rank) {
	r.Case("error", func(report *cluster.Case) error {
		var s strike
		if err := s.fromEnv(); err != nil {
			return err
		}
		p, err := openPage(os.Getenv(pageVar))
		if err != nil {
			return err
		}
		defer func() { p.put(of(r.Rank, wordStage), finished) }()
		gpus, err := cuda.Count()
		if err != nil {
			return err
		}
		d, err := cuda.Open(r.Rank % gpus)
		if err != nil {
			return err
		}
		defer d.Close()
		stream, err := d.NewStream()
		if err != nil {
			return err
		}
		ctx, cancel := within()
		defer cancel()
		cfg := r.Config()
		cfg.Logger, cfg.Device = quiet, d.Device()
		c, err := comm.New(ctx, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		const n = 1 << 20
		m, err := d.Alloc(4 * n)
		if err != nil {
			return err
		}
		// call is an all_reduce in place, of ones; it returns what stands in the middle.
		call := func(c *comm.Comm) (float32, error) {
			x := make([]float32, n)
			for i := range x {
				x[i] = 1
			}
			err := d.CopyAny(stream, m.Ptr, unsafe.Pointer(&x[0]), 4*n)
			if err == nil {
				err = c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: n, DType: kernels.Float32, Stream: stream})
			}
			if err == nil {
				err = d.CopyAny(stream, unsafe.Pointer(&x[0]), m.Ptr, 4*n)
			}
			if err == nil {
				err = d.Wait(stream)
			}
			return x[n/2], errors.Join(err, c.Err())
		}
		for i := 0; ; i++ {
			if r.Rank == s.Victim && i == s.Call {
				s.self(p, 0)
			}
			var got float32
			if got, err = call(c); err != nil {
				break
			}
			if got != float32(s.Ranks) {
				return fmt.Errorf("call %d: %v, want %d", i, got, s.Ranks)
			}
		}
		if r.Rank == s.Victim {
			return refused(err)
		}
		if err := s.blamesVictims(err); err != nil {
			return err
		}
		took := time.Duration(now() - p.get(wordStruck))
		report.Fact("error after µs", took.Microseconds())
		if took > s.bound() {
			return fmt.Errorf("the error came %v after the fault, want %v at most", took, s.bound())
		}
		child, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		defer child.Close()
		for i := range 20 {
			if got, err := call(child); err != nil || got != float32(child.Size()) {
				return fmt.Errorf("call %d of %d survivors: %v, %w", i, child.Size(), got, err)
			}
		}
		return nil
	})
}
