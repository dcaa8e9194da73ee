package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A Push is a launch that stores every other site's piece of this site's inputs in its FIFO, and folds this site's piece out of its own
// FIFOs. Its zero value is to be Reset.
type Push struct {
	args   pushArgs // first
	kernel WireKernel
}

type pushArgs struct {
	factor, abort         uint64
	stage, at, bytes      [MaxSites]uint64
	share                 uint64
	stripes, chunk, depth uint32
	me, sites, nsrc, ndst uint8
	whole                 uint8
	_                     [3]uint8
	_                     uint32
	fifo                  uint64
	source                [8]uint64
	dst                   [8 * MaxSites]uint64
	_                     [4096 - 312 - 64*MaxSites]byte
}

// A Piece is a part of the inputs that one site folds, in bytes.
type Piece struct{ At, Bytes int64 }

// FIFO says how a stage's slots are cut: for each other site Share bytes from At on, in Stripes that have Depth slots of Chunk bytes
// each, a multiple of 16. Depth is 3 at least: what is said of a chunk is said once the next one has been waited for.
type FIFO struct {
	At, Share             int64
	Stripes, Chunk, Depth int
}

// Reset fills it. srcs are the inputs of the ranks here, at most 8, dsts where the site's own piece goes, here and elsewhere. All are
// multiples of 16. Whole says that other sites store in this one's memory.
func (x *Push) Reset(d kernels.DType, op kernels.RedOp, factor uint64, me int, stages []unsafe.Pointer, abort unsafe.Pointer, f FIFO, pieces []Piece, srcs, dsts []unsafe.Pointer, whole bool) (err error) {
	if f.Depth < 3 || len(srcs) > 8 || len(dsts) > len(x.args.dst) || f.Stripes > MaxStripes || len(stages) > MaxSites || int64(f.Stripes)*int64(f.Chunk)*int64(f.Depth) > f.Share {
		return fmt.Errorf("cuda: a push of %d sources to %d places, by %+v: %w", len(srcs), len(dsts), f, errors.ErrUnsupported)
	}
	if x.kernel, err = wireFold(d, op, true); err != nil {
		return err
	}
	a := &x.args
	a.factor, a.abort, a.share, a.fifo = factor, uint64(uintptr(abort)), uint64(f.Share), uint64(f.At)
	a.stripes, a.chunk, a.depth = uint32(f.Stripes), uint32(f.Chunk), uint32(f.Depth)
	a.me, a.sites, a.nsrc, a.ndst, a.whole = uint8(me), uint8(len(stages)), uint8(len(srcs)), uint8(len(dsts)), 0
	if whole {
		a.whole = 1
	}
	for i, s := range stages {
		a.stage[i], a.at[i], a.bytes[i] = uint64(uintptr(s)), uint64(pieces[i].At), uint64(pieces[i].Bytes)
	}
	for i, p := range srcs {
		a.source[i] = uint64(uintptr(p))
	}
	for i, p := range dsts {
		a.dst[i] = uint64(uintptr(p))
	}
	return nil
}

func (x *Push) parts() (unsafe.Pointer, WireKernel, uint32, uint32) {
	return unsafe.Pointer(&x.args), x.kernel, uint32(x.args.sites) * x.args.stripes, pushThreads
}
