package verbs

import (
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

func goodRecord() record {
	return record{link: ibv.Ethernet, mtu: 5, lid: 0x1234, qpn: 0xabcdef, psn: most24, rkey: 0xdeadbeef, addr: 0x7f0000001000, bytes: 1 << 20, gid: ibv.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, reads: 16}
}

func TestRecord(t *testing.T) {
	want := goodRecord()
	b := want.append(nil)
	require.Len(t, b, recordSize)
	got, err := parseRecord(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	for name, change := range map[string]func(*record){
		"link layer":    func(r *record) { r.link = 7 },
		"MTU":           func(r *record) { r.mtu = 0 },
		"24 bits":       func(r *record) { r.qpn = 1 << 24 },
		"packet number": func(r *record) { r.psn = 1 << 24 },
		"memory":        func(r *record) { r.addr = ^uint64(0) },
		"without a GID": func(r *record) { r.gid = ibv.GID{} },
		"0 reads":       func(r *record) { r.reads = 0 },
		"LID nor GID":   func(r *record) { r.link, r.lid, r.gid = ibv.InfiniBand, 0, ibv.GID{} },
	} {
		r := goodRecord()
		change(&r)
		_, err := parseRecord(r.append(nil))
		require.ErrorContains(t, err, name)
	}
	for n := range recordSize {
		_, err := parseRecord(b[:n])
		require.Error(t, err)
	}
}

// TestUC45_PathMTU: the path MTU is the smaller one of both ends, seen from either.
func TestUC45_PathMTU(t *testing.T) {
	for a := ibv.MTU(1); a <= 5; a++ {
		for b := ibv.MTU(1); b <= 5; b++ {
			ours, theirs := goodRecord(), goodRecord()
			ours.mtu, theirs.mtu = a, b
			p, err := ours.meets(theirs, goodPath())
			require.NoError(t, err)
			q, err := theirs.meets(ours, goodPath())
			require.NoError(t, err)
			require.Equal(t, min(a.Bytes(), b.Bytes()), p.mtu.Bytes())
			require.Equal(t, p.mtu, q.mtu)
		}
	}
}

func TestRecordsMeet(t *testing.T) {
	ours, theirs := goodRecord(), goodRecord()
	theirs.link = ibv.InfiniBand
	_, err := ours.meets(theirs, goodPath())
	require.ErrorContains(t, err, "InfiniBand")
	ours.link = ibv.InfiniBand
	p, err := ours.meets(theirs, goodPath())
	require.NoError(t, err)
	require.False(t, p.av.Global, "within a subnet the LID is enough")
	require.Equal(t, theirs.lid, p.av.LID)
	require.EqualValues(t, 16, p.reads)
	theirs.reads = 4
	theirs.gid[0] = 0xfd
	p, err = ours.meets(theirs, goodPath())
	require.NoError(t, err)
	require.True(t, p.av.Global, "another subnet")
	require.EqualValues(t, 4, p.reads, "the smaller one of both ends'")
	require.Equal(t, theirs.qpn, p.peerQPN)
	require.Equal(t, theirs.psn, p.peerPSN)
	require.Equal(t, ours.psn, p.psn)
}

// FuzzRecord: whatever is parsed is written the same, and gives a path that a QP accepts or an error.
func FuzzRecord(f *testing.F) {
	f.Add(goodRecord().append(nil))
	f.Add([]byte(recordMagic))
	for _, change := range []func(*record){
		func(r *record) { r.link = 0 }, func(r *record) { r.mtu = 0 }, func(r *record) { r.qpn = 1 }, func(r *record) { r.addr, r.bytes = 1<<63, 1<<63 },
		func(r *record) { r.link, r.gid = ibv.Ethernet, ibv.GID{} }, func(r *record) { r.link, r.gid, r.lid = ibv.InfiniBand, ibv.GID{}, 0 },
		func(r *record) { r.link, r.lid = ibv.InfiniBand, 7 },
	} {
		r := goodRecord()
		change(&r)
		f.Add(r.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		require.Equal(t, b, r.append(nil))
		ours := goodRecord()
		ours.link = r.link
		p, err := ours.meets(r, goodPath())
		require.NoError(t, err)
		require.LessOrEqual(t, p.mtu, ours.mtu)
		_, err = transition{ibv.Init, ibv.RTR}.attributes(ibv.RC, p)
		require.NoError(t, err)
	})
}
