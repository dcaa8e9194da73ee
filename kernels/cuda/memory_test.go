package cuda_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// Exported memory is the same memory elsewhere: in this process, after it was freed here, and in another process.
func TestImport(t *testing.T) {
	if fd := os.Getenv("GCCL_TEST_IMPORT"); fd != "" {
		importInChild(t)
		return
	}
	d := cudatest.Open(t)
	if !d.Info().Exportable {
		t.Skip("this device's memory cannot be exported")
	}
	const n = 3 << 20
	s := stream(t, d)
	m := alloc(t, d, n)
	want := kernelstest.Random(kernels.Uint8, n, 1)
	upload(t, d, s, m.Ptr, want)
	fd, err := d.Export(m)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "memory")
	defer file.Close()

	there, err := d.Import(fd, n)
	require.NoError(t, err)
	require.NotEqual(t, m.Ptr, there.Ptr)
	require.NoError(t, d.Check(there))
	require.True(t, bytes.Equal(want, download(t, d, s, there.Ptr, n)))

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestImport$", "-test.v")
	child.Env = append(os.Environ(), "GCCL_TEST_IMPORT=3")
	child.ExtraFiles = []*os.File{file}
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for i := range want {
		want[i] ^= 0xFF
	}
	require.True(t, bytes.Equal(want, download(t, d, s, there.Ptr, n)), "the other process complemented every byte")

	require.NoError(t, d.Free(m))
	require.True(t, bytes.Equal(want, download(t, d, s, there.Ptr, n)), "it stays while it is mapped")
	require.NoError(t, d.Free(there))
	_, err = d.Import(-1, n)
	require.Error(t, err)
	_, err = d.Import(fd, -1)
	require.ErrorIs(t, err, kernels.ErrInvalid)
	_, err = d.Export(m)
	require.ErrorIs(t, err, kernels.ErrInvalid)
}

// importInChild complements the bytes that the parent exported, in a kernel.
func importInChild(t *testing.T) {
	d := cudatest.Open(t)
	const n = 3 << 20
	m, err := d.Import(3, n)
	require.NoError(t, err)
	minus := alloc(t, d, n)
	s := stream(t, d)
	upload(t, d, s, minus.Ptr, bytes.Repeat([]byte{0xFF}, n))
	// ^x = -1 - x = 255·x + 255 in bytes.
	require.NoError(t, d.Fold(s, kernels.Uint8, kernels.Prod, m.Ptr, []unsafe.Pointer{m.Ptr, minus.Ptr}, n))
	require.NoError(t, d.Fold(s, kernels.Uint8, kernels.Sum, m.Ptr, []unsafe.Pointer{m.Ptr, minus.Ptr}, n))
	require.NoError(t, d.Wait(s))
	require.NoError(t, d.Free(m))
}

// Fabric handles work where the device says so, and are refused with the reason where it does not.
func TestFabricHandles(t *testing.T) {
	d := cudatest.Open(t)
	m := alloc(t, d, 1000)
	handle, err := d.ExportFabric(m)
	if !d.Info().Fabric {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "IMEX")
		t.Log("none: ", err)
		return
	}
	require.NoError(t, err)
	there, err := d.ImportFabric(handle, 1000)
	require.NoError(t, err)
	s := stream(t, d)
	upload(t, d, s, m.Ptr, []byte("through the fabric"))
	require.Equal(t, "through the fabric", string(download(t, d, s, there.Ptr, 18)))
	require.NoError(t, d.Free(there))
}

// Memory that CUDA's runtime allocated is as good as ours: it is known, folded and copied, also in a graph.
func TestForeignMemory(t *testing.T) {
	d := cudatest.Open(t)
	s := stream(t, d)
	p, free, err := cudatest.Foreign(d, 1<<20)
	require.NoError(t, err)
	m := alloc(t, d, 1<<20)
	a, b := kernelstest.Random(kernels.Float32, 1000, 1), kernelstest.Random(kernels.Float32, 1000, 2)
	require.NoError(t, d.Check(kernels.Mem{Ptr: p, Bytes: 1 << 20, Device: d.Device()}))
	require.ErrorIs(t, d.Check(kernels.Mem{Ptr: unsafe.Add(p, 1), Bytes: 1 << 40, Device: d.Device()}), kernels.ErrInvalid)
	upload(t, d, s, p, a)
	upload(t, d, s, m.Ptr, b)
	out := unsafe.Add(p, 8192)
	g, err := d.Capture(s, func() error {
		return d.Fold(s, kernels.Float32, kernels.Sum, out, []unsafe.Pointer{p, m.Ptr}, 1000)
	})
	require.NoError(t, err)
	require.NoError(t, g.Launch(s))
	require.Equal(t, kernelstest.Reduce(kernels.Float32, kernels.Sum, [][]byte{a, b}), download(t, d, s, out, 4000))
	require.NoError(t, d.Copy(s, []unsafe.Pointer{m.Ptr}, out, 4000))
	require.Equal(t, download(t, d, s, out, 4000), download(t, d, s, m.Ptr, 4000))
	require.NoError(t, g.Destroy())
	require.ErrorIs(t, d.Free(kernels.Mem{Ptr: p}), kernels.ErrInvalid, "it is not ours to free")
	_, err = d.Export(kernels.Mem{Ptr: p})
	require.ErrorIs(t, err, kernels.ErrInvalid)
	require.NoError(t, free())
}

// TestUC69_AdaptersReachMemory: memory is made for adapters where the device says that they can reach it, in its own granules.
func TestUC69_AdaptersReachMemory(t *testing.T) {
	d := cudatest.Open(t)
	info := d.Info()
	t.Logf("GPUDirect RDMA %v, DMA-BUF %v, descriptors %v, fabric %v", info.DirectRDMA, info.DMABuf, info.Exportable, info.Fabric)
	m := alloc(t, d, 1)
	capable, err := cuda.RDMACapable(d, m.Ptr)
	require.NoError(t, err)
	require.Equal(t, info.DirectRDMA, capable, "the driver's word on the pointer")
	require.NoError(t, d.Free(m))
}
