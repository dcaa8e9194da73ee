package cudatest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// A Differ compares long memory on a real GPU, by a kernel that has nothing in common with those it looks after.
type Differ struct {
	t     testing.TB
	d     *cuda.Device
	ctx   cu.Context
	f     cu.Function
	count kernels.Mem
}

// Adds to *count how many of n bytes from p on are not those that repeat from want on, every period bytes.
const differPTX = `.version 7.0
.target sm_80
.address_size 64
.visible .entry differ(.param .align 8 .b8 args[40])
{
	.reg .pred q;
	.reg .b32 a, b, blocks, threads, block, thread, one;
	.reg .b64 p, n, want, period, count, i, step, at, x;
	ld.param.u64 p, [args];
	ld.param.u64 n, [args+8];
	ld.param.u64 want, [args+16];
	ld.param.u64 period, [args+24];
	ld.param.u64 count, [args+32];
	mov.u32 blocks, %nctaid.x;
	mov.u32 threads, %ntid.x;
	mov.u32 block, %ctaid.x;
	mov.u32 thread, %tid.x;
	mov.u32 one, 1;
	mad.lo.u32 a, block, threads, thread;
	cvt.u64.u32 i, a;
	mul.wide.u32 step, blocks, threads;
next:
	setp.ge.u64 q, i, n;
	@q bra done;
	add.u64 x, p, i;
	ld.global.u8 a, [x];
	rem.u64 at, i, period;
	add.u64 x, want, at;
	ld.global.u8 b, [x];
	setp.ne.u32 q, a, b;
	@q red.global.add.u32 [count], one;
	add.u64 i, i, step;
	bra next;
done:
	ret;
}
`

// NewDiffer makes one.
func NewDiffer(t testing.TB, d *cuda.Device) *Differ {
	t.Helper()
	ctx, err := cu.PrimaryRetain(d.Info().Ordinal)
	require.NoError(t, err)
	m, err := cu.ModuleLoad(ctx, []byte(differPTX))
	require.NoError(t, err)
	x := &Differ{t: t, d: d, ctx: ctx}
	x.f, err = cu.ModuleFunction(ctx, m, "differ")
	require.NoError(t, err)
	x.count, err = d.Alloc(4)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Free(x.count))
		require.NoError(t, cu.ModuleUnload(ctx, m))
		require.NoError(t, cu.PrimaryRelease(d.Info().Ordinal))
	})
	return x
}

// Begin starts to count anew, on a stream.
func (x *Differ) Begin(s cuda.Stream) {
	x.t.Helper()
	require.NoError(x.t, x.d.Fill(s, x.count.Ptr, 0, 4))
}

// Add counts the bytes from p on that differ from those that repeat from want on.
func (x *Differ) Add(s cuda.Stream, p unsafe.Pointer, n int64, want unsafe.Pointer, period int64) {
	x.t.Helper()
	args := [5]uint64{uint64(uintptr(p)), uint64(n), uint64(uintptr(want)), uint64(period), uint64(uintptr(x.count.Ptr))}
	launch := []cu.Launch{{Function: x.f, Columns: 1024, Rows: 1, Threads: 512}}
	require.NoError(x.t, cu.LaunchJoined(x.ctx, launch, unsafe.Pointer(&args), 0, s, nil, nil, 0))
}

// End waits for the count.
func (x *Differ) End(s cuda.Stream) (count uint32) {
	x.t.Helper()
	require.NoError(x.t, x.d.CopyAny(s, unsafe.Pointer(&count), x.count.Ptr, 4))
	require.NoError(x.t, x.d.Wait(s))
	return count
}
