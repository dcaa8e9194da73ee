package gpu

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// Kernels that wait for other launches deadlock in many ways, each seen where every rank launches a kernel of its own. On one GPU nothing
// waits for a launch still to come, and each of them is tried:
//
//	a goroutine a rank, first launches on fresh streams      TestGoroutinesMeetOnGPU
//	one connection between host and GPU, calls queued ahead  TestOneConnectionOnGPU
//	one goroutine queues rank after rank, past any queue     TestRankAfterRankOnGPU
//	modules loaded and unloaded between the ranks' calls     TestBlockingCallsBetweenRanks
//	calls that wait for all kernels between the ranks' calls TestBlockingCallsBetweenRanks
//	dependent launches that overlap                          no kernel asks for it: TestKernelsAreInThePTX of package cuda
//	two communicators that fill the GPU, ranks interleaved   TestTwoFullCommunicators
//	more blocks than run at once                             TestTooManyBlocksAreRefused
//	a graph made while a kernel waits for what it launches   TestBatchOnGPU, on handles of one GPU
//	a kernel behind one that waits for it, in a queue that streams share: see TestMain

// TestOneConnectionOnGPU has the driver put all streams on one hardware queue, which it decides when it is opened.
func TestOneConnectionOnGPU(t *testing.T) {
	cudatest.Open(t)
	for _, n := range []string{"1", "32"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.short", "-test.run", "^(TestGoroutinesMeetOnGPU|TestRankAfterRankOnGPU)$", "-test.timeout", "60s")
		cmd.Env = append(os.Environ(), "CUDA_DEVICE_MAX_CONNECTIONS="+n, "CUDA_MODULE_LOADING=LAZY")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s connections: %s", n, out)
	}
}

// One goroutine makes thousands of calls of each rank before the next rank's, more than the driver queues.
func TestRankAfterRankOnGPU(t *testing.T) {
	const ranks, ahead = 4, 3000
	g := newRig(t, ranks, 1<<20)
	c := newCommunicator(t, g.d, ranks)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, ranks, 1)
	calls := s.lay(g)
	var tickets []Ticket
	for r := range ranks {
		for range ahead {
			ticket, err := c.Start(r, calls[r])
			require.NoError(t, err)
			tickets = append(tickets, ticket)
		}
	}
	for _, ticket := range tickets {
		require.NoError(t, ticket.Wait(t.Context()))
	}
	s.check(g, calls)
}

// Calls of the driver that wait for all kernels, as a user's cudaFree does and as loading a module may, between the ranks' calls of one
// goroutine.
func TestBlockingCallsBetweenRanks(t *testing.T) {
	const ranks = 4
	g := newRig(t, ranks, 1<<20)
	c := newCommunicator(t, g.d, ranks)
	for round := range 20 {
		s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, ranks, uint64(round))
		calls := s.lay(g)
		var tickets []Ticket
		for r := range ranks {
			ticket, err := c.Start(r, calls[r])
			require.NoError(t, err)
			tickets = append(tickets, ticket)
			switch (r + round) % 4 {
			case 0:
				m, err := g.d.AllocPinned(4096)
				require.NoError(t, err)
				require.NoError(t, g.d.FreePinned(m))
			case 1:
				m, err := g.d.Alloc(4096)
				require.NoError(t, err)
				require.NoError(t, g.d.Free(m))
			case 2:
				if round < 4 {
					d, err := cuda.Open(0) // loads its own modules
					require.NoError(t, err)
					require.NoError(t, d.Close())
				}
			case 3:
				require.NoError(t, g.d.Synchronize())
			}
		}
		for _, ticket := range tickets {
			require.NoError(t, ticket.Wait(t.Context()))
		}
		s.check(g, calls)
	}
}

// Two communicators with long messages, each of which fills the GPU, called rank by rank in turn on streams of their own, one of them
// of high priority, beside a stream of short kernels.
func TestTwoFullCommunicators(t *testing.T) {
	const ranks = 4
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	g := newRig(t, ranks, 9<<20)
	h := newRig(t, ranks, 9<<20)
	var comms [2]*Communicator
	var samples [2]*sample
	var calls [2][]Call
	for i, rig := range []*rig{g, h} {
		comms[i] = newCommunicator(t, g.d, ranks)
		samples[i] = newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2 << 20}, ranks, uint64(i))
		calls[i] = samples[i].lay(rig)
		rig.waitAll()
	}
	high, err := g.d.NewPriorityStream()
	require.NoError(t, err)
	calls[1][0].Stream = high
	short, err := g.d.NewStream()
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var busy error
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				busy = errors.Join(busy, g.d.Fill(short, g.src[0].Ptr, 0xE7, 256)) // before the input
				time.Sleep(20 * time.Microsecond)
			}
		}
	})
	for range rounds {
		var tickets []Ticket
		for r := range ranks {
			for i, c := range comms {
				ticket, err := c.Start(r, calls[i][r])
				require.NoError(t, err)
				tickets = append(tickets, ticket)
			}
		}
		for _, ticket := range slices.Backward(tickets) {
			require.NoError(t, ticket.Wait(t.Context()))
		}
	}
	close(stop)
	wg.Wait()
	require.NoError(t, busy)
	require.NoError(t, g.d.Synchronize())
	for i, rig := range []*rig{g, h} {
		samples[i].check(rig, calls[i])
	}
	require.NoError(t, g.d.DestroyStream(high))
	require.NoError(t, g.d.DestroyStream(short))
}

// A launch whose blocks wait for others' and cannot all run at once fails, rather than hang.
func TestTooManyBlocksAreRefused(t *testing.T) {
	devices := several(t, 2, 2)
	if devices[0].Info().Multiprocessors >= 64 {
		t.Skip("this GPU runs all blocks that a launch may have; make test-gpu has smaller ones")
	}
	g := newRigOn(t, devices, 8<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1 << 20}, 2, 0)
	calls := s.lay(g)
	g.waitAll()
	was := c.links.blocks
	c.links.blocks = 128
	require.ErrorContains(t, c.Group(calls), "COOPERATIVE_LAUNCH_TOO_LARGE")
	require.Error(t, c.Group(calls), "some GPUs may have got their part")
	require.NoError(t, c.Close())
	c, err = New(g.devices)
	require.NoError(t, err)
	require.Less(t, was, 128)
	require.NoError(t, c.Group(calls))
	s.check(g, calls)
	require.NoError(t, c.Close())
}
