package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pages are one page, mapped once for each rank.
func pages(t *testing.T, n int) []*page {
	t.Helper()
	path, nonce, err := newPage(t.TempDir(), n)
	require.NoError(t, err)
	all := make([]*page, n)
	for rank := range all {
		all[rank], err = openPage(path, nonce, rank, n)
		require.NoError(t, err)
		t.Cleanup(func() { all[rank].close() })
	}
	require.NoError(t, os.Remove(path))
	return all
}

func TestPageHoldsEverybodyBack(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		var arrived atomic.Int64
		var wait sync.WaitGroup
		const rounds = 300
		for _, p := range pages(t, n) {
			wait.Go(func() {
				for round := range int64(rounds) {
					arrived.Add(1)
					if err := p.wait(context.Background()); err != nil {
						t.Error(err)
						return
					}
					// All are here for this round, and nobody can be two rounds ahead.
					if got := arrived.Load(); got < (round+1)*int64(n) || got > (round+2)*int64(n) {
						t.Errorf("%d of %d ranks: %d arrivals in round %d", p.rank, n, got, round)
						return
					}
				}
			})
		}
		wait.Wait()
	}
}

func TestPageNamesMissingRank(t *testing.T) {
	p := pages(t, 3)
	p[0].patience, p[1].patience = 50*time.Millisecond, 50*time.Millisecond
	done := make(chan error)
	go func() { done <- p[1].wait(context.Background()) }()
	err := p[0].wait(context.Background())
	require.ErrorContains(t, err, "rank 2")
	require.ErrorContains(t, <-done, "rank 2")

	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("enough")
	cancel(reason)
	require.ErrorIs(t, pages(t, 2)[0].wait(ctx), reason)
}

func TestPageIsProven(t *testing.T) {
	dir := t.TempDir()
	path, nonce, err := newPage(dir, 2)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	_, err = openPage(path, "another"+nonce[7:], 1, 2)
	require.ErrorContains(t, err, "not the page of this run")
	_, err = openPage(path, nonce, 1, 3)
	require.ErrorContains(t, err, "not the page of this run")
	_, err = openPage(filepath.Join(dir, "elsewhere"), nonce, 1, 2)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = newPage(filepath.Join(dir, "no such folder"), 2)
	require.ErrorIs(t, err, os.ErrNotExist)
}
