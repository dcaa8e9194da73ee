package cuda

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// The structs here and in args.h are the same: args.h has the compiler check its offsets, and this test reads them there.
func TestArgsMirrorC(t *testing.T) {
	text, err := os.ReadFile("args.h")
	if os.IsNotExist(err) {
		t.Skip("the binary was moved away from its sources")
	}
	require.NoError(t, err)
	var in Instr
	var a args
	here := map[string]uintptr{
		"Instr.count": unsafe.Offsetof(in.Count), "Instr.scaled": unsafe.Offsetof(in.Scaled), "Instr.first": unsafe.Offsetof(in.first),
		"Instr.nsrc": unsafe.Offsetof(in.nsrc), "Instr.ndst": unsafe.Offsetof(in.ndst), "Instr.code": unsafe.Offsetof(in.Code),
		"Instr.flags": unsafe.Offsetof(in.Flags), "Instr.plain": unsafe.Offsetof(in.Plain), "Instr.head": unsafe.Offsetof(in.head),
		"Args.factor": unsafe.Offsetof(a.factor), "Args.start": unsafe.Offsetof(a.start), "Args.instr": unsafe.Offsetof(a.instr),
		"Args.pointer": unsafe.Offsetof(a.pointer),
	}
	found := regexp.MustCompile(`AT\((\w+), (\w+), (\d+)\);`).FindAllSubmatch(text, -1)
	require.Len(t, found, len(here))
	for _, m := range found {
		n, err := strconv.Atoi(string(m[3]))
		require.NoError(t, err)
		require.EqualValues(t, here[string(m[1])+"."+string(m[2])], n, "%s.%s", m[1], m[2])
	}
	require.EqualValues(t, 24, unsafe.Sizeof(in))
	require.EqualValues(t, 4096, unsafe.Sizeof(a))
	constants := map[string]int{
		"MAX_LANES": MaxLanes, "MAX_INSTRS": MaxInstrs, "MAX_POINTERS": MaxPointers,
		"MOVE": int(Move), "EXCHANGE": int(Exchange), "DIVIDE": int(Divide),
		"SIGNED": int(Signed), "FACTORS": int(factors), "FETCH": int(Fetch),
	}
	for name, value := range constants {
		m := regexp.MustCompile(`(?m)^\t` + name + ` = (\d+),`).FindSubmatch(text)
		require.NotNil(t, m, name)
		require.Equal(t, strconv.Itoa(value), string(m[1]), name)
	}
}

func TestProgramFills(t *testing.T) {
	var p Program
	p.Reset(MoveBytes)
	one := make([]unsafe.Pointer, 1)
	require.False(t, p.Add(Instr{}, one, one), "no lane yet")
	require.True(t, p.Empty())
	for range MaxLanes {
		require.True(t, p.Lane())
		require.True(t, p.Add(Instr{Code: Move, Count: 1}, one, one))
	}
	require.False(t, p.Lane())
	require.False(t, p.Add(Instr{}, one, one), "no instr left")
	require.Equal(t, uint16(MaxInstrs), p.args.start[MaxLanes])
	p.Reset(MoveBytes)
	require.True(t, p.Lane())
	require.True(t, p.Add(Instr{}, make([]unsafe.Pointer, 200), make([]unsafe.Pointer, MaxPointers-200)))
	require.False(t, p.Add(Instr{}, one, nil), "no pointer left")
}

func TestUnits(t *testing.T) {
	bf16, err := FoldKernel(kernels.Bfloat16, kernels.Sum)
	require.NoError(t, err)
	for _, row := range []struct {
		kernel     Kernel
		count      uint64
		pointers   []uint64
		unit, head uint8
	}{
		{MoveBytes, 100, []uint64{256, 512}, 4, 0},
		{MoveBytes, 100, []uint64{257, 513}, 4, 15},
		{MoveBytes, 3, []uint64{257, 513}, 4, 3},
		{MoveBytes, 100, []uint64{256, 264}, 3, 0},
		{MoveBytes, 100, []uint64{260, 264, 256}, 2, 0},
		{MoveBytes, 100, []uint64{257, 259}, 1, 1},
		{MoveBytes, 100, []uint64{256, 257}, 0, 0},
		{bf16, 100, []uint64{258, 514, 770}, 4, 7},
		{bf16, 100, []uint64{258, 256}, 1, 0},
	} {
		var p Program
		p.Reset(row.kernel)
		copy(p.args.pointer[:], row.pointers)
		unit, head := p.unit(0, len(row.pointers), row.count)
		require.Equal(t, []uint8{row.unit, row.head}, []uint8{unit, head}, "%+v", row)
	}
}

// The shapes that were measured, on the 132 multiprocessors of an H200.
func TestBulkShape(t *testing.T) {
	d := &Device{info: Info{Multiprocessors: 132}}
	for _, row := range []struct {
		lanes          int
		bytes          int64
		sources        int
		blocks, thread int
	}{
		{1, 0, 1, 1, 64},
		{1, 8 << 10, 8, 8, 64},
		{1, 64 << 10, 2, 64, 64},
		{1, 256 << 10, 8, 128, 128},
		{1, 1 << 20, 8, 1024, 64},
		{1, 256 << 20, 2, 131072, 64},
		{1, 256 << 20, 1, 131072, 128},
		{8, 1 << 10, 8, 1, 64},
		{8, 32 << 20, 8, 32768, 64},
		{1, 1 << 50, 1, maxGrid, 128},
	} {
		blocks, threads := d.BulkShape(row.lanes, row.bytes, row.sources)
		require.Equal(t, []int{row.blocks, row.thread}, []int{blocks, threads}, "%+v", row)
	}
}

// Types of 8 bits are folded from compute capability 9.0 on; the error says what the device has.
func TestFloat8NeedsCapability9(t *testing.T) {
	for _, dtype := range kernels.DTypes() {
		old := &Device{info: Info{Major: 8, Minor: 6, Name: "an old one"}}
		err := old.Folds(dtype)
		if dtype == kernels.Float8e4m3 || dtype == kernels.Float8e5m2 {
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, "an old one of compute capability 8.6")
			require.ErrorIs(t, old.Fold(0, dtype, kernels.Sum, nil, []unsafe.Pointer{nil}, 1), errors.ErrUnsupported)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, (&Device{info: Info{Major: 9}}).Folds(dtype))
	}
}

// Factors of sources come after the pointers, and need room.
func TestFactorsOfAProgram(t *testing.T) {
	k, err := FoldKernel(kernels.Float32, kernels.Avg)
	require.NoError(t, err)
	var p Program
	p.Reset(k)
	require.True(t, p.Lane())
	three, two := make([]unsafe.Pointer, 3), make([]unsafe.Pointer, 2)
	require.True(t, p.AddScaled(Instr{Code: Move, Count: 1, Scaled: 7, Flags: Fetch}, three, two, []uint64{11, 12, 13}))
	require.EqualValues(t, 8, p.pointers)
	require.Equal(t, []uint64{11, 12, 13}, p.args.pointer[5:8])
	require.Equal(t, factors|Fetch, p.args.instr[0].Flags)
	require.False(t, p.AddScaled(Instr{Code: Move, Count: 1}, make([]unsafe.Pointer, 120), make([]unsafe.Pointer, 50), make([]uint64, 120)), "no room for the last factors")
	require.Equal(t, 1, p.Instrs())
	require.EqualValues(t, 8, p.pointers)
}

// A driver that makes no graphs of cooperative kernels is no reason to do without them; one that has no memory is.
func TestNoGraphs(t *testing.T) {
	for r, want := range map[cu.Result]bool{cu.NotSupported: true, cu.NotPermitted: true, cu.CaptureUnsupported: true, cu.OutOfMemory: false, cu.InvalidValue: false} {
		require.Equal(t, want, noGraphs(&cu.Error{Call: "cuGraphInstantiateWithFlags", Result: r}), "%v", r)
	}
}
