package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

func stream(t testing.TB, d *cuda.Device) cuda.Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Wait(s))
		require.NoError(t, d.DestroyStream(s))
	})
	return s
}

func alloc(t testing.TB, d *cuda.Device, n int64) kernels.Mem {
	t.Helper()
	m, err := d.Alloc(n)
	require.NoError(t, err)
	return m
}

// upload and download wait for the copy.
func upload(t testing.TB, d *cuda.Device, s cuda.Stream, p unsafe.Pointer, b []byte) {
	t.Helper()
	if len(b) > 0 {
		require.NoError(t, d.CopyAny(s, p, unsafe.Pointer(&b[0]), int64(len(b))))
		require.NoError(t, d.Wait(s))
	}
}

func download(t testing.TB, d *cuda.Device, s cuda.Stream, p unsafe.Pointer, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if n > 0 {
		require.NoError(t, d.CopyAny(s, unsafe.Pointer(&b[0]), p, int64(n)))
		require.NoError(t, d.Wait(s))
	}
	return b
}

// Without a driver everything says so; with one, a number that is out of range does.
func TestDeviceThatIsNotThere(t *testing.T) {
	n, err := cuda.Count()
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "libcuda.so.1")
		_, err = cuda.Open(0)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "libcuda.so.1")
		return
	}
	_, err = cuda.Open(n)
	require.ErrorIs(t, err, kernels.ErrInvalid)
}

// What an old driver does not know of a device, the device has not got.
func TestAttributeUnknownToTheDriver(t *testing.T) {
	d := cudatest.Open(t)
	const multiprocessors = 16
	v, err := cuda.Attribute(d, multiprocessors)
	require.NoError(t, err)
	require.Equal(t, d.Info().Multiprocessors, v)
	v, err = cuda.Attribute(d, 1<<19)
	require.NoError(t, err)
	require.Zero(t, v)
}

func TestDeviceDescribesItself(t *testing.T) {
	start := time.Now()
	d := cudatest.Open(t)
	info := d.Info()
	t.Logf("%+v, opened in %v", info, time.Since(start))
	require.NotEmpty(t, info.Name)
	require.NotZero(t, info.UUID)
	require.GreaterOrEqual(t, info.Major, 8)
	require.GreaterOrEqual(t, info.Driver, 11000)
	require.Positive(t, info.Multiprocessors)
	require.Equal(t, "cuda:0", d.String())
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.LessOrEqual(t, free, total)
}

// Every kernel that the host may ask for is in the PTX, and the PTX has no other.
func TestKernelsAreInThePTX(t *testing.T) {
	text, err := cuda.PTX()
	require.NoError(t, err)
	var have []string
	for _, m := range regexp.MustCompile(`\.visible \.entry (\w+)`).FindAllSubmatch(text, -1) {
		have = append(have, string(m[1]))
	}
	require.ElementsMatch(t, cuda.KernelNames(), have)
	require.NotContains(t, string(text), "griddepcontrol", "launches that overlap could wait for each other")
}

// host is GPU 0 as kernelstest wants a device: functions on host memory. Buffers are laid out in pinned memory that the kernels use
// where it lies, at the same offsets as the caller's, between canaries.
type host struct {
	t testing.TB
	d *cuda.Device
	s cuda.Stream
	p cuda.Pinned
}

const arena, canary = 128 << 10, 0x5A

func newHost(t testing.TB) *host {
	d := cudatest.Open(t)
	h := &host{t: t, d: d, s: stream(t, d)}
	var err error
	h.p, err = d.AllocPinned(16 * arena)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.FreePinned(h.p)) })
	return h
}

// run lays out sources and destination of n bytes, has fold queued, and brings the destination back.
func (h *host) run(dst unsafe.Pointer, srcs []unsafe.Pointer, n int, fold func(dst unsafe.Pointer, srcs []unsafe.Pointer) error) {
	h.t.Helper()
	at := func(k int, p unsafe.Pointer) int { return k*arena + 64 + int(uintptr(p)%64) }
	target := len(srcs)
	moved := make([]unsafe.Pointer, len(srcs))
	mem := unsafe.Slice((*byte)(h.p.Host), 16*arena)
	for k, src := range srcs {
		if src == dst {
			target = k
		}
		moved[k] = unsafe.Add(h.p.Device, at(k, src))
		copy(mem[at(k, src):], unsafe.Slice((*byte)(src), n))
	}
	from := at(target, dst)
	for i := range 64 {
		mem[from-1-i], mem[from+n+i] = canary, canary
	}
	require.NoError(h.t, fold(unsafe.Add(h.p.Device, from), moved))
	require.NoError(h.t, h.d.Wait(h.s))
	for i := range 64 {
		if mem[from-1-i] != canary || mem[from+n+i] != canary {
			h.t.Fatalf("written %d bytes before or after %d of the destination", i+1, n)
		}
	}
	copy(unsafe.Slice((*byte)(dst), n), mem[from:])
}

func (h *host) Reducer(t kernels.DType, op kernels.RedOp) (func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int), error) {
	if _, err := cuda.FoldKernel(t, op); err != nil {
		return nil, err
	}
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
		if n > 0 {
			h.run(dst, srcs, n*t.Size(), func(dst unsafe.Pointer, srcs []unsafe.Pointer) error { return h.d.Fold(h.s, t, op, dst, srcs, n) })
		}
	}, nil
}

func (h *host) PreMul(t kernels.DType) (func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64), error) {
	if err := h.d.FoldScaled(h.s, t, nil, nil, 0, 0, 1); err != nil {
		return nil, err
	}
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64) {
		if n > 0 {
			h.run(dst, srcs, n*t.Size(), func(dst unsafe.Pointer, srcs []unsafe.Pointer) error {
				return h.d.FoldScaled(h.s, t, dst, srcs, n, scaled, factor)
			})
		}
	}, nil
}

func (h *host) PostDiv(t kernels.DType) (func(dst unsafe.Pointer, n int, divisor int64), error) {
	if _, err := cuda.DivideInstr(t, 0); err != nil {
		return nil, err
	}
	return func(dst unsafe.Pointer, n int, divisor int64) {
		if n > 0 {
			h.run(dst, []unsafe.Pointer{dst}, n*t.Size(), func(dst unsafe.Pointer, _ []unsafe.Pointer) error {
				return h.d.Divide(h.s, t, dst, n, divisor)
			})
		}
	}, nil
}

// The contract of all devices. It takes minutes in full; -short has fewer lengths.
func TestKernels(t *testing.T) { kernelstest.Run(t, newHost(t)) }

// All alignments of copies to each other, several destinations, lengths about the units' edges.
func TestCopy(t *testing.T) {
	d := cudatest.Open(t)
	s := stream(t, d)
	rng := rand.New(rand.NewPCG(1, 2))
	const room = 1 << 20
	src, dst := alloc(t, d, room), alloc(t, d, 3*room)
	data := kernelstest.Random(kernels.Uint8, room, 3)
	upload(t, d, s, src.Ptr, data)
	for i := range 400 {
		n := rng.IntN(300)
		if i%8 == 0 {
			n = rng.IntN(room - 200)
		}
		var dsts []unsafe.Pointer
		var offsets []int
		for k := range 1 + i%3 {
			offsets = append(offsets, k*room+64+rng.IntN(64))
			dsts = append(dsts, unsafe.Add(dst.Ptr, offsets[k]))
		}
		from := rng.IntN(64)
		require.NoError(t, d.Fill(s, dst.Ptr, 0xEE, 3*room))
		require.NoError(t, d.Copy(s, dsts, unsafe.Add(src.Ptr, from), int64(n)))
		got := download(t, d, s, dst.Ptr, 3*room)
		want := bytes.Repeat([]byte{0xEE}, 3*room)
		for _, o := range offsets {
			copy(want[o:o+n], data[from:])
		}
		require.True(t, bytes.Equal(want, got), "copy %d of %d bytes from offset %d to %v", i, n, from, offsets)
	}
}

func TestGraphReplays(t *testing.T) {
	d := cudatest.Open(t)
	s := stream(t, d)
	a, b := alloc(t, d, 4096), alloc(t, d, 4096)
	upload(t, d, s, a.Ptr, bytes.Repeat([]byte{1, 0, 0, 0}, 1024))
	upload(t, d, s, b.Ptr, make([]byte, 4096))
	g, err := d.Capture(s, func() error {
		capturing, err := d.Capturing(s)
		require.NoError(t, err)
		require.True(t, capturing)
		m, err := d.Alloc(1) // allowed meanwhile
		require.NoError(t, err)
		require.NoError(t, d.Free(m))
		return d.Fold(s, kernels.Int32, kernels.Sum, b.Ptr, []unsafe.Pointer{b.Ptr, a.Ptr}, 1024)
	})
	require.NoError(t, err)
	for range 1000 {
		require.NoError(t, g.Launch(s))
	}
	require.Equal(t, bytes.Repeat([]byte{0xE8, 3, 0, 0}, 1024), download(t, d, s, b.Ptr, 4096))
	require.NoError(t, g.Destroy())
	_, err = d.Capture(s, func() error { return os.ErrInvalid })
	require.ErrorIs(t, err, os.ErrInvalid)
	require.NoError(t, d.Wait(s)) // the stream is usable
}

func TestMemory(t *testing.T) {
	d := cudatest.Open(t)
	_, err := d.Alloc(-1)
	require.ErrorIs(t, err, kernels.ErrInvalid)
	m := alloc(t, d, 1000)
	require.NoError(t, d.Check(m))
	require.NoError(t, d.Check(kernels.Mem{Ptr: unsafe.Add(m.Ptr, 999), Bytes: 1, Device: d.Device()}))
	require.ErrorIs(t, d.Check(kernels.Mem{Ptr: m.Ptr, Bytes: 1 << 40}), kernels.ErrInvalid)
	var local [8]byte
	require.Error(t, d.Check(kernels.Mem{Ptr: unsafe.Pointer(&local), Bytes: 8}))
	if d.Info().Exportable {
		fd, err := d.Export(m)
		require.NoError(t, err)
		require.NoError(t, os.NewFile(uintptr(fd), "memory").Close())
	}
	require.NoError(t, d.Free(m))
	require.ErrorIs(t, d.Free(m), kernels.ErrInvalid)
	_, err = d.Alloc(1 << 50)
	require.ErrorContains(t, err, "OUT_OF_MEMORY")
	before, _, err := d.MemInfo()
	require.NoError(t, err)
	for range 100 {
		m := alloc(t, d, 64<<20)
		require.NoError(t, d.Free(m))
	}
	after, _, err := d.MemInfo()
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, before-32<<20)
}

// Kernels on each GPU read what the others have; a device is connected to itself without further ado.
func TestConnect(t *testing.T) {
	a := cudatest.Open(t)
	require.NoError(t, cuda.Connect(a, a))
	n, err := cuda.Count()
	require.NoError(t, err)
	devices := []*cuda.Device{a}
	early := alloc(t, a, 1<<20)
	for i := 1; i < n; i++ {
		d, err := cuda.Open(i)
		require.NoError(t, err)
		defer d.Close()
		devices = append(devices, d)
	}
	require.NoError(t, cuda.Connect(devices...))
	require.NoError(t, cuda.Connect(devices...))
	s := stream(t, a)
	upload(t, a, s, early.Ptr, []byte("before"))
	for _, d := range devices[1:] {
		m := alloc(t, d, 64)
		require.NoError(t, d.Copy(0, []unsafe.Pointer{m.Ptr}, early.Ptr, 6))
		require.NoError(t, d.Synchronize())
		require.Equal(t, "before", string(download(t, d, 0, m.Ptr, 6)))
	}
}

// TestConnectThatFails: whatever call of the driver's fails while a path is proven, nothing is freed that work which is queued still uses.
func TestConnectThatFails(t *testing.T) {
	n, err := cuda.Count()
	if err != nil || n < 2 {
		t.Skip("there are no two GPUs")
	}
	call := 1
	for more := true; more; call++ {
		t.Run(fmt.Sprint(call), func(t *testing.T) {
			a, b := cudatest.Open(t), cudatest.OpenBy(t, cuda.Open, 1)
			stall := cudatest.NewStall(t, a)
			copying, err := cuda.Copying(a)
			require.NoError(t, err)
			stall.Begin(copying)
			cudatest.FailCall(t, call)
			failed := make(chan error, 1)
			go func() { failed <- cuda.Connect(a, b) }()
			select {
			case err = <-failed:
				require.ErrorContains(t, err, "CUDA_ERROR_UNKNOWN (999)")
				stall.End()
			case <-time.After(100 * time.Millisecond): // it waits for what is stalled, and that went well
				more = cudatest.FailCall(t, 0) == 0
				stall.End()
				require.NoError(t, <-failed)
			}
			require.NoError(t, errors.Join(a.Synchronize(), b.Synchronize()))
		})
	}
	require.Greater(t, call, 5)
}

// TestUC69_DirectRDMAIsKnown: how adapters reach the GPU's memory is a fact of the device, with the answers peermem, DMA-BUF, none.
func TestUC69_DirectRDMAIsKnown(t *testing.T) {
	info := cudatest.Open(t).Info()
	switch {
	case info.DirectRDMA && info.DMABuf:
		t.Log("adapters reach Alloc's memory, by DMA-BUF")
	case info.DirectRDMA:
		t.Log("adapters reach Alloc's memory where nvidia_peermem is loaded")
	default:
		t.Log("adapters do not reach Alloc's memory: data goes through the host")
	}
	require.False(t, info.DMABuf && !info.DirectRDMA)
}

func BenchmarkFold(b *testing.B) {
	d := cudatest.Open(b)
	s := stream(b, d)
	const bytes = 256 << 20
	var m [3]kernels.Mem
	for i := range m {
		m[i] = alloc(b, d, bytes)
	}
	bench := func(name string, moved int64, f func() error) {
		b.Run(name, func(b *testing.B) {
			from, err := d.NewEvent(true)
			require.NoError(b, err)
			to, err := d.NewEvent(true)
			require.NoError(b, err)
			require.NoError(b, f())
			require.NoError(b, d.Record(from, s))
			for range b.N {
				require.NoError(b, f())
			}
			require.NoError(b, d.Record(to, s))
			require.NoError(b, d.Wait(s))
			ms, err := d.Milliseconds(from, to)
			require.NoError(b, err)
			b.ReportMetric(float64(moved)*float64(b.N)/ms/1e9, "TB/s")
		})
	}
	bench("driver", 2*bytes, func() error { return d.CopyAny(s, m[0].Ptr, m[1].Ptr, bytes) })
	bench("copy", 2*bytes, func() error { return d.Copy(s, []unsafe.Pointer{m[0].Ptr}, m[1].Ptr, bytes) })
	for _, t := range []kernels.DType{kernels.Float32, kernels.Bfloat16, kernels.Float16, kernels.Int8} {
		bench("sum/"+t.String(), 3*bytes, func() error {
			return d.Fold(s, t, kernels.Sum, m[0].Ptr, []unsafe.Pointer{m[1].Ptr, m[2].Ptr}, bytes/t.Size())
		})
	}
}
