package cuda

import (
	"math"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// An LL128 is an exchange, a launch that stores LL128 lines in other sites' stages and takes those that they store. Its zero value is to be
// Reset.
type LL128 struct {
	args   ll128Args // first
	kernel WireKernel
	words  int
	groups int64
	limit  uint32
}

type shape struct{ blocks, threads uint32 }

// RowBytes is how long a row is that carries so many bytes of payload in LL128 lines.
func RowBytes(payload int64) int64 {
	packs := (payload + 15) / 16
	return (packs + groupPacks - 1) / groupPacks * groupBytes
}

const (
	groupBytes   = 1024
	groupPacks   = 60
	groupPayload = groupPacks * 16
)

// A Row is a place of lines in a stage, for traffic between its site and the one given.
type Row uint64

// NewRow returns the row at an address, a multiple of 1024, as the kernel on one of the two sites wants it: with the other's number.
func NewRow(at unsafe.Pointer, other int) Row { return Row(uint64(uintptr(at)) | uint64(other)) }

// From is the same row as the kernel on the other site wants it, where lines come from the one given.
func (r Row) From(site int) Row { return r&^(MaxSites-1) | Row(site) }

// A Pass is a step of an exchange, done by every thread for its part of the message: own is the fold of the sources and is stored in
// Puts and Early; then Takes are folded in their order, with own before the one numbered At (-1: without own), and the result is
// stored in Late and Relays.
type Pass struct {
	Bytes  int64
	Srcs   []unsafe.Pointer
	Puts   []Row
	Early  []unsafe.Pointer
	Takes  []Row
	Late   []unsafe.Pointer
	Relays []Row
	At     int
}

type ll128Args struct {
	factor, half, abort, mine    uint64
	me, npass, part, ack, await_ uint8
	_                            [3]uint8
	call, report                 uint64
	word                         [ll128Words]uint64
	stage                        [MaxSites]uint64
}

// Reset empties it. stages are those of all sites; half is the bytes from a row for even epochs to the one for odd ones. Blocks is the
// most that may run.
func (x *LL128) Reset(me int, stages []unsafe.Pointer, half int64, abort unsafe.Pointer, blocks int) {
	x.kernel, x.words, x.groups, x.limit = ll128Bytes, 0, 0, uint32(min(blocks, ll128Rows))
	a := &x.args
	a.factor, a.half, a.abort = 0, uint64(half), uint64(uintptr(abort))
	a.me, a.npass, a.part, a.ack, a.await_, a.call, a.report = uint8(me), 0, 0, 0, 0, 0, 0
	a.mine = uint64(uintptr(stages[me]))
	for i, s := range stages {
		a.stage[i] = uint64(uintptr(s))
	}
}

// Names says which call it is. Lines of a site that names another one are not taken, ever: who waits for them does so until abort.
func (x *LL128) Names(call uint32) { x.args.call = uint64(call) }

// Reports has exchanges counted in host memory, with each of MaxSites sites, 4 bytes each: those begun, and ReportOver bytes behind, those that are over.
func (x *LL128) Reports(at unsafe.Pointer) { x.args.report = uint64(uintptr(at)) }

// Folds has the passes fold elements of a type by an operator; factor is of an average (FactorBits).
func (x *LL128) Folds(d kernels.DType, op kernels.RedOp, factor uint64) (err error) {
	x.args.factor = factor
	x.kernel, err = wireFold(d, op, false)
	return err
}

// Meet says that a site exchanges with this one. Each of the two stores lines for the other, or else tells it: tells says that we
// store none for it, told that it stores none for us.
func (x *LL128) Meet(site int, tells, told bool) {
	bit := uint8(1) << site
	x.args.part |= bit
	if tells {
		x.args.ack |= bit
	}
	if told {
		x.args.await_ |= bit
	}
}

// Add appends a pass, or reports false if there is no room.
func (x *LL128) Add(p *Pass) bool {
	n := len(p.Srcs) + len(p.Puts) + len(p.Early) + len(p.Takes) + len(p.Late) + len(p.Relays)
	if x.args.npass == math.MaxUint8 || x.words+2+n > ll128Words {
		return false
	}
	counts, at := uint64(0), uint64(255)
	for i, n := range [6]int{len(p.Srcs), len(p.Puts), len(p.Early), len(p.Takes), len(p.Late), len(p.Relays)} {
		counts |= uint64(n) << (8 * i)
	}
	if p.At >= 0 {
		at = uint64(p.At)
	}
	begin, mixed := x.words, uint64(0)
	x.words += 2
	plain := func(list []unsafe.Pointer) {
		for _, q := range list {
			x.args.word[x.words] = uint64(uintptr(q))
			mixed |= uint64(uintptr(q))
			x.words++
		}
	}
	rows := func(list []Row) {
		for _, q := range list {
			x.args.word[x.words] = uint64(q)
			x.words++
		}
	}
	plain(p.Srcs)
	rows(p.Puts)
	plain(p.Early)
	rows(p.Takes)
	plain(p.Late)
	rows(p.Relays)
	counts |= at << 48
	if mixed%16 == 0 {
		counts |= 1 << 56
	}
	x.args.word[begin], x.args.word[begin+1] = uint64(p.Bytes), counts
	x.args.npass++
	x.groups = max(x.groups, RowBytes(p.Bytes)/groupBytes)
	return true
}

// parts: a warp for every group, in small blocks as long as there are few.
func (x *LL128) parts() (unsafe.Pointer, WireKernel, uint32, uint32) {
	s := shape{64, 128}
	switch g := x.groups; {
	case g <= 256:
		s.blocks = uint32(max(1, (g+3)/4))
	case g <= 512:
		s.threads = 256
	case g <= 1024:
		s.threads = 512
	default:
		s = shape{128, 512}
	}
	s.blocks = min(s.blocks, x.limit)
	return unsafe.Pointer(&x.args), x.kernel, s.blocks, s.threads
}
