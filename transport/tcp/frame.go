package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	headerSize = 48
	pieceMax   = 1 << 20  // bytes of payload in a frame
	pieceMin   = 64 << 10 // smaller messages are not spread over flows
	unit       = 64       // messages lie on multiples of it in the staging ring
	ahead      = 32       // messages of a stream that may wait for their reader
)

// Kinds of frames.
const (
	kindPiece = iota + 1
	kindCredit
	kindBye
)

// header is the header of a frame; the package comment has the layout.
type header struct {
	kind   uint8
	stream uint16
	number uint64
	tag    uint32
	bytes  uint32
	offset uint32
	length uint32
	crc    uint32
	place  uint32
	credit uint32
}

const offsetAt = 24 // in a header

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errHeader = errors.New("header with a wrong checksum")

func (h *header) put(b *[headerSize]byte) {
	le := binary.LittleEndian
	b[4], b[5] = h.kind, 0
	le.PutUint16(b[6:], h.stream)
	le.PutUint64(b[8:], h.number)
	le.PutUint32(b[16:], h.tag)
	le.PutUint32(b[20:], h.bytes)
	le.PutUint32(b[offsetAt:], h.offset)
	le.PutUint32(b[28:], h.length)
	le.PutUint32(b[32:], h.crc)
	le.PutUint32(b[36:], h.place)
	le.PutUint32(b[40:], h.credit)
	le.PutUint32(b[44:], 0)
	le.PutUint32(b[:], crc32.Update(0, castagnoli, b[4:]))
}

// parse reads a header and checks all that needs no state: afterwards a piece
// lies within its message, and the message within most bytes.
func (h *header) parse(b []byte, streams int, most uint32) error {
	le := binary.LittleEndian
	_ = b[headerSize-1]
	if le.Uint32(b) != crc32.Update(0, castagnoli, b[4:headerSize]) {
		return errHeader
	}
	*h = header{
		kind:   b[4],
		stream: le.Uint16(b[6:]),
		number: le.Uint64(b[8:]),
		tag:    le.Uint32(b[16:]),
		bytes:  le.Uint32(b[20:]),
		offset: le.Uint32(b[offsetAt:]),
		length: le.Uint32(b[28:]),
		crc:    le.Uint32(b[32:]),
		place:  le.Uint32(b[36:]),
		credit: le.Uint32(b[40:]),
	}
	switch {
	case b[5] != 0 || le.Uint32(b[44:]) != 0 || h.kind < kindPiece || h.kind > kindBye:
		return fmt.Errorf("unknown frame of kind %d", h.kind)
	case int(h.stream) >= streams:
		return fmt.Errorf("frame of stream %d, there are %d", h.stream, streams)
	case h.kind != kindPiece && (h.length != 0 || h.bytes != 0 || h.offset != 0):
		return fmt.Errorf("frame of kind %d with %d bytes", h.kind, h.length)
	case h.bytes > most:
		return fmt.Errorf("message of %d bytes, the longest has %d", h.bytes, most)
	case h.offset > h.bytes || h.length > h.bytes-h.offset || h.length > pieceMax || h.length == 0 && h.bytes != 0:
		return fmt.Errorf("piece of %d bytes at %d of a message of %d", h.length, h.offset, h.bytes)
	}
	return nil
}

// span is the room that a message of n bytes takes in the staging ring.
func span(n int) uint64 { return (uint64(n) + unit - 1) &^ (unit - 1) }
