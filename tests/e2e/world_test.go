//go:build linux

package e2e

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/transport/mem"
)

// world makes n ranks in this process, each with what edit does to its configuration, and closes them after the test.
func world(t testing.TB, n int, edit func(c *comm.Config)) []*comm.Comm {
	t.Helper()
	comms := open(t, n, edit)
	t.Cleanup(func() { each(n, func(r int) { comms[r].Close() }) })
	return comms
}

// open is world for those who close themselves.
func open(t testing.TB, n int, edit func(c *comm.Config)) []*comm.Comm {
	t.Helper()
	root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	comms, errs := make([]*comm.Comm, n), make([]error, n)
	each(n, func(r int) {
		cfg := comm.Config{Rank: r, Size: n, ID: root.ID(), Logger: quiet}
		edit(&cfg)
		comms[r], errs[r] = comm.New(context.Background(), cfg)
	})
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	require.NoError(t, root.Close())
	return comms
}

// quiet drops what gccl logs.
var quiet = slog.New(slog.DiscardHandler)

// each runs f for every rank in a goroutine of its own.
func each(n int, f func(r int)) {
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// overTransport makes all ranks of a world in this process use one transport.
func overTransport(name string) func(*comm.Config) {
	var network mem.Network
	return func(c *comm.Config) {
		c.Transport = name
		if name == "mem" {
			c.Memory = &network
		}
	}
}

// shmIn puts shared memory into a directory of the test's own.
func shmIn(t testing.TB) func(*comm.Config) {
	dir, err := os.MkdirTemp("/dev/shm", "e2e-test-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return func(c *comm.Config) { c.Transport, c.ShmDir = "shm", dir }
}

// rootFor serves a root.
func rootFor(t testing.TB, timeout time.Duration) *bootstrap.Root {
	t.Helper()
	root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0", Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}
