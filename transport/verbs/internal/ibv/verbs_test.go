//go:build linux && cgo

package ibv

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestVerbs uses every verb that connected QPs have, on real memory.
func TestVerbs(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(RC)
	local := func(offset, n int) Send {
		return Send{Addr: r.addr(offset), Bytes: uint32(n), LKey: r.mr.LKey(), RKey: r.mr.RKey(), Flags: Signaled}
	}
	for i := range 256 << 10 {
		r.memory[i] = byte(i * 7)
	}
	const there, back = 512 << 10, 768 << 10
	request := func(id uint64, op Opcode, s Send) Send { s.ID, s.Op = id, op; return s }

	s := local(0, 200<<10)
	s.Remote = r.addr(there)
	r.post(a, request(1, Write, s))
	require.Equal(t, Completion{ID: 1, Op: WCWrite, QP: a.Number()}, only(r.completions(1)[1]))
	require.True(t, bytes.Equal(r.memory[:200<<10], r.memory[there:there+200<<10]))

	_, err := b.PostRecv([]Recv{{ID: 100}, {ID: 101, Addr: r.addr(back), Bytes: 4096, LKey: r.mr.LKey()}, {ID: 102, Addr: r.addr(back + 4096), Bytes: 4096, LKey: r.mr.LKey()}})
	require.NoError(t, err)
	s.Imm, s.Bytes = 0xcafe1234, 0
	r.post(a, request(2, WriteWithImm, s))
	got := r.completions(2)
	require.Equal(t, uint32(0xcafe1234), got[100].Imm)
	require.Equal(t, WCRecvWriteWithImm, got[100].Op)
	require.NotZero(t, got[100].Flags&WithImm)

	inline := []byte("read before Post returns")
	s = Send{Addr: uint64(uintptr(unsafe.Pointer(&inline[0]))), Bytes: uint32(len(inline)), Flags: Signaled | Inline, Imm: 5}
	batch := []Send{request(3, SendOp, s), request(4, SendWithImm, s)}
	r.post(a, batch...)
	clear(inline)
	got = r.completions(4)
	require.Equal(t, "read before Post returns", string(r.memory[back:back+24]))
	require.Equal(t, "read before Post returns", string(r.memory[back+4096:back+4096+24]))
	require.EqualValues(t, 24, got[101].Bytes)
	require.Equal(t, WCRecv, got[101].Op)
	require.Zero(t, got[101].Flags&WithImm)
	require.EqualValues(t, 5, got[102].Imm)

	_, err = b.PostRecv([]Recv{{ID: 103}})
	require.NoError(t, err)
	clear(r.memory[there : there+200<<10])
	s = local(1000, 100)
	s.Remote, s.Imm = r.addr(there), 6
	s.Addr2, s.Bytes2, s.LKey2 = r.addr(50_000), 70_000, r.mr.LKey()
	r.post(a, request(9, WriteWithImm, s))
	require.EqualValues(t, 6, r.completions(2)[103].Imm)
	require.True(t, bytes.Equal(r.memory[1000:1100], r.memory[there:there+100]))
	require.True(t, bytes.Equal(r.memory[50_000:120_000], r.memory[there+100:there+70_100]), "a second piece goes behind the first")
	require.Zero(t, r.memory[there+70_100])

	clear(r.memory[there : there+100_000])
	s = local(there, 100_000)
	s.Remote = r.addr(1)
	r.post(b, request(5, Read, s))
	require.Equal(t, WCRead, r.completions(1)[5].Op)
	require.True(t, bytes.Equal(r.memory[1:1+100_000], r.memory[there:there+100_000]))

	binary.LittleEndian.PutUint64(r.memory[there:], 40)
	s = local(0, 8)
	s.Remote, s.AddOrCompare = r.addr(there), 2
	r.post(a, request(6, FetchAdd, s))
	require.Equal(t, WCFetchAdd, r.completions(1)[6].Op)
	require.EqualValues(t, 40, binary.LittleEndian.Uint64(r.memory))
	require.EqualValues(t, 42, binary.LittleEndian.Uint64(r.memory[there:]))
	s.AddOrCompare, s.Swap = 42, 1<<40
	r.post(a, request(7, CompareSwap, s))
	require.Equal(t, WCCompareSwap, r.completions(1)[7].Op)
	require.EqualValues(t, 42, binary.LittleEndian.Uint64(r.memory))
	require.EqualValues(t, 1<<40, binary.LittleEndian.Uint64(r.memory[there:]))
	r.post(a, request(8, CompareSwap, s)) // 42 is not there any more
	r.completions(1)
	require.EqualValues(t, 1<<40, binary.LittleEndian.Uint64(r.memory[there:]))

	var many []Send // more than a batch of the binding's
	for i := range 50 {
		s := local(i, 1)
		s.Remote, s.Flags = r.addr(there+49-i), 0
		if i == 49 {
			s.Flags = Signaled
		}
		many = append(many, request(uint64(200+i), Write, s))
	}
	r.post(a, many...)
	r.completions(1)
	for i := range 50 {
		require.Equal(t, r.memory[i], r.memory[there+49-i])
	}
}

// TestFullQueue: a queue that is full takes what fits and says so, with nothing lost of what it took.
func TestFullQueue(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(RC)
	require.NoError(t, b.Modify(Attr{Mask: MaskState, State: Reset})) // nothing is acknowledged
	many := make([]Send, 50)
	total := 0
	for {
		for i := range many {
			many[i] = Send{ID: uint64(total + i), Op: Write, Addr: r.addr(0), Bytes: 8, LKey: r.mr.LKey(), RKey: r.mr.RKey(), Remote: r.addr(4096), Flags: Signaled}
		}
		n, err := a.Post(many)
		total += n
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOMEM)
			require.Less(t, n, len(many))
			break
		}
		require.Less(t, total, 512, "the queue never was full")
	}
	require.GreaterOrEqual(t, total, 64)
	require.NoError(t, a.Modify(Attr{Mask: MaskState, State: Err}))
	got := r.completions(min(total, 200)) // the completion queue has 256 entries
	require.Contains(t, got, uint64(0))
	require.Contains(t, got, uint64(min(total, 200)-1))
}

// only leaves what a completion of a send means.
func only(c Completion) Completion {
	return Completion{ID: c.ID, Status: c.Status, Op: c.Op, QP: c.QP}
}

// TestFailures: a failed request names its status, what was behind it is flushed, and the QP is in ERR.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*rig, *Send, *QP)
		want  Status
	}{
		"wrong key":       {func(_ *rig, s *Send, _ *QP) { s.RKey ^= 0xff00 }, RemoteAccess},
		"beyond the end":  {func(r *rig, s *Send, _ *QP) { s.Remote = r.addr(rigBytes - 1) }, RemoteAccess},
		"no receive":      {func(_ *rig, s *Send, _ *QP) { s.Op = SendOp }, RNRRetryExceeded},
		"peer in trouble": {func(r *rig, _ *Send, b *QP) { require.NoError(r, b.Modify(Attr{Mask: MaskState, State: Reset})) }, RetryExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.pair(RC)
			s := Send{ID: 1, Op: Write, Addr: r.addr(0), Bytes: 64, LKey: r.mr.LKey(), RKey: r.mr.RKey(), Remote: r.addr(4096), Flags: Signaled}
			good := s
			good.ID = 2
			c.spoil(r, &s, b)
			r.post(a, s, good)
			got := r.completions(2)
			require.Equal(t, c.want, got[1].Status)
			require.Equal(t, Flushed, got[2].Status)
			require.ErrorContains(t, got[1].Status, c.want.String())
			state, err := a.State()
			require.NoError(t, err)
			require.Equal(t, Err, state)
		})
	}
}
