package comm_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/stretchr/testify/require"
)

// TestExchangeDoesNotAllocate: a send and a receive that are begun together, again and again, with a peer that comes at once, and with
// one that comes so late that its rank sleeps and is asked whether it may go on waiting.
func TestExchangeDoesNotAllocate(t *testing.T) {
	late := map[string]time.Duration{"": 0, " late": 15 * time.Millisecond}
	for name, edit := range transports() {
		for when, late := range late {
			t.Run(name+when, func(t *testing.T) { exchangeDoesNotAllocate(t, edit, late) })
		}
	}
}

func exchangeDoesNotAllocate(t *testing.T, edit func(int, *comm.Config), late time.Duration) {
	comms := world(t, 2, func(r int, c *comm.Config) {
		edit(r, c)
		c.Driver = engine.NewDriver()
	})
	const warm, batches = 10, 5
	runs := 50
	if late > 0 {
		runs = 8
	}
	exchange := func(r int) func() {
		out, in := make([]int64, 4), make([]int64, 4)
		mem := func(s []int64) kernels.Mem { return kernels.Mem{Ptr: unsafe.Pointer(&s[0]), Bytes: int64(8 * len(s))} }
		c := comms[r]
		calls := []comm.Call{
			{Comm: c, Kind: comm.KindSend, Count: len(out), DType: kernels.Int64, Src: mem(out), Peer: 1 - r},
			{Comm: c, Kind: comm.KindRecv, Count: len(in), DType: kernels.Int64, Dst: mem(in), Peer: 1 - r},
		}
		count := int64(0)
		return func() {
			count++
			out[0], out[3] = count, -count
			if err := comm.Group(background, calls...); err != nil {
				t.Error(err)
			}
			if in[0] != count || in[3] != -count {
				t.Errorf("exchange %d gave %v", count, in)
			}
		}
	}
	peer := make(chan struct{})
	go func() {
		defer close(peer)
		f := exchange(1)
		for range warm + batches*(1+runs) {
			time.Sleep(late)
			f()
		}
	}()
	f := exchange(0)
	for range warm {
		f()
	}
	least := math.Inf(1) // others allocate as well: watchers, and tests before this one
	for range batches {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	<-peer
	require.Zero(t, least)
}

// TestMismatchAfterMessages: a message that differs from what its receiver asks for is told as it is, whatever the messages before were.
func TestMismatchAfterMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comms := simulated(t, 2, nil)
		each(2, func(r int) {
			c := comms[r]
			message := func(n int) error {
				if r == 0 {
					return comm.Send(background, c, make([]int64, n), 1)
				}
				return comm.Recv(background, c, make([]int64, n), 0)
			}
			for _, n := range []int{4, 9, 4, 4} {
				if err := message(n); err != nil {
					t.Error(err)
				}
			}
			err := message(6 + r)
			if r == 0 && err == nil {
				err = c.Barrier(background) // its part was over: the next call says it
			}
			if !errors.Is(err, comm.ErrMismatch) || !strings.Contains(err.Error(), "6 int64") || !strings.Contains(err.Error(), "7 int64") {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	})
}
