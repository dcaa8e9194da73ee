package tcp

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/gccl-project/gccl/transport"
)

const (
	helloSize   = 96
	welcomeSize = 256
	commitSize  = 8
	helloMagic  = "gcclTCP\x02" // the last byte is the version of the protocol
	commitMagic = "gcclTCP!"
	service     = "gccl tcp v1" // what the secret is proven for
)

// hello introduces one socket of an attempt to connect. Key is as the dialler
// has it: Self dials.
type hello struct {
	attempt  uint64 // random, common to the sockets of the attempt
	instance uint64 // of the endpoint that is meant
	key      transport.Key
	firstSeq uint64
	most     uint32 // Options.MaxMessage
	window   uint32
	streams  uint16
	flow     uint16
	flows    uint16
	checksum bool
}

func (h *hello) bytes() []byte {
	b := make([]byte, helloSize)
	be := binary.BigEndian
	copy(b, helloMagic)
	be.PutUint64(b[8:], h.attempt)
	be.PutUint64(b[16:], h.instance)
	be.PutUint64(b[24:], h.key.Comm)
	be.PutUint32(b[32:], uint32(h.key.Channel))
	be.PutUint32(b[36:], uint32(h.key.Self))
	be.PutUint32(b[40:], uint32(h.key.Peer))
	be.PutUint32(b[44:], h.most)
	be.PutUint64(b[48:], h.firstSeq)
	be.PutUint32(b[56:], h.window)
	be.PutUint16(b[60:], h.streams)
	be.PutUint16(b[62:], h.flow)
	be.PutUint16(b[64:], h.flows)
	if h.checksum {
		b[66] = 1
	}
	return b
}

func parseHello(b []byte) (hello, error) {
	be := binary.BigEndian
	if len(b) != helloSize || string(b[:7]) != helloMagic[:7] {
		return hello{}, fmt.Errorf("no hello of gccl's: it begins with %q", b[:min(8, len(b))])
	}
	if b[7] != helloMagic[7] {
		return hello{}, fmt.Errorf("%w: the peer speaks version %d of the protocol, we speak %d: all ranks must run the same release", transport.ErrMismatch, b[7], helloMagic[7])
	}
	h := hello{
		attempt:  be.Uint64(b[8:]),
		instance: be.Uint64(b[16:]),
		key: transport.Key{
			Comm:    be.Uint64(b[24:]),
			Channel: int32(be.Uint32(b[32:])),
			Self:    int32(be.Uint32(b[36:])),
			Peer:    int32(be.Uint32(b[40:])),
		},
		most:     be.Uint32(b[44:]),
		firstSeq: be.Uint64(b[48:]),
		window:   be.Uint32(b[56:]),
		streams:  be.Uint16(b[60:]),
		flow:     be.Uint16(b[62:]),
		flows:    be.Uint16(b[64:]),
		checksum: b[66] == 1,
	}
	if err := checkKey(h.key); err != nil {
		return hello{}, err
	}
	if h.window < 64<<10 || h.window > 64<<20 || h.window&(h.window-1) != 0 {
		return hello{}, fmt.Errorf("the peer has a window of %d bytes", h.window)
	}
	return h, nil
}

func checkKey(k transport.Key) error {
	if k.Self < 0 || k.Peer < 0 || k.Self == k.Peer || k.Channel < transport.PointToPoint {
		return fmt.Errorf("tcp: cannot connect with key %+v: ranks must be ≥ 0 and differ, the channel ≥ %d", k, transport.PointToPoint)
	}
	return nil
}

// agree compares what both ends must have in common; h is the peer's.
func (h *hello) agree(ours *hello) error {
	var field string
	var here, there any
	switch {
	case h.streams != ours.streams:
		field, here, there = "Options.Streams", ours.streams, h.streams
	case h.most != ours.most:
		field, here, there = "Options.MaxMessage", ours.most, h.most
	case h.checksum != ours.checksum:
		field, here, there = "Options.Checksum", ours.checksum, h.checksum
	case h.firstSeq != ours.firstSeq:
		field, here, there = "Options.FirstSeq", ours.firstSeq, h.firstSeq
	case h.flow >= h.flows || h.flows > maxFlows:
		return fmt.Errorf("socket %d of %d", h.flow, h.flows)
	default:
		return nil
	}
	return fmt.Errorf("%s is %v at rank %d and %v at rank %d", field, here, ours.key.Self, there, h.key.Self)
}

// verdict is how an acceptor answers a hello.
type verdict uint8

const (
	welcome  verdict = iota + 1 // commit when all sockets are welcome
	later                       // another attempt is under way or has won
	differs                     // the options differ; the reason says how
	noEntry                     // never: the reason says why
	left                        // never: our user, or the endpoint, has closed in good order
	verdicts = left
)

type reply struct {
	verdict verdict
	window  uint32
	reason  string
}

func (r *reply) bytes() []byte {
	b := make([]byte, welcomeSize)
	copy(b, helloMagic)
	b[8] = byte(r.verdict)
	binary.BigEndian.PutUint32(b[12:], r.window)
	reason := r.reason
	for len(reason) > welcomeSize-18 || !utf8.ValidString(reason) {
		reason = reason[:len(reason)-1]
	}
	binary.BigEndian.PutUint16(b[16:], uint16(len(reason)))
	copy(b[18:], reason)
	return b
}

func parseReply(b []byte) (reply, error) {
	if len(b) != welcomeSize || string(b[:8]) != helloMagic {
		return reply{}, fmt.Errorf("no answer of gccl's: it begins with %q", b[:min(8, len(b))])
	}
	n := int(binary.BigEndian.Uint16(b[16:]))
	r := reply{verdict: verdict(b[8]), window: binary.BigEndian.Uint32(b[12:])}
	if r.verdict < welcome || r.verdict > verdicts || n > welcomeSize-18 {
		return reply{}, fmt.Errorf("answer %d with a reason of %d bytes", b[8], n)
	}
	r.reason = string(b[18 : 18+n])
	if r.verdict == welcome && (r.window < 64<<10 || r.window > 64<<20 || r.window&(r.window-1) != 0) {
		return reply{}, fmt.Errorf("the peer has a window of %d bytes", r.window)
	}
	return r, nil
}
