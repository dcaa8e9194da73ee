//go:build linux && cgo

package verbs

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// BenchmarkShortMessage is what a message of 8 bytes costs the processor at both ends, beside bare requests, and by parts. Where the
// device is software the time of a request has all its work in it, so that the least of many is steady also where others are busy.
func BenchmarkShortMessage(b *testing.B) {
	needDevices(b, 1)
	o := testOptions()
	o.Streams = 1
	d := newDuo(b, o, Config{Addr: netip.MustParseAddr("127.0.0.1"), Slots: 128})
	d.pass(0, message(8))
	out, in := message(8), make([]byte, 8)
	from, to := d.conns[0].Stream(0), d.conns[1].Stream(0)
	q, e := d.conns[0].(*conn).link.queues[0], d.eps[0]
	progress := func() { d.eps[0].Progress(); d.eps[1].Progress() }
	slot := make([]byte, headerSize+8)
	var sink uint32
	receive := func() {
		for ok, err := to.Recv(1, bufOf(in)); !ok; ok, err = to.Recv(1, bufOf(in)) {
			require.NoError(b, err)
			progress()
		}
	}
	nothing := func() {}
	for _, part := range []struct {
		name    string
		counted func()
		rest    func()
	}{
		{"clock", nothing, nothing},
		{"post write 8", func() { d.post(q, ibv.Write, 8) }, nothing},
		{"post write 56", func() { d.post(q, ibv.Write, headerSize+8) }, nothing},
		{"post write_imm 56", func() { d.post(q, ibv.WriteWithImm, headerSize+8) }, nothing},
		{"poll for nothing", func() { e.poll() }, nothing},
		{"seal", func() { sink += sealOf(slot, 8) }, nothing},
		{"receive nothing", func() { d.conns[0].Stream(0).Recv(1, bufOf(in)) }, nothing},
		{"send", func() { from.Send(1, bufOf(out)) }, receive},
		{"send and receive", func() { from.Send(1, bufOf(out)); receive() }, nothing},
	} {
		b.Run(part.name, func(b *testing.B) {
			var us []float64
			for b.Loop() {
				start := time.Now()
				part.counted()
				us = append(us, float64(time.Since(start).Nanoseconds())/1e3)
				if part.rest(); len(us)%repost == 0 {
					progress()
				}
			}
			slices.Sort(us)
			b.ReportMetric(us[0], "us-least")
			b.ReportMetric(us[len(us)/2], "us-median")
			b.ReportMetric(0, "ns/op")
		})
	}
	require.NotEqual(b, uint32(1), sink) // which keeps the seals from being left out
}

// post posts a request as the connection does, which means nothing to the peer.
func (d *duo) post(q *queue, op ibv.Opcode, bytes int) {
	q.posted++
	r := [1]ibv.Send{{
		ID: q.requestID(q.posted), Addr: q.ours.addr + uint64(q.link.half), Bytes: uint32(bytes), LKey: q.lkey, Op: op,
		Remote: q.peer.addr + q.peer.bytes - 4096, RKey: q.peer.rkey, Imm: immediate(immWord, wordProbe, 0), Flags: ibv.Inline,
	}}
	if q.posted%repost == 0 {
		r[0].Flags |= ibv.Signaled
	}
	_, err := q.qp.Post(r[:])
	require.NoError(d, err)
}
