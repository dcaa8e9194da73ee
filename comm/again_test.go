package comm_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// A call like the last one is checked as the last one was: wrong memory is an error before anything is sent.
func TestSameCallWithWrongMemory(t *testing.T) {
	comms := world(t, 2, transports()["mem"])
	each(2, func(r int) {
		c := comms[r]
		buf := make([]float32, 64)
		good := comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(buf[:16]), Dst: kernels.MemOf(buf[32:48]), Count: 16, DType: kernels.Float32}
		for name, spoil := range map[string]func(*comm.Call){
			"nothing":    nil,
			"short src":  func(c *comm.Call) { c.Src = kernels.MemOf(buf[:15]) },
			"short dst":  func(c *comm.Call) { c.Dst = kernels.MemOf(buf[32:47]) },
			"no src":     func(c *comm.Call) { c.Src.Ptr = nil },
			"no dst":     func(c *comm.Call) { c.Dst.Ptr = nil },
			"overlap":    func(c *comm.Call) { c.Dst = kernels.MemOf(buf[8:24]) },
			"overlap 2":  func(c *comm.Call) { c.Src = kernels.MemOf(buf[40:56]) },
			"other comm": func(c *comm.Call) { c.Comm = comms[1-r] },
			"other type": func(c *comm.Call) { c.DType = 99 },
			"a GPU's":    func(c *comm.Call) { c.Src.Device.Kind = kernels.CUDA },
		} {
			if err := c.Do(background, good); err != nil {
				t.Errorf("rank %d, before %s: %v", r, name, err)
				return
			}
			if spoil == nil {
				continue
			}
			bad := good
			spoil(&bad)
			if err := c.Do(background, bad); err == nil {
				t.Errorf("rank %d: %s is taken", r, name)
			} else if name != "a GPU's" {
				require.ErrorIs(t, err, comm.ErrArgument, name)
			}
		}
	})
}

// Calls of a Group, whose runs serve one call after the other, are each waited for.
func TestGroupWaitsForEachCall(t *testing.T) {
	comms := world(t, 2, transports()["shm"])
	each(2, func(r int) {
		sum := make([]float32, 16)
		for i := range 100 {
			one := make([]float32, 16)
			one[3] = float32(i)
			if r == 1 && i%20 == 10 {
				time.Sleep(2 * time.Millisecond)
			}
			err := comm.Group(background, comm.Call{Comm: comms[r], Kind: comm.KindAllReduce, Src: kernels.MemOf(one), Dst: kernels.MemOf(sum), Count: 16, DType: kernels.Float32})
			if err != nil || sum[3] != float32(2*i) {
				t.Errorf("rank %d, call %d: %v, error %v", r, i, sum, err)
				return
			}
		}
	})
}

// Equal calls may come from any goroutine: whoever gets the driver next may have begun one on the run of a call that is just over.
func TestCallersByTheDozen(t *testing.T) {
	for _, name := range []string{"shm", "mem"} {
		comms := world(t, 2, transports()[name])
		each(2, func(r int) {
			var callers sync.WaitGroup
			for range 8 {
				callers.Go(func() {
					one, sum := make([]float32, 16), make([]float32, 16)
					for i := range 1000 {
						one[3] = 1
						if err := comm.AllReduce(background, comms[r], sum, one, kernels.Sum); err != nil || sum[3] != 2 {
							t.Errorf("%s: rank %d, call %d: %v, error %v", name, r, i, sum, err)
							return
						}
						sum[3] = 0
					}
				})
			}
			callers.Wait()
		})
	}
}

// Messages of other lengths and types than the last one to the same peer are themselves.
func TestMessagesByTurns(t *testing.T) {
	comms := world(t, 2, transports()["shm"])
	each(2, func(r int) {
		for i, n := range []int{2, 2, 7, 7, 7, 1, 30_000, 2, 2, 30_000, 5} {
			src, dst := make([]int32, n), make([]int32, n)
			for k := range src {
				src[k] = int32(i + k)
			}
			send := func() error { return comm.Send(background, comms[r], src, 1-r) }
			recv := func() error { return comm.Recv(background, comms[r], dst, 1-r) }
			first, then := send, recv
			if r == 1 {
				first, then = recv, send
			}
			err := errors.Join(first(), then())
			if err != nil || dst[n-1] != int32(i+n-1) || dst[0] != int32(i) {
				t.Errorf("rank %d, message %d of %d: begins with %d, ends with %d, error %v", r, i, n, dst[0], dst[n-1], err)
				return
			}
		}
	})
}
