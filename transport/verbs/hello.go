package verbs

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/gccl-project/gccl/transport"
)

const (
	helloMagic  = "gcclIBV\x03"                                                // the last byte is the version of the protocol
	helloSize   = 8 + 8 + 8 + 20 + 8 + 4 + 4 + 2 + 2 + 1 + 1 + 8 + addressMost // records follow
	replySize   = 256                                                          // and here
	commitMagic = "gcclIBV!"
	service     = "gccl verbs v1" // what the secret is proven for
)

// What a hello wants.
const (
	kindRing  = iota + 1 // "connect to me": from the higher rank of a pair
	kindOffer            // "here are my QPs": from the lower rank
	kindMend             // "here is one in the place of one that failed": from the lower rank
)

// hello begins a set-up over TCP. Key is as the sender has it.
type hello struct {
	kind     uint8
	instance uint64 // of the endpoint that is meant
	key      transport.Key
	firstSeq uint64
	most     uint32 // Options.MaxMessage
	slot     uint32
	slots    uint16
	streams  uint16
	checksum bool
	fallback bool
	address  []byte   // of the sender, in a ring
	queues   uint8    // of the offer: so many records follow
	number   uint32   // of the offer, in a kindMend: in each place they count up
	mends    uint64   // the place: the name of the QP that was the receiver's there first
	records  []record // in an offer
}

func (h *hello) bytes() []byte {
	be := binary.BigEndian
	b := append(make([]byte, 0, helloSize), helloMagic...)
	b = append(b, h.kind, h.queues, 0, 0)
	b = be.AppendUint32(b, h.number)
	b = be.AppendUint64(b, h.instance)
	b = be.AppendUint64(b, h.key.Comm)
	b = be.AppendUint32(b, uint32(h.key.Channel))
	b = be.AppendUint32(b, uint32(h.key.Self))
	b = be.AppendUint32(b, uint32(h.key.Peer))
	b = be.AppendUint64(b, h.firstSeq)
	b = be.AppendUint32(b, h.most)
	b = be.AppendUint32(b, h.slot)
	b = be.AppendUint16(b, h.slots)
	b = be.AppendUint16(b, h.streams)
	sum := byte(0)
	if h.checksum {
		sum = 1
	}
	if h.fallback {
		sum |= 2
	}
	b = append(b, sum, byte(len(h.address)))
	b = be.AppendUint64(b, h.mends)
	b = append(b, h.address...)
	return appendRecords(b[:helloSize], h.records)
}

func appendRecords(b []byte, records []record) []byte {
	for i := range records {
		b = records[i].append(b)
	}
	return b
}

// parseRecords reads what follows a hello or a reply.
func parseRecords(b []byte) ([]record, error) {
	var all []record
	for ; len(b) > 0; b = b[min(recordSize, len(b)):] {
		r, err := parseRecord(b[:min(recordSize, len(b))])
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// follows is how many bytes of records come after a hello.
func (h *hello) follows() int { return int(h.queues) * recordSize }

// follows is how many bytes of records come after a reply.
func (r *reply) follows() int { return int(r.queues) * recordSize }

func parseHello(b []byte) (hello, error) {
	be := binary.BigEndian
	if len(b) != helloSize || string(b[:7]) != helloMagic[:7] {
		return hello{}, fmt.Errorf("no hello of gccl's: it begins with %q", b[:min(8, len(b))])
	}
	if b[7] != helloMagic[7] {
		return hello{}, fmt.Errorf("%w: the peer speaks version %d of the protocol, we speak %d: all ranks must run the same release", transport.ErrMismatch, b[7], helloMagic[7])
	}
	h := hello{
		kind:     b[8],
		queues:   b[9],
		number:   be.Uint32(b[12:]),
		instance: be.Uint64(b[16:]),
		key: transport.Key{
			Comm: be.Uint64(b[24:]), Channel: int32(be.Uint32(b[32:])), Self: int32(be.Uint32(b[36:])), Peer: int32(be.Uint32(b[40:])),
		},
		firstSeq: be.Uint64(b[44:]),
		most:     be.Uint32(b[52:]),
		slot:     be.Uint32(b[56:]),
		slots:    be.Uint16(b[60:]),
		streams:  be.Uint16(b[62:]),
		checksum: b[64]&1 != 0,
		fallback: b[64]&2 != 0,
		mends:    be.Uint64(b[66:]),
	}
	if err := checkKey(h.key); err != nil {
		return hello{}, err
	}
	n := int(b[65])
	if n > addressMost {
		return hello{}, fmt.Errorf("hello with an address of %d bytes", n)
	}
	h.address = b[74 : 74+n]
	var err error
	switch {
	case h.kind == kindRing && h.key.Self > h.key.Peer && h.queues == 0:
		_, err = parseAddress(h.address)
	case h.kind == kindOffer && h.key.Self < h.key.Peer && h.queues >= 1 && h.queues <= queuesMost:
	case h.kind == kindMend && h.key.Self < h.key.Peer && h.queues == 1:
	default:
		err = fmt.Errorf("hello of kind %d with %d QPs from rank %d to rank %d", h.kind, h.queues, h.key.Self, h.key.Peer)
	}
	return h, err
}

func checkKey(k transport.Key) error {
	if k.Self < 0 || k.Peer < 0 || k.Self == k.Peer || k.Channel < transport.PointToPoint {
		return fmt.Errorf("verbs: cannot connect with key %+v: ranks must be ≥ 0 and differ, the channel ≥ %d", k, transport.PointToPoint)
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
	case h.fallback != ours.fallback:
		field, here, there = "Config.Fallback", ours.fallback, h.fallback
	case h.firstSeq != ours.firstSeq:
		field, here, there = "Options.FirstSeq", ours.firstSeq, h.firstSeq
	case h.slot != ours.slot:
		field, here, there = "Config.Slot", ours.slot, h.slot
	case h.slots != ours.slots:
		field, here, there = "Config.Slots", ours.slots, h.slots
	default:
		return nil
	}
	return fmt.Errorf("%s is %v at rank %d and %v at rank %d", field, here, ours.key.Self, there, h.key.Self)
}

// verdict is how a hello is answered.
type verdict uint8

const (
	welcome  verdict = iota + 1 // a ring was heard; or the QP of the reply waits for a commit
	later                       // connected already, or out of something for now
	differs                     // the options differ; the reason says how
	noEntry                     // never: the reason says why
	left                        // never: our user, or the endpoint, has closed in good order
	verdicts = left
)

type reply struct {
	verdict verdict
	reason  string
	queues  uint8
	records []record // to an offer that is welcome; they follow
}

func (r *reply) bytes() []byte {
	b := append(make([]byte, 0, replySize), helloMagic...)
	reason := r.reason
	for len(reason) > 240 || !utf8.ValidString(reason) {
		reason = reason[:len(reason)-1]
	}
	b = append(b, byte(r.verdict), byte(len(reason)))
	b = append(b, reason...)
	b = append(b, make([]byte, replySize-len(b))...)
	b[replySize-1] = byte(len(r.records)) // a reply that was read has it in queues
	return appendRecords(b, r.records)
}

func parseReply(b []byte) (reply, error) {
	if len(b) != replySize || string(b[:8]) != helloMagic {
		return reply{}, fmt.Errorf("no answer of gccl's: it begins with %q", b[:min(8, len(b))])
	}
	n := int(b[9])
	r := reply{verdict: verdict(b[8]), queues: b[replySize-1]}
	if r.verdict < welcome || r.verdict > verdicts || n > 240 || r.queues > queuesMost {
		return reply{}, fmt.Errorf("answer %d with a reason of %d bytes and %d QPs", b[8], n, r.queues)
	}
	r.reason = string(b[10 : 10+n])
	return r, nil
}
