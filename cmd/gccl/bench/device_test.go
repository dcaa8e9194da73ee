package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

func deviceConfig(t *testing.T) Config {
	t.Helper()
	k, err := ParseKind("all_reduce")
	require.NoError(t, err)
	return Config{Kind: k, Sizes: Sizes{Min: 1 << 10, Max: 1 << 10, Factor: 2}, Iters: 21, Agg: 1, Checks: 1,
		DTypes: []kernels.DType{kernels.Float32}, Ops: []Op{OpOf(kernels.Sum)}, Roots: []int{0}}
}

// TestDeviceRows: the table and the bandwidths are of the median, and what JSON calls the mean is the mean.
func TestDeviceRows(t *testing.T) {
	cudatest.Open(t)
	var table, lines bytes.Buffer
	result, err := RunOnDevice(t.Context(), deviceConfig(t), 2, Devices{GPUs: []int{0}}, comm.Config{}, Output{Table: &table, JSON: &lines})
	require.NoError(t, err)
	require.Zero(t, result.Wrong)
	require.Len(t, result.Rows, 2)
	for line := range strings.Lines(lines.String()) {
		var r Row
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.NotEqual(t, r.TimeUS.P50, r.TimeUS.Mean, "of 21 iterations")
		require.GreaterOrEqual(t, r.TimeUS.Mean, r.TimeUS.Min)
		require.LessOrEqual(t, r.TimeUS.Mean, r.TimeUS.P99)
		require.InEpsilon(t, float64(r.Bytes)/r.TimeUS.P50/1e3, *r.AlgBW, 1e-9)
		require.Contains(t, table.String(), "  "+short(r.TimeUS.P50)+" ")
	}
}

// TestDeviceRunEndsWithItsContext: it ends where it is, and for no other reason. A graph's replays don't look at the context by themselves.
func TestDeviceRunEndsWithItsContext(t *testing.T) {
	cudatest.Open(t)
	enough := errors.New("enough")
	for name, change := range map[string]func(*Config, *Devices){
		"calls":      func(c *Config, _ *Devices) { c.Agg = 1<<31 - 1 },
		"capture":    func(c *Config, d *Devices) { c.Agg, d.Graph = 1<<31-1, true },
		"iterations": func(c *Config, d *Devices) { c.Warmup, d.Graph = 1<<31-1, true },
	} {
		cfg, on := deviceConfig(t), Devices{GPUs: []int{0}}
		change(&cfg, &on)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		done := make(chan error, 1)
		go func() {
			_, err := RunOnDevice(ctx, cfg, 2, on, comm.Config{}, Output{})
			done <- err
		}()
		select {
		case err := <-done:
			require.ErrorIs(t, err, enough, name)
			require.NotContains(t, err.Error(), "cuEvent", "the reason alone")
		case <-time.After(2 * time.Minute):
			require.Fail(t, "still running two minutes after the end", name)
		}
	}
}

func TestDeviceRunSaysWhatMemoryItLacks(t *testing.T) {
	cfg := deviceConfig(t)
	cfg.Sizes.Max = 1 << 20
	r := &deviceRunner{cfg: &cfg, world: 8}
	require.NoError(t, r.checkMemory(16<<20))
	require.ErrorContains(t, r.checkMemory(16<<20-1), "-e 1M needs 2.0 MiB on the host for each of 8 ranks")
	r.apart = true
	require.NoError(t, r.checkMemory(2<<20), "the others check for themselves")
	cfg.Iters = 1 << 20
	require.ErrorContains(t, r.checkMemory(64<<20), "-n 1048576 needs 72.0 MiB", "everybody's")
	r.apart = false
	require.NoError(t, r.checkMemory(64<<20))
}
