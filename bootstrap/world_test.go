package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// patience is far more than anything here takes, for tests on real sockets.
const patience = 60 * time.Second

// within returns a context for tests outside bubbles.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// checkLeaks fails the test if goroutines of the package are left at its end.
func checkLeaks(t testing.TB) {
	t.Cleanup(func() {
		var left string
		for range 500 {
			if left = packageGoroutines(); left == "" {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("goroutines left:\n%s", left)
	})
}

func packageGoroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(g, "gccl/bootstrap.") || strings.Contains(g, "gccl/bootstrap/auth.") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// host is the address of a rank's host in the network in memory; each rank has its own.
func host(rank int) string { return fmt.Sprintf("192.0.2.%d", rank+1) }

// inMemory runs f in a bubble with a network and an id whose root listens at rank 0's host.
func inMemory(t *testing.T, f func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		id, err := bootstrap.DeriveID(host(0)+":29500", "a secret for tests")
		require.NoError(t, err)
		f(t, bootstraptest.New(), id)
	})
}

// testLog is nil, or what GCCL_TEST_LOG=1 shows of the sessions in memory, to look into a history.
var testLog = func() *slog.Logger {
	if os.Getenv("GCCL_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}()

func config(n *bootstraptest.Net, id bootstrap.ID, rank, world int) bootstrap.Config {
	return bootstrap.Config{Rank: rank, World: world, ID: id, Serve: true, Network: n.Host(host(rank)), Log: testLog}
}

// each runs f for every rank, each on its own goroutine, and waits for all.
func each(n int, f func(rank int)) {
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// job joins n ranks in memory, runs f on each, and closes all when all are done.
func job(t *testing.T, n int, f func(s bootstrap.Session)) {
	t.Helper()
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		sessions := joinAll(t, net, id, n)
		each(n, func(r int) { f(sessions[r]) })
		closeAll(sessions)
		require.Zero(t, net.Conns())
	})
}

func joinAll(t *testing.T, net *bootstraptest.Net, id bootstrap.ID, n int) []bootstrap.Session {
	t.Helper()
	sessions := make([]bootstrap.Session, n)
	errs := make([]error, n)
	each(n, func(r int) { sessions[r], errs[r] = bootstrap.Join(context.Background(), config(net, id, r, n)) })
	require.NoError(t, errors.Join(errs...))
	return sessions
}

func closeAll(sessions []bootstrap.Session) { each(len(sessions), func(r int) { sessions[r].Close() }) }

// loopback joins n ranks over real sockets, runs f on each, and closes them.
func loopback(t testing.TB, n int, f func(ctx context.Context, s bootstrap.Session)) {
	t.Helper()
	ctx := within(t, patience)
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	each(n, func(r int) {
		s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: r, World: n, ID: root.ID()})
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		f(ctx, s)
	})
	if n > 1 { // a world of one does not need it
		if err := root.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
}
