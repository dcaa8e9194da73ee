package verbs

import (
	"encoding/binary"
	"fmt"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// record is what one end of a connection tells the other: how to reach its QP and where it may write.
//
//	 0  8  "gcclQP" 0 version
//	 8  1  link layer
//	 9  1  active MTU, as a code
//	10  2  LID
//	12  4  QP number
//	16  4  number of the first packet
//	20  4  key of the slots
//	24  8  address of the slots
//	32  8  their bytes
//	40 16  GID
//	56  1  reads and atomic operations that the end takes and makes at once
//	57  3  0
//
// Numbers are big-endian. QP number 0 is none: the end has no device for that place that works, and only the number of the packet says which it is.
type record struct {
	link  ibv.LinkLayer
	mtu   ibv.MTU
	lid   uint16
	qpn   uint32
	psn   uint32
	rkey  uint32
	addr  uint64
	bytes uint64
	gid   ibv.GID
	reads uint8
}

const (
	recordSize  = 60
	recordMagic = "gcclQP\x00\x02"
)

func (r record) append(b []byte) []byte {
	be := binary.BigEndian
	b = append(b, recordMagic...)
	b = append(b, byte(r.link), byte(r.mtu))
	b = be.AppendUint16(b, r.lid)
	b = be.AppendUint32(b, r.qpn)
	b = be.AppendUint32(b, r.psn)
	b = be.AppendUint32(b, r.rkey)
	b = be.AppendUint64(b, r.addr)
	b = be.AppendUint64(b, r.bytes)
	b = append(b, r.gid[:]...)
	return append(b, r.reads, 0, 0, 0)
}

// parseRecord checks all that can be known without knowing our own end.
func parseRecord(b []byte) (record, error) {
	be := binary.BigEndian
	if len(b) != recordSize || string(b[:8]) != recordMagic {
		return record{}, fmt.Errorf("verbs: no QP record of ours: it has %d bytes and begins with %q", len(b), b[:min(8, len(b))])
	}
	r := record{
		link: ibv.LinkLayer(b[8]), mtu: ibv.MTU(b[9]), lid: be.Uint16(b[10:]), qpn: be.Uint32(b[12:]), psn: be.Uint32(b[16:]), rkey: be.Uint32(b[20:]),
		addr: be.Uint64(b[24:]), bytes: be.Uint64(b[32:]), gid: ibv.GID(b[40:56]), reads: b[56],
	}
	switch {
	case r.link != ibv.InfiniBand && r.link != ibv.Ethernet:
		return record{}, fmt.Errorf("verbs: QP record with %v", r.link)
	case r.mtu.Bytes() == 0:
		return record{}, fmt.Errorf("verbs: QP record with MTU code %d", r.mtu)
	case r.qpn == 1 || r.qpn > most24 || r.psn > most24:
		return record{}, fmt.Errorf("verbs: QP record with QP %#x and packet number %#x, which have 24 bits", r.qpn, r.psn)
	case r.vacant():
	case r.reads < 1 || b[57]|b[58]|b[59] != 0:
		return record{}, fmt.Errorf("verbs: QP record with %d reads at once, and % x behind", r.reads, b[57:])
	case r.addr+r.bytes < r.addr:
		return record{}, fmt.Errorf("verbs: QP record with %d bytes of memory at %#x", r.bytes, r.addr)
	case r.link == ibv.Ethernet && r.gid == ibv.GID{}:
		return record{}, fmt.Errorf("verbs: QP record without a GID, which Ethernet needs")
	case r.link == ibv.InfiniBand && r.lid == 0 && r.gid == ibv.GID{}:
		return record{}, fmt.Errorf("verbs: QP record with neither LID nor GID")
	}
	return r, nil
}

// vacant reports whether there is no QP.
func (r record) vacant() bool { return r.qpn == 0 }

// name tells a QP from others, also from one that had its number before or gets it later.
func (r record) name() uint64 { return uint64(r.qpn)<<24 | uint64(r.psn) }

// meets completes the path to the peer's QP: the path MTU is the smaller of both ends', whatever each could do alone.
func (r record) meets(peer record, p path) (path, error) {
	if r.link != peer.link {
		return p, fmt.Errorf("verbs: our port is %v, the peer's %v: they cannot reach each other", r.link, peer.link)
	}
	p.mtu, p.reads = min(r.mtu, peer.mtu), min(r.reads, peer.reads)
	p.peerQPN, p.peerPSN, p.psn = peer.qpn, peer.psn, r.psn
	p.av.LID, p.av.GID = peer.lid, peer.gid
	p.av.Port = p.port
	// Ethernet knows no other address than the GID. Between InfiniBand subnets a router needs it, too.
	p.av.Global = r.link == ibv.Ethernet || peer.lid == 0 || [8]byte(r.gid[:8]) != [8]byte(peer.gid[:8])
	return p, nil
}
