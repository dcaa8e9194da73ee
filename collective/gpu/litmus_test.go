package gpu

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// TestLitmus replays graphs, one a GPU, of a million in-place all-reduces of changing lengths, by changing ways where GPUs wait for each
// other, with no look between them. Three ranks: each call multiplies what all have by 3 modulo 2^32, which loses nothing, so one word read
// too early or too late anywhere shows in the end. Kernels of other streams come and go meanwhile, so that blocks start at any time; and
// again with kernels that sleep at random wherever blocks have to do with each other.
func TestLitmus(t *testing.T) {
	for handles := 1; handles <= 2; handles++ {
		t.Run(fmt.Sprintf("GPUs %d", handles), func(t *testing.T) { litmus(t, several(t, handles, 3)) })
		t.Run(fmt.Sprintf("GPUs %d staggered", handles), func(t *testing.T) { litmus(t, severalBy(t, cuda.OpenStaggered, handles, 3)) })
	}
}

func litmus(t *testing.T, devices []*cuda.Device) {
	const ranks, most, inGraph = 3, 200000, 60
	replays := 17000
	if testing.Short() {
		replays = 2
	}
	g, beside := newRigOn(t, devices, 1<<20), newRigOn(t, devices, 32<<20)
	c, err := New(g.devices)
	require.NoError(t, err)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Uint32, Count: most}, ranks, 3)
	for r := range ranks {
		s.place[r] = true
		copy(s.inputs[r], s.inputs[0]) // equal from the start
	}
	calls := s.lay(g)
	g.waitAll()
	var lead []cuda.Stream // one a GPU
	for i := range c.sites {
		lead = append(lead, g.streams[i])
	}
	for r := range calls {
		calls[r].Stream = lead[r%len(lead)]
	}
	rng := rand.New(rand.NewPCG(4, 9))
	times := make([]int, most) // that a graph multiplies an element
	was := tuned
	defer func() { tuned = was }()
	graphs := captured(t, c, lead, func() error {
		for range inGraph {
			tuned.allReduceLines = was.allReduceLines * int64(rng.IntN(2))
			n := 1 + rng.IntN(most)>>rng.IntN(8)
			for i := range n {
				times[i]++
			}
			for r := range calls {
				calls[r].Count = n
			}
			if err := c.Group(calls); err != nil {
				return err
			}
		}
		return nil
	})
	start := time.Now()
	for i := range replays {
		for k := range graphs {
			require.NoError(t, graphs[k].Launch(lead[k]))
		}
		if r := rng.IntN(ranks); i%2 == 0 {
			bytes := int64(1) << (10 + rng.IntN(15))
			require.NoError(t, beside.devices[r].Copy(beside.streams[r], []unsafe.Pointer{beside.dst[r].Ptr}, beside.src[r].Ptr, bytes))
		}
	}
	g.waitAll()
	t.Logf("%d calls in %v", replays*inGraph, time.Since(start))
	for r := range ranks {
		got := g.down(r, calls[r].Dst, 4*most)
		for i := range most {
			factor, whole := uint32(1), uint32(1)
			for range times[i] {
				factor *= ranks
			}
			for range replays {
				whole *= factor
			}
			want := binary.NativeEndian.Uint32(s.inputs[0][4*i:]) * whole
			if got := binary.NativeEndian.Uint32(got[4*i:]); got != want {
				t.Fatalf("rank %d, element %d: %d, want %d", r, i, got, want)
			}
		}
	}
	for i := range graphs {
		require.NoError(t, graphs[i].Destroy())
	}
	require.NoError(t, c.Close())
}

// captured returns what work queues, as a graph a GPU.
func captured(t *testing.T, c *Communicator, lead []cuda.Stream, work func() error) []*cuda.Graph {
	t.Helper()
	graphs := make([]*cuda.Graph, len(lead))
	for i := range lead {
		inner := work
		work = func() (err error) {
			graphs[i], err = c.sites[i].device.Capture(lead[i], inner)
			return err
		}
	}
	require.NoError(t, work())
	return graphs
}
