package gpu

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A rank that does not join is named by all who wait, and the same id can be joined anew. No GPU is touched before all are there.
func TestJoinNamesMissingRanks(t *testing.T) {
	var p Process
	d := &cuda.Device{}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for _, r := range []int{0, 2} {
			wg.Go(func() { _, errs[r] = p.Join(ctx, 7, r, 4, d) })
		}
		wg.Wait()
		cancel()
		for _, r := range []int{0, 2} {
			var missing *MissingError
			if !errors.As(errs[r], &missing) {
				// The other one had given up before we came: then we waited alone.
				t.Fatalf("rank %d: %v", r, errs[r])
			}
			require.Contains(t, missing.Ranks, 1)
			require.Contains(t, missing.Ranks, 3)
			require.ErrorIs(t, missing, context.DeadlineExceeded)
		}
	}
	require.Empty(t, p.gathering)
}

func TestJoinRefusesNonsense(t *testing.T) {
	var p Process
	d := &cuda.Device{}
	for _, row := range []struct{ rank, ranks int }{{-1, 2}, {2, 2}, {0, 0}, {0, MaxRanks + 1}} {
		_, err := p.Join(t.Context(), 1, row.rank, row.ranks, d)
		require.Error(t, err, "%+v", row)
	}
	_, err := p.Join(t.Context(), 1, 0, 2, nil)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := p.Join(ctx, 1, 0, 2, d)
		waited <- err
	}()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.gathering[1] != nil
	}, time.Minute, time.Millisecond)
	_, err = p.Join(ctx, 1, 0, 2, d)
	require.ErrorContains(t, err, "already", "rank 0 twice")
	_, err = p.Join(ctx, 1, 1, 3, d)
	require.ErrorContains(t, err, "has 2 ranks")
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
}

// Ranks that join run collectives; when one closes, the others get an error that says who, and the last one frees everything.
func TestMembersOnGPU(t *testing.T) {
	g := newRig(t, 3, 1<<20)
	var p Process
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 3, 1)
	calls := s.lay(g)
	g.waitAll()
	var wg sync.WaitGroup
	members, errs := make([]*Member, 3), make([]error, 3)
	for r := range 3 {
		wg.Go(func() {
			if members[r], errs[r] = p.Join(t.Context(), 9, r, 3, g.d); errs[r] == nil {
				errs[r] = members[r].Do(t.Context(), calls[r])
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Same(t, members[0].Communicator(), members[2].Communicator())
	s.check(g, calls)
	require.NoError(t, members[1].Close())
	require.NoError(t, members[1].Close())
	require.ErrorContains(t, members[0].Do(t.Context(), calls[0]), "rank 1 has closed")
	require.NoError(t, members[0].Close())
	require.NoError(t, members[2].Close())
	require.ErrorIs(t, members[2].Do(t.Context(), calls[2]), ErrClosed)
}
