package comm_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// logLines keeps what several goroutines log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logLines) lines() []string { return strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n") }

// TestOneNameFindsAllLines: whatever is said of a job, by package bootstrap too, has the name that errors and records have of the world's communicator.
func TestOneNameFindsAllLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		var log logLines
		logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		h := &hosts{network: bootstraptest.New(), comms: make([]*comm.Comm, n)}
		root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: host(0) + ":1", Network: h.network.Host(host(0)), Log: logger})
		require.NoError(t, err)
		errs := make([]error, n)
		each(n, func(r int) {
			cfg := h.config(r, n, root.ID())
			cfg.Logger, cfg.WarnAfter = logger, time.Second
			h.comms[r], errs[r] = comm.New(background, cfg)
		})
		require.NoError(t, errors.Join(errs...))
		require.NoError(t, root.Close())
		world := h.comms[0].Record().Comm

		subs := make([]*comm.Comm, n)
		each(n, func(r int) { subs[r], errs[r] = h.comms[r].Split(background, 0, -r) })
		require.NoError(t, errors.Join(errs...))
		sub := subs[0].Record().Comm
		require.NotEqual(t, world, sub)

		for _, comms := range [][]*comm.Comm{subs, h.comms} { // rank 2 comes late, is warned of, and then is dead
			each(n, func(r int) {
				if r == 2 {
					time.Sleep(3 * time.Second)
				}
				errs[r] = comm.AllReduce(background, comms[r], make([]float32, 1), make([]float32, 1), kernels.Sum)
			})
			require.NoError(t, errors.Join(errs...))
		}
		each(n, func(r int) {
			if r == 2 {
				h.kill(2)
				return
			}
			err := comm.AllReduce(background, h.comms[r], make([]float32, 1), make([]float32, 1), kernels.Sum)
			var e *comm.Error
			if errors.As(err, &e) && e.Comm != world {
				t.Errorf("rank %d: %s of communicator %s", r, err, world)
			}
			if err == nil {
				t.Errorf("rank %d: no error", r)
			}
		})
		each(n, func(r int) { subs[r].Close(); h.comms[r].Close() })

		said := map[string]map[string]bool{}
		for _, line := range log.lines() {
			var attributes map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &attributes), line)
			require.Equal(t, 1, strings.Count(line, `"comm":`), line)
			name, _ := attributes["comm"].(string)
			require.Equal(t, 1, strings.Count(line, world), "once, as comm or as world: %s", line)
			if name == sub {
				require.Equal(t, world, attributes["world"], line)
			}
			msg := attributes["msg"].(string)
			if said[msg] == nil {
				said[msg] = map[string]bool{}
			}
			said[msg][name] = true
		}
		for msg, names := range map[string][]string{"all ranks joined": {world}, "communicator ready": {world}, "a call waits": {world, sub}, "a rank is dead": {world, sub}} {
			for _, name := range names {
				require.True(t, said[msg][name], "%s of %s: %v", msg, name, said)
			}
		}
	})
}

// TestErrorOfNewHasTheNameOfTheLines: so has an error of New, once ranks have met.
func TestErrorOfNewHasTheNameOfTheLines(t *testing.T) {
	const n = 2
	var log logLines
	root, err := bootstrap.ListenRoot(t.Context(), bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	each(n, func(r int) {
		_, err := comm.New(t.Context(), comm.Config{Rank: r, Size: n, ID: root.ID(), Transport: "tcp", Topology: "/nonexistent", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		var e *comm.Error
		if errors.As(err, &e) && strings.Contains(err.Error(), "did not all meet") { // it was in Join still when the other gave up
			if e.Comm != "" {
				t.Errorf("rank %d: %v, want no id of what did not come to be", r, err)
			}
			return
		}
		if e == nil || !strings.Contains(log.lines()[0], " comm="+e.Comm+" ") {
			t.Errorf("rank %d: %v, but lines say %q", r, err, log.lines())
		}
	})
	require.NoError(t, root.Close())
}
