package verbs

import (
	"encoding/binary"
	"fmt"
)

// header is the beginning of a slot; the package comment has the layout.
type header struct {
	number uint64
	tag    uint32
	bytes  uint32
	offset uint32
	length uint32
	crc    uint32
	credit uint32
	use    uint64
}

const (
	headerSize = 48
	lengthAt   = 20 // in a header
	creditAt   = 28
	useAt      = 32
)

func (h *header) put(b []byte) {
	le := binary.LittleEndian
	_ = b[headerSize-1]
	le.PutUint64(b, h.number)
	le.PutUint32(b[8:], h.tag)
	le.PutUint32(b[12:], h.bytes)
	le.PutUint32(b[16:], h.offset)
	le.PutUint32(b[20:], h.length)
	le.PutUint32(b[24:], h.crc)
	le.PutUint32(b[creditAt:], h.credit)
	le.PutUint64(b[useAt:], h.use)
}

// parse reads the header of a slot and checks all that needs no state: afterwards the piece lies in its slot and in its message.
func (h *header) parse(slot []byte, most uint32) error {
	le := binary.LittleEndian
	_ = slot[headerSize-1]
	*h = header{
		number: le.Uint64(slot), tag: le.Uint32(slot[8:]), bytes: le.Uint32(slot[12:]), offset: le.Uint32(slot[16:]), length: le.Uint32(slot[20:]),
		crc: le.Uint32(slot[24:]), credit: le.Uint32(slot[creditAt:]), use: le.Uint64(slot[useAt:]),
	}
	switch {
	case h.bytes > most:
		return fmt.Errorf("message of %d bytes, the longest has %d", h.bytes, most)
	case h.offset > h.bytes || h.length > h.bytes-h.offset || int(h.length) > len(slot)-headerSize || h.length == 0 && h.bytes != 0:
		return fmt.Errorf("piece of %d bytes at %d of a message of %d", h.length, h.offset, h.bytes)
	}
	return nil
}

// Kinds of immediates.
const (
	immWord   = iota // about the link: a word instead of a stream
	immPiece         // a slot was written
	immCredit        // so many slots of ours have been read
	immBye           // of a stream nothing more will come than so many slots
)

const countMask = 1<<24 - 1

// An immediate is kind 2 bits, stream 6 bits, count 24 bits: the slot's number, or how many were read, modulo 2^24.
func immediate(kind, stream int, count uint64) uint32 {
	return uint32(kind)<<30 | uint32(stream)<<24 | uint32(count)&countMask
}

func parseImmediate(v uint32) (kind, stream int, count uint32) {
	return int(v >> 30), int(v >> 24 & 63), v & countMask
}
