package gpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Transfer is a message between two ranks of a communicator: what one sent and the other received, matched.
type Transfer struct {
	From, To             int
	Src, Dst             unsafe.Pointer
	Bytes                int64
	FromStream, ToStream cuda.Stream
}

// Transfers queues messages in one launch on each GPU that sends, between the streams of all ranks that take part; each rank has
// one stream. Messages don't overlap in memory, whatever their order. It does not wait for a GPU.
func (c *Communicator) Transfers(ts []Transfer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return c.transfer(ts)
}

// transfer is Transfers. The lock is held.
func (c *Communicator) transfer(ts []Transfer) error {
	part := uint64(0)
	for _, t := range ts {
		for _, end := range [2]struct {
			rank   int
			stream cuda.Stream
		}{{t.From, t.FromStream}, {t.To, t.ToStream}} {
			if end.rank < 0 || end.rank >= c.ranks || t.Bytes < 0 {
				return fmt.Errorf("gpu: a transfer of %d bytes from rank %d to %d of %d: %w", t.Bytes, t.From, t.To, c.ranks, kernels.ErrInvalid)
			}
			if part>>end.rank&1 != 0 && c.streams[end.rank] != end.stream {
				return fmt.Errorf("gpu: rank %d sends and receives on two streams (%#x and %#x) in one group: %w", end.rank, c.streams[end.rank], end.stream, kernels.ErrInvalid)
			}
			part |= 1 << end.rank
			c.streams[end.rank] = end.stream
		}
	}
	if part == 0 {
		return nil
	}
	if done, err := c.acrossMessages(ts, part); done || err != nil {
		return err
	}
	c.build.used = 0
	return c.run(part, 1, func(d *cuda.Device, phase int) error {
		if phase == 0 {
			c.build.transfers(d, c.devices, ts)
		}
		return nil
	})
}

// transfers adds the messages that a device's ranks send.
func (b *builder) transfers(d *cuda.Device, devices []*cuda.Device, ts []Transfer) {
	var p *cuda.Program
	for _, t := range ts {
		if t.Bytes == 0 || devices[t.From] != d {
			continue
		}
		b.srcs, b.dsts = append(b.srcs[:0], t.Src), append(b.dsts[:0], t.Dst)
		in := cuda.Instr{Code: cuda.Move, Count: uint64(t.Bytes)}
		for p == nil || !p.Lane() || !p.Add(in, b.srcs, b.dsts) {
			b.shape(d, p, cuda.MoveBytes)
			p = b.program(cuda.MoveBytes, 0)
		}
		b.longest, b.sources = max(b.longest, t.Bytes), 1
	}
	b.shape(d, p, cuda.MoveBytes)
}
