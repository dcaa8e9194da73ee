package comm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// TestDeviceDriverFailures has each driver call of two ranks' lives fail once: nobody hangs or panics, who fails says what the driver said, the
// other one has an error too or its result, and all memory comes back.
func TestDeviceDriverFailures(t *testing.T) {
	d := needGPU(t)
	const n = 1000
	life := func() []error {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		defer root.Close()
		errs := make([]error, 2)
		each(2, func(r int) {
			errs[r] = func() (err error) {
				c, err := comm.New(ctx, comm.Config{Rank: r, Size: 2, ID: root.ID(), Device: gpu0, InitTimeout: 20 * time.Second, CallTimeout: 20 * time.Second})
				if err != nil {
					return err
				}
				defer func() {
					if err != nil {
						c.Abort(err)
					}
					err = errors.Join(err, c.Close())
				}()
				m, err := c.AllocOn(gpu0, 4*n)
				if err != nil {
					return err
				}
				if err := c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: n, DType: kernels.Float32}); err != nil {
					return err
				}
				return d.Wait(0)
			}()
		})
		return errs
	}
	require.NoError(t, errors.Join(life()...))
	before, _, err := d.MemInfo()
	require.NoError(t, err)
	at, step := 1, 1
	if testing.Short() {
		step = 3
	}
	for ; ; at += step {
		cudatest.FailCall(t, at)
		errs := life()
		if cudatest.FailCall(t, 0) > 0 {
			require.NoError(t, errors.Join(errs...))
			break
		}
		require.ErrorContains(t, errors.Join(errs...), "CUDA_ERROR_UNKNOWN (999)", "call %d", at)
		after, _, err := d.MemInfo()
		require.NoError(t, err)
		require.Equal(t, before, after, "call %d: %v", at, errs)
	}
	t.Logf("of %d driver calls every one, or every %dth, failed", at-1, step)
	require.Greater(t, at, 5)
}
