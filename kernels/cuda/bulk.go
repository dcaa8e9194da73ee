package cuda

import (
	"math"
	"unsafe"
)

// A Bulk is a launch of copies between a barrier of sites and another. Its zero value is to be Reset.
type Bulk struct {
	args     bulkArgs // first
	pointers int
	blocks   uint16
}

type copyArgs struct {
	bytes         uint64
	pointer       uint16
	ndst, _       uint8
	first, blocks uint16
}

type bulkArgs struct {
	abort           uint64
	stage           [MaxSites]uint64
	me, sites, part uint8
	_               uint8
	ncopies, _      uint16
	copy            [maxCopies]copyArgs
	pointer         [maxCopyPointers]uint64
	_               [4096 - 80 - 16*maxCopies - 8*maxCopyPointers]byte
}

// Reset empties it. part are the other sites that it meets, a bit each.
func (x *Bulk) Reset(me int, stages []unsafe.Pointer, abort unsafe.Pointer, part uint8) {
	a := &x.args
	a.abort, a.me, a.sites, a.part, a.ncopies = uint64(uintptr(abort)), uint8(me), uint8(len(stages)), part&^(1<<me), 0
	for i, s := range stages {
		a.stage[i] = uint64(uintptr(s))
	}
	x.pointers, x.blocks = 0, 0
}

// Add appends a copy by so many blocks of its own. It reports false if there is no room.
func (x *Bulk) Add(dsts []unsafe.Pointer, src unsafe.Pointer, bytes int64, blocks int) bool {
	a := &x.args
	if a.ncopies == maxCopies || x.pointers+1+len(dsts) > maxCopyPointers || blocks < 1 || int(x.blocks)+blocks > math.MaxUint8 {
		return false
	}
	a.copy[a.ncopies] = copyArgs{bytes: uint64(bytes), pointer: uint16(x.pointers), ndst: uint8(len(dsts)), first: x.blocks, blocks: uint16(blocks)}
	a.ncopies++
	a.pointer[x.pointers] = uint64(uintptr(src))
	x.pointers++
	for _, d := range dsts {
		a.pointer[x.pointers] = uint64(uintptr(d))
		x.pointers++
	}
	x.blocks += uint16(blocks)
	return true
}

// Blocks returns how many its copies have.
func (x *Bulk) Blocks() int { return int(x.blocks) }

// Pad gives it so many blocks at least: those of equal number meet, so all sites' launches have the same number.
func (x *Bulk) Pad(blocks int) { x.blocks = max(x.blocks, uint16(blocks)) }

func (x *Bulk) parts() (unsafe.Pointer, WireKernel, uint32, uint32) {
	return unsafe.Pointer(&x.args), bulkBytes, uint32(x.blocks), wireThreads
}
