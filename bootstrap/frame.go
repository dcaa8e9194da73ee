package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxPayload is the most bytes that one message may hold, and that the blocks of one AllGather may hold together.
const MaxPayload = 64 << 20

// A frame is: length of the body (4, big-endian), type (1), body. Numbers in bodies are big-endian.
const (
	frameHeader = 5
	maxFrame    = MaxPayload + 64
)

type frameType uint8

// Frames of a rank's connection to the root.
const (
	frameJoin       frameType = iota + 1 // rank → root: joinRequest
	frameProgress                        // root → rank: progress
	frameRefused                         // root → rank: refusal
	frameTable                           // root → rank: table; the world is complete
	frameMet                             // rank → root: empty; its session is whole
	frameLeave                           // rank → root: 1 if its time was over; it gives up, or heard that others did
	frameRootClosed                      // root → rank: empty; the ranks go on without it
)

// A rank's connection to the root also carries frameBeat, both ways; and after frameTable frameDead, where by is the world's size if the
// root saw it, and frameAbort, which the root passes on from one rank to all.

// Frames between ranks.
const (
	frameHello    frameType = iota + 16 // dialer → acceptor: hello
	frameWelcome                        // acceptor → dialer: empty; the session has the link
	frameNoEntry                        // acceptor → dialer: entry 1, text, givenUp or frames with news; the session is over there
	frameGather                         // seq 8, origin 4, payload
	frameMessage                        // tag 8, payload
	frameAbort                          // from 4, culprits: n 4, each 4; reason
	frameDead                           // rank 4, by 4, sure 1, reason
	frameClosed                         // rank 4, farewell: last 8, said 1, word 8; from that rank itself: the last frame
	frameQuestion                       // number 8, question
	frameAnswer                         // number 8, answerCode 1, answer
	frameBeat                           // beat 1
	frameGivenUp                        // givenUp; answers the first frame of a rank that was given up, and is the last
	frameAgree                          // agreeMessage
)

// appendHeader begins a frame whose body has n bytes.
func appendHeader(b []byte, t frameType, n int) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(n)), byte(t))
}

func makeFrame(t frameType, body []byte) []byte {
	return append(appendHeader(make([]byte, 0, frameHeader+len(body)), t, len(body)), body...)
}

// readFrame reads one frame with a body of at most limit bytes. The body is the caller's.
func readFrame(r io.Reader, limit int) (frameType, []byte, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.BigEndian.Uint32(h[:]))
	if n > int64(limit) {
		return 0, nil, &protocolError{fmt.Sprintf("a frame of type %d announces %d bytes; at most %d are allowed", h[4], n, limit)}
	}
	body, err := readBody(r, int(n))
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return frameType(h[4]), body, nil
}

// readBody grows with what really arrives, so that a length alone costs nothing.
func readBody(r io.Reader, n int) ([]byte, error) {
	const piece = 1 << 20
	body := make([]byte, min(n, piece))
	have := 0
	for {
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return nil, err
		}
		have = len(body)
		if have == n {
			return body, nil
		}
		grown := make([]byte, min(n, 4*have))
		copy(grown, body)
		body = grown
	}
}

// protocolError is a proven peer that breaks the protocol: a bug, or another release.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "protocol: " + e.what }

// fields takes numbers and texts off the front of a frame's body. After a short read every further one gives zeros, and bad
// reports it, so that callers check once.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.b) {
		f.bad = true
		f.b = nil
		return nil
	}
	head := f.b[:n]
	f.b = f.b[n:]
	return head
}

func (f *fields) u8() (v uint8) {
	if b := f.take(1); b != nil {
		v = b[0]
	}
	return v
}

func (f *fields) u16() (v uint16) {
	if b := f.take(2); b != nil {
		v = binary.BigEndian.Uint16(b)
	}
	return v
}

func (f *fields) u32() (v uint32) {
	if b := f.take(4); b != nil {
		v = binary.BigEndian.Uint32(b)
	}
	return v
}

func (f *fields) u64() (v uint64) {
	if b := f.take(8); b != nil {
		v = binary.BigEndian.Uint64(b)
	}
	return v
}

func (f *fields) text() string { return string(f.take(int(f.u16()))) }

func (f *fields) ranks() []int {
	n := int(f.u32())
	if n > len(f.b)/4 {
		f.bad = true
		return nil
	}
	var ranks []int
	for range n {
		ranks = append(ranks, int(f.u32()))
	}
	return ranks
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), 1<<15)]
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendRanks(b []byte, ranks []int) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(ranks)))
	for _, r := range ranks {
		b = binary.BigEndian.AppendUint32(b, uint32(r))
	}
	return b
}
