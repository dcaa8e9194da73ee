package verbs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// header is the beginning of a slot; the package comment has the layout.
type header struct {
	seal   uint32
	crc    uint32
	number uint64
	tag    uint32
	bytes  uint32
	offset uint32
	length uint32
	credit uint32
	use    uint64
}

const (
	headerSize = 48
	sealAt     = 0 // in a header
	crcAt      = 4
	offsetAt   = 24
	lengthAt   = 28
	creditAt   = 32
	useAt      = 40
)

// sealMost is the longest piece that is sealed: it is short enough to travel in its request.
const (
	inlineAsk = 128 // bytes of a request
	sealMost  = inlineAsk - headerSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealOf mixes what is in a slot with a piece of n bytes, apart from the seal itself, into a number that is not 0. A step is one-to-one in
// the word that it takes in and in what was before, so that no single word that has not come yet goes unnoticed. It costs less than a CRC,
// twice for each short message.
func sealOf(slot []byte, n int) uint32 {
	const odd = 0x9e3779b97f4a7c15
	b := slot[crcAt+4 : headerSize+n]
	h := uint64(binary.LittleEndian.Uint32(slot[crcAt:])) * odd
	for ; len(b) >= 8; b = b[8:] {
		h = (h ^ binary.LittleEndian.Uint64(b)) * odd
		h ^= h >> 32
	}
	for _, v := range b {
		h = (h ^ uint64(v)) * odd
		h ^= h >> 32
	}
	return uint32(h) | 1
}

// sealed reports whether all of a short piece is in its slot, which is written for the so manieth time. It assumes nothing about the order
// in which the bytes come: until the last is there the checksum is another.
func sealed(slot []byte, use uint64) bool {
	if atomic.LoadUint64((*uint64)(unsafe.Pointer(&slot[useAt]))) != use {
		return false
	}
	n := binary.LittleEndian.Uint32(slot[lengthAt:])
	seal := binary.LittleEndian.Uint32(slot[sealAt:])
	return n <= sealMost && seal != 0 && sealOf(slot, int(n)) == seal
}

func (h *header) put(b []byte) {
	le := binary.LittleEndian
	_ = b[headerSize-1]
	le.PutUint32(b[sealAt:], h.seal)
	le.PutUint32(b[crcAt:], h.crc)
	le.PutUint64(b[8:], h.number)
	le.PutUint32(b[16:], h.tag)
	le.PutUint32(b[20:], h.bytes)
	le.PutUint32(b[offsetAt:], h.offset)
	le.PutUint32(b[lengthAt:], h.length)
	le.PutUint32(b[creditAt:], h.credit)
	le.PutUint32(b[36:], 0)
	le.PutUint64(b[useAt:], h.use)
}

// parse reads the header of a slot and checks all that needs no state: afterwards the piece lies in its slot and in its message.
func (h *header) parse(slot []byte, most uint32) error {
	le := binary.LittleEndian
	_ = slot[headerSize-1]
	*h = header{
		seal: le.Uint32(slot[sealAt:]), crc: le.Uint32(slot[crcAt:]), number: le.Uint64(slot[8:]), tag: le.Uint32(slot[16:]), bytes: le.Uint32(slot[20:]),
		offset: le.Uint32(slot[offsetAt:]), length: le.Uint32(slot[lengthAt:]), credit: le.Uint32(slot[creditAt:]), use: le.Uint64(slot[useAt:]),
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
