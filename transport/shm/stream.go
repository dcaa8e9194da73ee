//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"hash/crc32"

	"github.com/gccl-project/gccl/transport"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stream is one stream of a conn: a sender of ours and a receiver of the peer's.
type stream struct {
	tx    sender
	rx    receiver
	c     *conn
	index int
	err   error // sticky
}

func (s *stream) init(c *conn, i int) {
	s.c, s.index = c, i
	counters := &c.e.seg.header().counters
	first := c.e.opts.FirstSeq
	s.tx = sender{bell: &c.p.header().sleep, counters: counters, first: first, seq: first, head: first}
	s.rx = receiver{bell: &c.p.header().sleep, counters: counters, seq: first, plain: !c.e.opts.Checksum}
	for k := range uint64(ringLines) {
		at := s.rx.seq + k
		s.rx.idle[at%ringLines] = (at - ringLines) << 32
	}
}

// fail ends the stream in both directions.
func (s *stream) fail(op string, err error) error {
	s.err = s.c.wrap(op, err)
	s.tx.short = 0
	s.rx.ring = ring{}
	s.rx.viewing = false
	return s.err
}

func (s *stream) frame(b transport.Buf) transport.Frame {
	return transport.Frame{Transport: "shm", Key: s.c.key, Stream: s.index, Seq: s.tx.seq, Bytes: b.N}
}

func (s *stream) tooLong(n int) error {
	return fmt.Errorf("a message of %d bytes, want 0 to %d (Options.MaxMessage)", n, s.c.e.opts.MaxMessage)
}
