package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// TestDeviceDriverFailures has each driver call of two ranks' lives fail once: nobody hangs or panics, who fails says what the driver said, the
// other one has an error too or its result, and all memory comes back.
func TestDeviceDriverFailures(t *testing.T) {
	needGPU(t)
	driverFailures(t, func(int) comm.Config { return comm.Config{Device: gpu0} })
}

// TestDeviceProxyDriverFailures is the same between ranks that take each other to be on other hosts.
func TestDeviceProxyDriverFailures(t *testing.T) {
	needGPU(t)
	driverFailures(t, func(r int) comm.Config { return comm.Config{Device: gpu0, HostID: fmt.Sprint("host ", r)} })
}

// driverFailures has each of the driver's calls fail in turn that two ranks make in a short life.
func driverFailures(t *testing.T, config func(r int) comm.Config) {
	const n = 1000
	var devices []*cuda.Device
	for r := range 2 {
		d, err := cuda.Open(int(config(r).Device.Ordinal))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		devices = append(devices, d)
	}
	life := func() []error {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		defer root.Close()
		errs := make([]error, 2)
		each(2, func(r int) {
			errs[r] = func() (err error) {
				cfg := config(r)
				cfg.Rank, cfg.Size, cfg.ID, cfg.InitTimeout, cfg.CallTimeout = r, 2, root.ID(), 20*time.Second, 20*time.Second
				c, err := comm.New(ctx, cfg)
				if err != nil {
					return err
				}
				defer func() {
					if err != nil {
						c.Abort(err)
					}
					err = errors.Join(err, c.Close())
				}()
				m, err := c.AllocOn(cfg.Device, 4*n)
				if err != nil {
					return err
				}
				if err := c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: n, DType: kernels.Float32}); err != nil {
					return err
				}
				return errors.Join(devices[r].Wait(0), c.Err())
			}()
		})
		return errs
	}
	require.NoError(t, errors.Join(life()...))
	left := func() (bytes int64) {
		for _, d := range devices {
			n, _, err := d.MemInfo()
			require.NoError(t, err)
			bytes += n
		}
		return bytes
	}
	before := left()
	at, step := 1, 1
	if testing.Short() {
		step = 3
	}
	// An executable graph that cannot be told what to launch, which is launched by itself; shared memory that cannot be pinned, for which other memory does.
	unnoticed := 0
	for ; ; at += step {
		cudatest.FailCall(t, at)
		errs := life()
		if cudatest.FailCall(t, 0) > 0 {
			require.NoError(t, errors.Join(errs...))
			break
		}
		if errors.Join(errs...) == nil && unnoticed < 6 { // one a rank, at varying places
			unnoticed++
			continue
		}
		require.ErrorContains(t, errors.Join(errs...), "CUDA_ERROR_UNKNOWN (999)", "call %d", at)
		require.Equal(t, before, left(), "call %d: %v", at, errs)
	}
	t.Logf("of %d driver calls every one, or every %dth, failed", at-1, step)
	require.Greater(t, at, 5)
}
