package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// TestDriverFailures has each driver call of a communicator's life fail once: there is an error that keeps the driver's, nothing hangs,
// all memory comes back, and the next communicator works on the same streams.
func TestDriverFailures(t *testing.T) {
	for _, row := range []struct {
		name           string
		handles, ranks int
		algorithm      string // named: between events
		count          int
	}{
		{"one GPU", 1, 3, "", 1000},
		{"lines", 2, 4, "", 1000},
		{"pushes", 2, 2, "", 20000},
		{"events", 2, 4, "ring", 1000},
	} {
		t.Run(row.name, func(t *testing.T) {
			if was := tuned; row.name == "pushes" {
				tuned.allReduceLines = 0
				defer func() { tuned = was }()
			}
			g := newRigOn(t, several(t, row.handles, row.ranks), 1<<20)
			s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Int32, Count: row.count, Algorithm: row.algorithm}, row.ranks, 1)
			life := func(calls []Call) error {
				c, err := New(g.devices)
				if err != nil {
					return err
				}
				err = c.Group(calls)
				if err2 := c.Close(); err == nil {
					err = err2
				}
				return err
			}
			calls := s.lay(g)
			require.NoError(t, life(calls))
			g.waitAll()
			free := func(d *cuda.Device) int64 {
				n, _, err := d.MemInfo()
				require.NoError(t, err)
				return n
			}
			before := free(g.d)
			n, quiet := 1, 0
			for ; ; n++ {
				cudatest.FailCall(t, n)
				err := life(calls)
				if cudatest.FailCall(t, 0) > 0 {
					require.NoError(t, err)
					break
				}
				g.waitAll()
				if err == nil { // a graph that could not be told what to launch
					quiet++
					s.check(g, calls)
				} else {
					require.ErrorContains(t, err, "CUDA_ERROR_UNKNOWN (999)", "call %d", n)
				}
				require.Equal(t, before, free(g.d), "call %d", n)
				calls = s.lay(g)
				require.NoError(t, life(calls), "after call %d", n)
				s.check(g, calls)
			}
			t.Logf("%d driver calls failed", n-1)
			require.Greater(t, n, 5)
			require.Less(t, quiet, n/6, "calls that failed without an error")
		})
	}
}
