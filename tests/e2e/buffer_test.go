//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// ground is the memory of one rank that calls are tried on: a piece of Go's and, if the communicator gives any, one of Comm.Alloc.
type ground struct{ own, shared []byte }

func newGround(c *comm.Comm, specs []spec) (*ground, error) {
	var own, shared int
	for _, s := range specs {
		src, dst := s.blocks(c.Rank(), c.Size())
		room := (src+dst)*s.dtype.Size() + 1024
		own = max(own, room)
		if s.memory != sliceMemory {
			shared = max(shared, room+4*page)
		}
	}
	g := &ground{own: aligned(make([]byte, own+64), own)}
	if shared > 0 {
		m, err := c.Alloc(int64(shared))
		if err != nil {
			return nil, err
		}
		g.shared = unsafe.Slice((*byte)(m.Ptr), shared)
	}
	return g, nil
}

// newGroundOf is the memory for one call alone, and what gives it back.
func newGroundOf(c *comm.Comm, s spec) (*ground, func() error, error) {
	g, err := newGround(c, []spec{s})
	if err != nil || g.shared == nil {
		return g, func() error { return nil }, err
	}
	return g, func() error { return c.Free(memOf(g.shared)) }, nil
}

func aligned(room []byte, n int) []byte {
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % 64
	return room[skip:][:n:n]
}

// buffers are source and destination of one call, with canaries around them.
type buffers struct {
	src, dst []byte
	inPlace  bool
	guards   [][]byte
}

const (
	margin = 64   // bytes of canaries on each side, at least
	page   = 4096 // on which long buffers begin that peers can read: where they are to be received, peers may write them
	canary = 0xa5 // what they hold
	poison = 0x5b // what outputs hold before
)

// lay places the buffers of a call in fresh canaries and poison.
func (g *ground) lay(s spec, rank, n int) (*buffers, error) {
	size := s.dtype.Size()
	src, dst := s.blocks(rank, n)
	b := &buffers{inPlace: s.place.on(rank) && src > 0 && dst > 0 && s.kind != comm.KindSend}
	srcShared, dstShared := s.memory.shared(rank)
	if b.inPlace {
		srcShared = dstShared
	}
	own, shared := g.own, g.shared
	place := func(inShared bool, n int) []byte {
		room := &own
		if inShared {
			room = &shared
		}
		at := margin + s.shift*size
		if inShared && s.shift == 0 && n*size >= page {
			at = margin + int(-(uintptr(unsafe.Pointer(unsafe.SliceData(*room)))+margin)%page)
		}
		all := (*room)[:(at+n*size+margin+63)&^63]
		*room = (*room)[len(all):]
		for i := range all {
			all[i] = canary
		}
		b.guards = append(b.guards, all[:at], all[at+n*size:])
		return all[at:][: n*size : n*size]
	}
	if b.inPlace {
		whole := place(dstShared, max(src, dst))
		b.src, b.dst = whole[:src*size], whole[:dst*size]
		switch s.kind {
		case comm.KindAllGather:
			b.src = whole[rank*src*size:][:src*size]
		case comm.KindReduceScatter:
			b.dst = whole[rank*dst*size:][:dst*size]
		}
		fill(whole, poison)
		return b, nil
	}
	b.src, b.dst = place(srcShared, src), place(dstShared, dst)
	fill(b.dst, poison)
	return b, nil
}

func fill(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

var canaries = bytes.Repeat([]byte{canary}, 2*page)

// guarded returns an error when a canary was overwritten.
func (b *buffers) guarded() error {
	for i, g := range b.guards {
		if !bytes.Equal(g, canaries[:len(g)]) {
			return fmt.Errorf("bytes %s were written to", [...]string{"before the first buffer", "behind the first buffer", "before the destination", "behind the destination"}[i])
		}
	}
	return nil
}

// memOf is the memory of a buffer, nil when it is empty.
func memOf(b []byte) kernels.Mem {
	if len(b) == 0 {
		return kernels.Mem{}
	}
	return kernels.Mem{Ptr: unsafe.Pointer(unsafe.SliceData(b)), Bytes: int64(len(b))}
}

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// window is how many elements compareExactly looks at, at each end of a long message: it is slow.
const window = 1500

// compareExactly compares, bit by bit, with the kernels' own reference: one fold in rank order. Where the order of roundings is the
// algorithm's it compares nothing.
func compareExactly(in reference.Input, exact bool, dst []byte, first int) error {
	if !exact || in.Ranks == 1 {
		return nil
	}
	size := in.DType.Size()
	count := len(dst) / size
	if err := compareWindow(in, dst[:min(count, window)*size], first); err != nil {
		return err
	}
	from := max(count-window, min(count, window))
	return compareWindow(in, dst[from*size:], first+from)
}

func compareWindow(in reference.Input, dst []byte, first int) error {
	if len(dst) == 0 {
		return nil
	}
	srcs := make([][]byte, in.Ranks)
	for q := range srcs {
		srcs[q] = make([]byte, len(dst))
		in.Write(srcs[q], q, first)
	}
	var want []byte
	switch {
	case in.RedOp != kernels.Avg:
		want = kernelstest.Reduce(in.DType, in.RedOp, srcs)
	case in.DType.IsFloat():
		want = kernelstest.PreMul(in.DType, srcs, kernels.AllSources, 1/float64(in.Ranks))
	default:
		want = kernelstest.PostDiv(in.DType, kernelstest.Reduce(in.DType, kernels.Sum, srcs), int64(in.Ranks))
	}
	if bytes.Equal(dst, want) {
		return nil
	}
	size := in.DType.Size()
	for i := 0; ; i++ {
		if got, w := dst[i*size:][:size], want[i*size:][:size]; !bytes.Equal(got, w) {
			text := fmt.Sprintf("element %d is % x, want % x (in memory), the fold in rank order of", first+i, got, w)
			for _, src := range srcs {
				text += fmt.Sprintf(" [% x]", src[i*size:][:size])
			}
			return fmt.Errorf("%s", text)
		}
	}
}
