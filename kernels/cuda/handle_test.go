package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// The handle of a stream that was destroyed is no other stream's while its work is not done: so who queues behind a stream may know it by its handle.
func TestHandleStaysTaken(t *testing.T) {
	d := cudatest.Open(t)
	stall := cudatest.NewStall(t, d)
	gone, err := d.NewStream()
	require.NoError(t, err)
	stall.Begin(gone)
	require.NoError(t, d.DestroyStream(gone))
	var list []cuda.Stream
	for range 1000 {
		s, err := d.NewStream()
		require.NoError(t, err)
		list = append(list, s)
	}
	for _, s := range list {
		require.NotEqual(t, gone, s)
		require.NoError(t, d.DestroyStream(s))
	}
	stall.End()
	require.NoError(t, d.Synchronize())
}
