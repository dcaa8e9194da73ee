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
	c.flush()
	defer func() { c.part = 0 }()
	jobs := make([]job, len(ts))
	for i, t := range ts {
		if err := t.check(c.ranks); err != nil {
			return err
		}
		j := &jobs[i]
		j.transfer = t
		if !c.fits(j) {
			return fmt.Errorf("gpu: rank %d or %d sends and receives on two streams in one group: %w", t.From, t.To, kernels.ErrInvalid)
		}
		c.include(j)
	}
	if len(ts) == 0 {
		return nil
	}
	return c.run(jobs)
}

func (t *Transfer) check(ranks int) error {
	switch {
	case t.From < 0 || t.From >= ranks || t.To < 0 || t.To >= ranks || t.Bytes < 0:
		return fmt.Errorf("gpu: a transfer of %d bytes from rank %d to %d of %d: %w", t.Bytes, t.From, t.To, ranks, kernels.ErrInvalid)
	case t.From == t.To && t.FromStream != t.ToStream:
		return fmt.Errorf("gpu: rank %d sends to itself from stream %#x to %#x, want one: %w", t.From, t.FromStream, t.ToStream, kernels.ErrInvalid)
	}
	return nil
}
