package cuda

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
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
		"Instr.flags": unsafe.Offsetof(in.Flags), "Instr.plain": unsafe.Offsetof(in.Plain),
		"Args.factor": unsafe.Offsetof(a.factor), "Args.half": unsafe.Offsetof(a.half), "Args.abort": unsafe.Offsetof(a.abort),
		"Args.blocks": unsafe.Offsetof(a.blocks), "Args.start": unsafe.Offsetof(a.start), "Args.instr": unsafe.Offsetof(a.instr),
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
		"MAX_LANES": MaxLanes, "MAX_INSTRS": MaxInstrs, "MAX_POINTERS": MaxPointers, "MAX_BLOCKS": MaxBlocks, "MAX_RANKS": MaxRanks,
		"MOVE": int(Move), "EXCHANGE": int(Exchange), "BEGIN": int(Begin), "BARRIER": int(Barrier), "PUT": int(Put), "TAKE": int(Take),
		"DIVIDE": int(Divide), "RELEASE": int(Release), "SIGNED": int(Signed),
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
	require.False(t, p.waits)
	p.Reset(LineBytes)
	require.True(t, p.Lane())
	require.True(t, p.Add(Instr{Code: Begin}, one, nil))
	require.True(t, p.waits)
}
