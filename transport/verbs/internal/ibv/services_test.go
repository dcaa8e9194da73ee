//go:build linux && cgo

package ibv

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestDatagrams(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(UD)
	ah, err := r.pd.NewAddressHandle(r.av())
	require.NoError(t, err)
	closing(t, ah)
	_, err = b.PostRecv([]Recv{{ID: 9, Addr: r.addr(4096), Bytes: 1024, LKey: r.mr.LKey()}})
	require.NoError(t, err)
	copy(r.memory, "a datagram")
	r.post(a, Send{ID: 1, Op: SendWithImm, Imm: 77, Addr: r.addr(0), Bytes: 10, LKey: r.mr.LKey(), Flags: Signaled, AddOrCompare: ah.Number(), RemoteQP: b.Number(), RemoteQKey: 0x11})
	got := r.completions(2)
	const grh = 40 // a route header comes before the payload
	require.EqualValues(t, grh+10, got[9].Bytes)
	require.Equal(t, a.Number(), got[9].Source)
	require.EqualValues(t, 77, got[9].Imm)
	require.Equal(t, "a datagram", string(r.memory[4096+grh:4096+grh+10]))
}

// TestUnreliable uses every verb that unreliable connections have, and finds that they have no others.
func TestUnreliable(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(UC)
	copy(r.memory, "unreliable")
	write := Send{ID: 1, Op: Write, Addr: r.addr(0), Bytes: 10, LKey: r.mr.LKey(), RKey: r.mr.RKey(), Remote: r.addr(8192), Flags: Signaled}
	r.post(a, write)
	require.Equal(t, Success, r.completions(1)[1].Status)
	require.Eventually(t, func() bool { return string(r.memory[8192:8202]) == "unreliable" }, time.Minute, time.Millisecond)

	_, err := b.PostRecv([]Recv{{ID: 100}, {ID: 101, Addr: r.addr(16384), Bytes: 64, LKey: r.mr.LKey()}})
	require.NoError(t, err)
	write.ID, write.Op, write.Imm, write.Remote = 2, WriteWithImm, 9, r.addr(12288)
	r.post(a, write)
	got := r.completions(2)
	require.EqualValues(t, 9, got[100].Imm)
	require.Equal(t, WCRecvWriteWithImm, got[100].Op)
	require.Equal(t, "unreliable", string(r.memory[12288:12298]))
	write.ID, write.Op = 3, SendOp
	r.post(a, write)
	got = r.completions(2)
	require.EqualValues(t, 10, got[101].Bytes)
	require.Equal(t, "unreliable", string(r.memory[16384:16394]))

	write.ID, write.Op = 4, Read
	_, err = a.Post([]Send{write})
	if err == nil { // some find out later
		require.NotEqual(t, Success, r.completions(1)[4].Status)
	}
}

func TestSharedReceives(t *testing.T) {
	r := newRig(t)
	srq, err := r.pd.NewSRQ(16)
	require.NoError(t, err)
	closing(t, srq)
	_, err = srq.Post([]Recv{{ID: 50, Addr: r.addr(0), Bytes: 64, LKey: r.mr.LKey()}, {ID: 51, Addr: r.addr(64), Bytes: 64, LKey: r.mr.LKey()}})
	require.NoError(t, err)
	text := []byte("from two QPs")
	for i := range 2 {
		a, b := r.qp(RC, nil), r.qp(RC, srq)
		r.ready(a, RC, b.Number())
		r.ready(b, RC, a.Number())
		r.post(a, Send{ID: 1, Op: SendOp, Addr: uint64(uintptr(unsafe.Pointer(&text[0]))), Bytes: 12, Flags: Signaled | Inline})
		got := r.completions(2)
		require.Equal(t, b.Number(), got[50+uint64(i)].QP)
		require.Equal(t, string(text), string(r.memory[64*i:64*i+12]))
	}
}

// TestChannel: an armed queue makes its channel readable at the next completion, once.
func TestChannel(t *testing.T) {
	r := newRig(t)
	channel, err := r.device.NewChannel()
	require.NoError(t, err)
	closing(t, channel)
	require.NoError(t, unix.SetNonblock(channel.FD(), true))
	r.cq, err = r.device.NewCQ(16, channel, 0)
	require.NoError(t, err)
	cq := r.cq
	closing(t, cq)
	a, _ := r.pair(RC)
	write := func() {
		r.post(a, Send{ID: 1, Op: Write, Addr: r.addr(0), Bytes: 64, LKey: r.mr.LKey(), RKey: r.mr.RKey(), Remote: r.addr(4096), Flags: Signaled})
		r.completions(1)
	}
	write()
	require.False(t, readable(t, channel.FD(), 0), "not armed")
	require.NoError(t, cq.Arm())
	write()
	require.True(t, readable(t, channel.FD(), time.Minute))
	require.Equal(t, 1, cq.Drain())
	write()
	require.False(t, readable(t, channel.FD(), 0), "armed for one only")
	require.NoError(t, cq.Resize(200))
	require.GreaterOrEqual(t, cq.Entries(), 200)
	write()
}

// TestWhatIsNotThere: what a provider lacks is an error that errors.Is can tell; of Soft-RoCE it is known what that is.
func TestWhatIsNotThere(t *testing.T) {
	r := newRig(t)
	limits, err := r.device.Limits()
	require.NoError(t, err)
	t.Logf("%s: %+v, %d vectors, port %+v", r.device.Name(), limits, r.device.Vectors(), r.port)
	require.Positive(t, limits.MaxQP)
	pkey, err := r.device.PKey(1, 0)
	require.NoError(t, err)
	require.NotZero(t, pkey)
	answers := map[string]error{"moderation": r.cq.Moderate(8, 20)}
	for _, s := range []Service{XRC, DC, DMABuf} {
		answers[string(s)] = r.device.Probe(s)
	}
	for name, err := range answers {
		t.Logf("%s: %v", name, err)
		if os.Getenv("GCCL_RDMA_VM") != "" {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
		} else if err != nil {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
		}
	}
	if os.Getenv("GCCL_RDMA_VM") != "" {
		require.False(t, limits.XRC)
		_, err = r.pd.Register(uintptr(r.addr(0)), 4096, LocalWrite|OnDemand)
		require.Error(t, err, "no paging on demand")
	}
	require.ErrorIs(t, r.device.Probe("telepathy"), errors.ErrUnsupported)
	mr, err := r.pd.RegisterDMABuf(-1, 0, 4096, 0, LocalWrite)
	require.Error(t, err)
	require.Nil(t, mr)
	_, err = r.pd.Register(0x10, 4096, LocalWrite)
	require.Error(t, err)
	_, _, err = r.pd.NewQP(RC, r.cq, r.cq, nil, Caps{SendWR: 1 << 30})
	require.Error(t, err)
}

// TestMemoryAtAnotherAddress: peers may know memory by another address than ours.
func TestMemoryAtAnotherAddress(t *testing.T) {
	r := newRig(t)
	moved, err := r.pd.RegisterAt(uintptr(r.addr(0)), 4096, 1<<32, LocalWrite|RemoteWrite)
	require.NoError(t, err)
	closing(t, moved)
	a, _ := r.pair(RC)
	copy(r.memory[8192:], "another address")
	r.post(a, Send{ID: 1, Op: Write, Addr: r.addr(8192), Bytes: 15, LKey: r.mr.LKey(), RKey: moved.RKey(), Remote: 1<<32 + 100, Flags: Signaled})
	require.Equal(t, Success, r.completions(1)[1].Status)
	require.Equal(t, "another address", string(r.memory[100:115]))
	r.post(a, Send{ID: 2, Op: Write, Addr: r.addr(8192), Bytes: 15, LKey: r.mr.LKey(), RKey: moved.RKey(), Remote: r.addr(100), Flags: Signaled})
	require.Equal(t, RemoteAccess, r.completions(1)[2].Status, "and not by ours")
}

// TestAsyncEvents: a port that loses its network, and has it again, tells.
func TestAsyncEvents(t *testing.T) {
	newRig(t)
	if os.Getenv("GCCL_RDMA_VM") == "" {
		t.Skip("makes a device of its own, in the virtual machine of make test-rdma only")
	}
	run := func(command string) {
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
	run("ip link add gccl9 type dummy")
	defer run("ip link del gccl9")
	run("ip link set gccl9 up")
	run("rdma link add rxe9 type rxe netdev gccl9")
	defer run("rdma link del rxe9")
	d, err := Open("rxe9")
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, unix.SetNonblock(d.EventFD(), true))
	next := func(want Event) {
		for deadline := time.Now().Add(time.Minute); ; {
			readable(t, d.EventFD(), time.Second)
			event, port, err := d.Event()
			if err == nil && event == want {
				require.Equal(t, 1, port)
				require.NotEmpty(t, event.String())
				return
			}
			if err != nil {
				require.ErrorIs(t, err, syscall.EAGAIN)
			}
			require.False(t, time.Now().After(deadline), "no %v", want)
		}
	}
	run("ip link set gccl9 down")
	next(EventPortErr)
	run("ip link set gccl9 up")
	next(EventPortActive)
	_, _, err = d.Event()
	for err == nil {
		_, _, err = d.Event()
	}
	require.ErrorIs(t, err, syscall.EAGAIN)
}

func TestPostAndPollDoNotAllocate(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(RC)
	batch := make([]Send, 4)
	receives := make([]Recv, 4)
	var out [16]Completion
	one := func() {
		for i := range batch {
			batch[i] = Send{Op: WriteWithImm, Addr: r.addr(0), Bytes: 64, LKey: r.mr.LKey(), RKey: r.mr.RKey(), Remote: r.addr(4096), Flags: Signaled}
		}
		_, err := b.PostRecv(receives)
		if err == nil {
			_, err = a.Post(batch)
		}
		for got := 0; got < 8 && err == nil; {
			var n int
			n, err = r.cq.Poll(out[:])
			got += n
		}
		if err != nil {
			t.Error(err)
		}
	}
	require.Zero(t, testing.AllocsPerRun(50, one))
}
