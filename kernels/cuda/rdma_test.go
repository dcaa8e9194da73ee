package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// Memory, ours and that of CUDA's runtime, is given to network adapters as a descriptor of just the pages that were asked for.
func TestDMABuf(t *testing.T) {
	d := cudatest.Open(t)
	const n = 6 << 20
	m := alloc(t, d, n)
	if !d.Info().DMABuf {
		_, err := d.DMABuf(m)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	page := int64(os.Getpagesize())
	for _, at := range []int64{0, page, 2 << 20, n - page} {
		fd, err := d.DMABuf(part(m, at, page))
		require.NoError(t, err)
		file := os.NewFile(uintptr(fd), "DMA-BUF")
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		require.NoError(t, err)
		t.Logf("%d bytes at %d: %s", page, at, name)
		require.NoError(t, file.Close())
	}
	for name, bad := range map[string]kernels.Mem{
		"no pages":         part(m, 100, page),
		"beyond the end":   part(m, n-page, 4<<20),
		"nothing":          part(m, 0, 0),
		"less than that":   part(m, 0, -page),
		"not the driver's": kernels.MemOf(make([]byte, page)),
	} {
		fd, err := d.DMABuf(bad)
		require.Error(t, err, name)
		require.Equal(t, -1, fd)
	}
}

// An allocation is found from any part of it, and nothing else is one.
func TestAllocation(t *testing.T) {
	d := cudatest.Open(t)
	m := alloc(t, d, 4<<20)
	p, free, err := cudatest.Foreign(d, 1000)
	require.NoError(t, err)
	defer func() { require.NoError(t, free()) }()
	for _, whole := range []kernels.Mem{m, {Ptr: p, Bytes: 1000, Device: d.Device()}} {
		for _, at := range []int64{0, 1, whole.Bytes - 1} {
			got, err := d.Allocation(part(whole, at, 1))
			require.NoError(t, err)
			require.Equal(t, whole, got)
		}
		_, err := d.Allocation(part(whole, 1, whole.Bytes))
		require.ErrorIs(t, err, kernels.ErrInvalid)
	}
	_, err = d.Allocation(kernels.MemOf(make([]byte, 8)))
	require.Error(t, err)
}

// CopyNow is done when it returns, both ways, and waits for no other stream.
func TestCopyNow(t *testing.T) {
	d := cudatest.Open(t)
	m := alloc(t, d, 1<<20)
	want := kernelstest.Random(kernels.Uint8, 1<<20, 1)
	got := make([]byte, len(want))
	x, busy := cudatest.NewStall(t, d), stream(t, d)
	x.Begin(busy)
	defer x.End()
	require.NoError(t, d.CopyNow(m.Ptr, unsafe.Pointer(&want[0]), m.Bytes))
	require.NoError(t, d.CopyNow(unsafe.Pointer(&got[0]), m.Ptr, m.Bytes))
	require.Equal(t, want, got)
	done, err := d.Done(busy)
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, d.FlushWrites())
}

func part(m kernels.Mem, at, n int64) kernels.Mem {
	return kernels.Mem{Ptr: unsafe.Add(m.Ptr, at), Bytes: n, Device: m.Device}
}
