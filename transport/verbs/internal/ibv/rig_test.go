//go:build linux && cgo

package ibv

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// rig is a device with a queue, memory, and what it takes to make QPs that are connected to each other.
type rig struct {
	*testing.T
	device *Device
	pd     *PD
	cq     *CQ
	port   Port
	gid    GIDEntry
	memory []byte
	mr     *MR
}

const rigBytes = 1 << 20

func newRig(t *testing.T) *rig {
	names, err := Devices()
	if len(names) == 0 {
		if slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "verbs") {
			t.Fatalf("GCCL_REQUIRE has verbs: no RDMA device: %v", err)
		}
		t.Skipf("no RDMA device here (%v); make test-rdma has one", err)
	}
	r := &rig{T: t}
	r.device, err = Open(names[0])
	require.NoError(t, err)
	closing(t, r.device)
	r.port, err = r.device.Port(1)
	require.NoError(t, err)
	require.Equal(t, PortActive, r.port.State)
	all, err := r.device.GIDs()
	require.NoError(t, err)
	for _, e := range all {
		one, err := r.device.GID(e.Port, e.Index)
		require.NoError(t, err)
		require.Equal(t, e.GID, one)
		if r.gid.GID == (GID{}) || bytes.HasPrefix(e.GID[:], []byte{10: 0xff, 11: 0xff}[:12]) {
			r.gid = e
		}
	}
	r.pd, err = r.device.AllocPD()
	require.NoError(t, err)
	closing(t, r.pd)
	r.cq, err = r.device.NewCQ(256, nil, 0)
	require.NoError(t, err)
	closing(t, r.cq)
	r.memory, err = unix.Mmap(-1, 0, rigBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(r.memory)) })
	r.mr, err = r.pd.Register(uintptr(r.addr(0)), rigBytes, LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic|RelaxedOrdering)
	require.NoError(t, err)
	closing(t, r.mr)
	return r
}

func closing(t *testing.T, c interface{ Close() error }) {
	t.Cleanup(func() { require.NoError(t, c.Close()) })
}

// readable waits until fd has something to read. The runtime's signals interrupt poll.
func readable(t *testing.T, fd int, patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		if err != unix.EINTR {
			require.NoError(t, err)
			return n > 0
		}
	}
}

func (r *rig) addr(offset int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&r.memory[0]))) + uint64(offset)
}

func (r *rig) av() AddressVector {
	return AddressVector{Global: r.port.LinkLayer == Ethernet, GID: r.gid.GID, GIDIndex: uint8(r.gid.Index), HopLimit: 64, LID: r.port.LID, Port: 1}
}

func (r *rig) qp(kind QPType, srq *SRQ) *QP {
	q, caps, err := r.pd.NewQP(kind, r.cq, r.cq, srq, Caps{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 1, Inline: 64})
	require.NoError(r, err)
	closing(r.T, q)
	require.GreaterOrEqual(r, caps.Inline, uint32(64))
	a := Attr{Mask: MaskState | MaskPKey | MaskPort, State: Init, Port: 1}
	if kind == UD {
		a.Mask, a.QKey = a.Mask|MaskQKey, 0x11
	} else {
		a.Mask, a.Access = a.Mask|MaskAccess, RemoteWrite|RemoteRead|RemoteAtomic
	}
	require.NoError(r, q.Modify(a))
	return q
}

func (r *rig) ready(q *QP, kind QPType, peer uint32) {
	rtr := Attr{Mask: MaskState, State: RTR}
	rts := Attr{Mask: MaskState | MaskSQPSN, State: RTS, SQPSN: 7}
	if kind != UD {
		rtr.Mask |= MaskAV | MaskMTU | MaskDestQPN | MaskRQPSN
		rtr.AV, rtr.MTU, rtr.DestQPN, rtr.RQPSN = r.av(), r.port.ActiveMTU, peer, 7
	}
	if kind == RC {
		rtr.Mask |= MaskMaxDestRDAtomic | MaskMinRNRTimer
		rtr.MaxDestRDAtomic, rtr.MinRNRTimer = 1, 1
		rts.Mask |= MaskTimeout | MaskRetry | MaskRNRRetry | MaskMaxRDAtomic
		rts.Timeout, rts.Retry, rts.RNRRetry, rts.MaxRDAtomic = 14, 4, 1, 1
	}
	require.NoError(r, q.Modify(rtr))
	require.NoError(r, q.Modify(rts))
	state, err := q.State()
	require.NoError(r, err)
	require.Equal(r, RTS, state)
}

// pair is two connected QPs.
func (r *rig) pair(kind QPType) (*QP, *QP) {
	a, b := r.qp(kind, nil), r.qp(kind, nil)
	r.ready(a, kind, b.Number())
	r.ready(b, kind, a.Number())
	return a, b
}

func (r *rig) post(q *QP, batch ...Send) {
	n, err := q.Post(batch)
	require.NoError(r, err)
	require.Equal(r, len(batch), n)
}

// completions polls until there are n, and returns them by ID.
func (r *rig) completions(n int) map[uint64]Completion {
	got := map[uint64]Completion{}
	for deadline := time.Now().Add(time.Minute); len(got) < n; time.Sleep(100 * time.Microsecond) {
		var batch [8]Completion
		k, err := r.cq.Poll(batch[:])
		require.NoError(r, err)
		for _, c := range batch[:k] {
			got[c.ID] = c
		}
		require.False(r, time.Now().After(deadline), "completions: got %v, want %d", got, n)
	}
	return got
}
