//go:build linux && cgo

package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// about returns the lines of a log with some words.
func (l *lines) about(words string) (some []string) {
	for line := range strings.Lines(l.text()) {
		if strings.Contains(line, words) {
			some = append(some, line)
		}
	}
	return some
}

// newGPUDuo is a duo whose endpoints know a GPU, on two ports where there are two, with the log of the first.
func newGPUDuo(t *testing.T) (*duo, *cuda.Device, *lines) {
	needDevices(t, 1)
	gpu := cudatest.Open(t)
	log := &lines{}
	one, other := small(), small()
	one.GPUs, other.GPUs = []GPU{gpu}, []GPU{gpu}
	one.QPs, other.QPs = 2, 2
	if os.Getenv("GCCL_RDMA_VM") != "" {
		one.Devices, other.Devices = only("rxe0", "rxe5"), only("rxe0", "rxe5")
	}
	one.Log = slog.New(slog.NewTextHandler(log, nil))
	d := newDuo(t, testOptions(), one, other)
	d.pass(0, message(100))
	return d, gpu, log
}

// onGPU allocates memory of a GPU's that holds b.
func onGPU(t *testing.T, gpu *cuda.Device, b []byte) kernels.Mem {
	t.Helper()
	m, err := gpu.Alloc(int64(len(b)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gpu.Free(m)) })
	require.NoError(t, gpu.CopyNow(m.Ptr, unsafe.Pointer(&b[0]), m.Bytes))
	return m
}

// read is what memory of a GPU's holds.
func read(t *testing.T, gpu *cuda.Device, m kernels.Mem) []byte {
	t.Helper()
	b := make([]byte, m.Bytes)
	require.NoError(t, gpu.CopyNow(unsafe.Pointer(&b[0]), m.Ptr, m.Bytes))
	return b
}

func part(m kernels.Mem, at, n int64) kernels.Mem {
	return kernels.Mem{Ptr: unsafe.Add(m.Ptr, at), Bytes: n, Device: m.Device}
}

// do has the first rank do an operation, and waits until it is done.
func (d *duo) do(f func(transport.OneSided) (bool, error)) {
	d.Helper()
	one := d.conns[0].(transport.OneSided)
	before, err := one.Performed()
	require.NoError(d, err)
	d.until("room", func() bool {
		ok, err := f(one)
		require.NoError(d, err)
		return ok
	})
	d.performed(0, before+1)
}

// useGPU reads a peer's memory into ours on the GPU, and makes atomic operations whose results are there.
func (d *duo) useGPU(t *testing.T, gpu *cuda.Device, local transport.Region, mine kernels.Mem, token, theirs []byte) {
	w, err := d.conns[0].(transport.OneSided).Window(token)
	require.NoError(t, err)
	size := int(mine.Bytes)
	want := read(t, gpu, mine)
	for k, n := range []int{1, 8, 4096, 70_001, size - 13, size} {
		to, from := (size-n)*k/7, (size-n)*(k+1)/7
		d.do(func(one transport.OneSided) (bool, error) { return one.Get(local, int64(to), w, int64(from), n) })
		copy(want[to:], theirs[from:from+n])
		require.True(t, bytes.Equal(want, read(t, gpu, mine)), "%d bytes from %d to %d", n, from, to)
	}
	at := int64(size-4096) &^ 7
	had := binary.NativeEndian.Uint64(theirs[64:])
	for k := range uint64(3) {
		d.do(func(one transport.OneSided) (bool, error) { return one.FetchAdd(local, at, w, 64, 5) })
		require.Equal(t, had+5*k, binary.NativeEndian.Uint64(read(t, gpu, part(mine, at, 8))))
	}
	d.do(func(one transport.OneSided) (bool, error) { return one.CompareSwap(local, at+8, w, 64, had+15, had) })
	require.Equal(t, had+15, binary.NativeEndian.Uint64(read(t, gpu, part(mine, at+8, 8))))
}

// TestGPUMemory: one-sided operations use the memory of GPUs where it is, at both ends. How is told, in one line for each port.
func TestGPUMemory(t *testing.T) {
	d, gpu, log := newGPUDuo(t)
	const n = 3<<20 + 4096
	theirs := message(n)
	remote, local := onGPU(t, gpu, theirs), onGPU(t, gpu, make([]byte, n))
	// Not from its begin on, nor to its end.
	const skipped = 1 << 12
	theirs = theirs[skipped : n-skipped]
	mine := part(local, skipped, n-2*skipped)
	r, err := d.eps[1].Register(part(remote, skipped, n-2*skipped))
	require.NoError(t, err)
	l, err := d.eps[0].Register(mine)
	require.NoError(t, err)
	t.Log(l)
	require.Contains(t, l.String(), gpu.String())
	if strings.Contains(l.String(), viaStaging) {
		require.Empty(t, os.Getenv("GCCL_RDMA_VM"), "Soft-RoCE gets at the memory of emulated GPUs: %v", l)
		t.Skipf("the devices of this host do not get at its GPU's memory, which the RDMA virtual machine's do: %v", l)
	}
	token, err := r.Token()
	require.NoError(t, err)
	d.useGPU(t, gpu, l, mine, token, theirs)
	require.Equal(t, theirs[64:72], read(t, gpu, part(remote, skipped+64, 8)), "the last swap put back what was there")

	more, err := d.eps[0].Register(onGPU(t, gpu, make([]byte, 100)))
	require.NoError(t, err)
	told := log.about("GPUDirect RDMA")
	require.Len(t, told, len(d.eps[0].nics), "%q", told)
	if os.Getenv("GCCL_RDMA_VM") != "" {
		require.Len(t, told, 2)
		for i, line := range told {
			require.Contains(t, line, d.eps[0].nics[i].device.Name())
			require.Contains(t, line, "way="+viaPeerMemory)
			require.Contains(t, line, "DMA-BUF refused: ibv_reg_dmabuf_mr: operation not supported")
			require.Contains(t, l.String(), d.eps[0].nics[i].String()+" via nvidia-peermem (DMA-BUF refused: ")
		}
	}
	for _, x := range []transport.Region{r, l, more} {
		require.NoError(t, x.Close())
	}
}

// TestGPUMemoryIsFlushed: what arrived counts only when the GPU's kernels see it, where the GPU needs a flush for that.
func TestGPUMemoryIsFlushed(t *testing.T) {
	d, gpu, _ := newGPUDuo(t)
	cudatest.FailCall(t, 0)
	theirs, _, token := d.register(1, 1)
	mine := onGPU(t, gpu, make([]byte, 4096))
	l, err := d.eps[0].Register(mine)
	require.NoError(t, err)
	one := d.conns[0].(transport.OneSided)
	w, err := one.Window(token)
	require.NoError(t, err)
	d.do(func(one transport.OneSided) (bool, error) { return one.Get(l, 0, w, 0, 100) })
	cudatest.FailCall(t, 1)
	d.until("room", func() bool {
		ok, err := one.Get(l, 0, w, 0, 100)
		require.NoError(t, err)
		return ok
	})
	var done uint64
	d.until("the error", func() bool {
		done, err = one.Performed()
		return err != nil || done > 1
	})
	require.ErrorContains(t, err, "cuFlushGPUDirectRDMAWrites")
	require.ErrorContains(t, err, "100 bytes arrived")
	require.EqualValues(t, 1, done)

	// A GPU that cannot flush has its memory staged.
	other := onGPU(t, gpu, make([]byte, 4096))
	cudatest.FailCall(t, 4) // after three that look at the allocation
	staged, err := d.eps[0].Register(other)
	require.NoError(t, err)
	require.Contains(t, staged.String(), viaStaging)
	require.Contains(t, staged.String(), "cuFlushGPUDirectRDMAWrites")
	require.NoError(t, staged.Close())
	require.NoError(t, theirs.Close())
}

// TestUC69_StagedGPUMemory: memory that no device gets at is reached by way of the host's, as far as that can be, and why is told.
func TestUC69_StagedGPUMemory(t *testing.T) {
	d, gpu, log := newGPUDuo(t)
	cudatest.FailCall(t, 0) // of emulated GPUs the memory can be taken from devices, but not from the GPU
	theirs := pages(t, 800)
	copy(theirs, message(len(theirs)))
	r, err := d.eps[1].Register(kernels.MemOf(theirs))
	require.NoError(t, err)
	token, err := r.Token()
	require.NoError(t, err)
	local := onGPU(t, gpu, message(4<<20))
	mine := part(local, 12345*8, int64(len(theirs)))

	all := unsafe.Slice((*byte)(local.Ptr), local.Bytes)
	require.NoError(t, unix.Mprotect(all, unix.PROT_READ))
	l, err := d.eps[0].Register(mine)
	require.NoError(t, unix.Mprotect(all, unix.PROT_READ|unix.PROT_WRITE))
	require.NoError(t, err)
	t.Log(l)
	told := log.about("GPUDirect RDMA is off")
	require.Len(t, told, 1, "%s", log.text())
	for _, s := range []string{told[0], l.String()} {
		for _, word := range []string{viaStaging, "DMA-BUF refused: ", "nvidia-peermem refused: ibv_reg_mr: bad address: modprobe nvidia_peermem"} {
			require.Contains(t, s, word)
		}
	}
	d.useGPU(t, gpu, l, mine, token, theirs)
	require.True(t, bytes.Equal(message(4 << 20)[:12345*8], read(t, gpu, part(local, 0, 12345*8))), "what is beside it is as it was")

	_, err = l.Token()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "bad address")

	// What gave way to others is registered anew, by the way that is the best then.
	c := d.eps[0].cache
	c.mu.Lock()
	gone, err := c.evict()
	c.mu.Unlock()
	require.NoError(t, err)
	require.True(t, gone)
	d.useGPU(t, gpu, l, mine, token, theirs)
	require.Contains(t, l.String(), viaPeerMemory+" (")
	require.Empty(t, log.about("GPUDirect RDMA is off")[1:])
	require.NoError(t, l.Close())
	require.NoError(t, r.Close())
}

// TestGPURegions: a registration takes whole pages of the GPU's, so that what is registered beside it costs nothing; those of one GPU may overlap.
func TestGPURegions(t *testing.T) {
	d, gpu, _ := newGPUDuo(t)
	c := d.eps[0].cache
	const whole = 8 << 20
	m := onGPU(t, gpu, make([]byte, whole))
	spanOf := func(at, n int64) (transport.Region, *span) {
		r, err := d.eps[0].Register(part(m, at, n))
		require.NoError(t, err)
		return r, r.(*region).span
	}
	var regions []transport.Region
	first, a := spanOf(3<<20, 1)
	require.EqualValues(t, gpuPage, a.Bytes)
	require.Equal(t, uintptr(m.Ptr)+gpuPage, a.addr())
	second, b := spanOf(2<<20, gpuPage)
	require.Same(t, a, b)
	third, over := spanOf(3<<20, 2<<20)
	require.NotSame(t, a, over)
	require.EqualValues(t, 2*gpuPage, over.Bytes)
	_, e := spanOf(whole-8, 8)
	require.EqualValues(t, gpuPage, e.Bytes)
	require.Len(t, c.spans, 3)
	regions = append(regions, first, second, third)
	for _, r := range regions {
		require.NoError(t, r.Close())
	}
	require.Equal(t, []*span{e}, c.spans)
	// What the driver gives of its own pages is registered no farther than it goes.
	p, free, err := cudatest.Foreign(gpu, 5000)
	require.NoError(t, err)
	r, err := d.eps[0].Register(kernels.Mem{Ptr: p, Bytes: 5000, Device: gpu.Device()})
	require.NoError(t, err)
	require.EqualValues(t, 8192, r.(*region).span.Bytes)
	require.NoError(t, r.Close())
	require.NoError(t, free())

	for name, bad := range map[string]kernels.Mem{
		"beyond the end":    part(m, whole-4, 8),
		"of another GPU":    {Ptr: m.Ptr, Bytes: 8, Device: kernels.Device{Kind: kernels.CUDA, Ordinal: 7}},
		"nothing":           part(m, 0, 0),
		"less than nothing": part(m, 0, -1),
		"of the host":       {Ptr: unsafe.Pointer(unsafe.SliceData(pages(t, 1))), Bytes: 8, Device: gpu.Device()},
	} {
		_, err := d.eps[0].Register(bad)
		require.Error(t, err, name)
		t.Log(err)
	}
}

// beFull registers parts of a GPU's memory, one after the other, and prints how each is registered, and which are when all were.
func beFull() {
	gpu, err := cuda.Open(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gpu.Close()
	c := small()
	c.GPUs = []GPU{gpu}
	e, err := Open(c, testOptions())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	const parts = 4
	m, err := gpu.Alloc(parts * gpuPage)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gpu.Free(m)
	var regions [parts]*region
	for i := range regions {
		r, err := e.(*endpoint).Register(part(m, int64(i)*gpuPage, gpuPage))
		if err != nil {
			fmt.Println(err)
			return
		}
		regions[i] = r.(*region)
		fmt.Println(i, "by", r)
	}
	for i, r := range regions {
		fmt.Println(i, "is pinned:", r.span.mrs != nil)
	}
	for _, r := range regions[1:] {
		if _, err := r.Token(); err != nil {
			fmt.Println(err)
			return
		}
	}
	_, err = regions[0].Token()
	fmt.Println("all others are in use:", err)
}

// TestFullOfGPUMemory: where there is no room for one more range of a GPU's memory others give way, before it is staged.
func TestFullOfGPUMemory(t *testing.T) {
	needDevices(t, 1)
	if os.Getenv("GCCL_RDMA_VM") == "" {
		t.Skip("counts what Soft-RoCE pins of emulated GPUs' memory: make test-rdma has both")
	}
	cudatest.Open(t)
	out, err := child(t, "gpu", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "bash", "-c", `ulimit -l 8192; exec "$0" "$@"`).CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%s", out)
	for i := range 4 {
		require.Regexp(t, fmt.Sprintf(`(?m)^%d by .*%s`, i, viaPeerMemory), string(out))
		require.Contains(t, string(out), fmt.Sprintf("%d is pinned: %v", i, i > 0))
	}
	require.Regexp(t, `all others are in use: .*staging.*memlock is 8192 KiB`, string(out))
}
