package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
)

// Ranks of one process work out once what all were told, and never what others were told.
func TestWorkIsDoneTogether(t *testing.T) {
	var common together[string]
	var worked atomic.Int32
	ask := func(words ...string) (string, error) {
		var all [][]byte
		for _, w := range words {
			all = append(all, []byte(w))
		}
		return common.do(all, func() (string, error) {
			worked.Add(1)
			return fmt.Sprint(words), errors.New(fmt.Sprint("no ", words))
		})
	}
	var ranks sync.WaitGroup
	for range 8 {
		ranks.Go(func() {
			got, err := ask("a", "bc")
			assert.Equal(t, "[a bc]", got)
			assert.EqualError(t, err, "no [a bc]")
		})
	}
	ranks.Wait()
	require.EqualValues(t, 1, worked.Load())
	for _, other := range [][]string{{"ab", "c"}, {"a"}, {"a", "bc", ""}, {}} {
		got, err := ask(other...)
		require.Equal(t, fmt.Sprint(other), got)
		require.EqualError(t, err, fmt.Sprint("no ", other))
	}
	got, _ := ask("a", "bc")
	require.Equal(t, "[a bc]", got)
	require.EqualValues(t, 5, worked.Load())
}

// joinAll makes a world of ranks of this process.
func joinAll(t *testing.T, n int, edit func(r int, c *Config)) (comms []*Comm, errs []error) {
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	comms, errs = make([]*Comm, n), make([]error, n)
	var ranks sync.WaitGroup
	for r := range n {
		ranks.Go(func() {
			c := Config{Rank: r, Size: n, ID: root.ID(), Logger: slog.New(slog.DiscardHandler)}
			edit(r, &c)
			comms[r], errs[r] = New(ctx, c)
		})
	}
	ranks.Wait()
	return comms, errs
}

// What follows from the hellos there is once in a process, and no meeting outlasts those who met, whether the world came to be or not.
func TestRanksOfAProcessMeet(t *testing.T) {
	met := func() int {
		meetings.mu.Lock()
		defer meetings.mu.Unlock()
		return len(meetings.at)
	}
	for _, transport := range []string{"tcp", "auto"} {
		comms, errs := joinAll(t, 6, func(r int, c *Config) { c.Transport, c.HostID = transport, fmt.Sprint(r%2) })
		for r, c := range comms {
			require.NoError(t, errs[r], "rank %d", r)
			require.Same(t, comms[0].family.places, c.family.places)
			require.Equal(t, comms[0].model, c.model)
		}
		require.Zero(t, met())
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
	_, errs := joinAll(t, 3, func(r int, c *Config) { c.Transport, c.MaxMessage = "tcp", 1<<20+r<<10 })
	for r, err := range errs {
		require.ErrorContains(t, err, "MaxMessage", "rank %d", r)
	}
	require.Zero(t, met())
	_, errs = joinAll(t, 3, func(r int, c *Config) { c.Transport = []string{"shm", "tcp", "tcp"}[r] })
	for r, err := range errs {
		require.ErrorContains(t, err, "have no transport in common", "rank %d", r)
	}
	require.Zero(t, met())
}
