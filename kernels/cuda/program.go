package cuda

import (
	"math/bits"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Limits of a program: what a launch's arguments hold.
const (
	MaxLanes    = 64
	MaxInstrs   = 64
	MaxPointers = 294
	MaxThreads  = 256

	maxLaunches = cu.MaxLaunches
)

// Code says what an instr does; args.h has the whole meaning.
type Code uint8

// The codes; which kernel takes which is said there.
const (
	Move     Code = 0 // every destination = the fold of the sources, in their order
	Exchange Code = 1 // destination k = source k, all read before one is written; at most 8
	Divide   Code = 2 // destination = source divided by the factor; Plain is the size of an element
)

// Flags of instrs.
const (
	Signed  uint8 = 1 // of Divide: two's complement
	factors uint8 = 2 // of Move: every source has a factor of its own
	Fetch   uint8 = 4 // of AddScaled: the factors are addresses of elements
)

// An Instr is one action of a lane, on memory that is added with it.
type Instr struct {
	Count  uint64 // elements; bytes for the bytes kernels
	Scaled uint64 // sources whose elements are multiplied by the factor, a bit each; source k ≥ 64 has bit k mod 64
	first  uint16
	nsrc   uint8
	ndst   uint8
	Code   Code
	Flags  uint8
	Plain  uint8 // of Divide
	head   uint8
}

// args mirrors Args of args.h.
type args struct {
	factor  uint64
	start   [MaxLanes + 1]uint16
	_       [3]uint16
	instr   [MaxInstrs]Instr
	pointer [MaxPointers + 8]uint64
}

// A Program is one launch. Its zero value is empty; it is plain data and may be reused after Reset. Memory is given by device
// addresses, which it does not hold alive.
type Program struct {
	args     args // first: Launch counts on it
	kernel   Kernel
	blocks   uint32 // of a lane
	threads  uint32
	lanes    uint16
	instrs   uint16
	pointers uint16
}

// Reset empties the program for a kernel.
func (p *Program) Reset(k Kernel) {
	p.kernel, p.blocks, p.threads, p.lanes, p.instrs, p.pointers = k, 1, MaxThreads, 0, 0, 0
	p.args.factor = 0
	p.args.start[0] = 0
}

// Lane begins the next lane. It reports false if there is no room for one.
func (p *Program) Lane() bool {
	if p.lanes == MaxLanes {
		return false
	}
	p.lanes++
	p.args.start[p.lanes] = p.instrs
	return true
}

// Add appends an instr to the current lane. It reports false, and adds nothing, if there is no room.
func (p *Program) Add(in Instr, srcs, dsts []unsafe.Pointer) bool {
	n := len(srcs) + len(dsts)
	if p.lanes == 0 || p.instrs == MaxInstrs || int(p.pointers)+n > MaxPointers || len(srcs) > 255 || len(dsts) > 255 {
		return false
	}
	in.first, in.nsrc, in.ndst = p.pointers, uint8(len(srcs)), uint8(len(dsts))
	for i, s := range srcs {
		p.args.pointer[int(p.pointers)+i] = uint64(uintptr(s))
	}
	for i, d := range dsts {
		p.args.pointer[int(p.pointers)+len(srcs)+i] = uint64(uintptr(d))
	}
	if in.Code == Move || in.Code == Exchange {
		in.Plain, in.head = p.unit(int(p.pointers), n, in.Count)
	}
	p.pointers += uint16(n)
	p.args.instr[p.instrs] = in
	p.instrs++
	p.args.start[p.lanes] = p.instrs
	return true
}

// AddScaled is Add of a Move whose Scaled sources are multiplied by factors of their own, one for each source: FactorBits, or with
// Fetch device addresses of elements of the kernel's type, read when the program runs.
func (p *Program) AddScaled(in Instr, srcs, dsts []unsafe.Pointer, by []uint64) bool {
	if int(p.pointers)+len(srcs)+len(dsts)+len(by) > MaxPointers {
		return false
	}
	in.Flags |= factors
	if !p.Add(in, srcs, dsts) {
		return false
	}
	p.pointers += uint16(copy(p.args.pointer[p.pointers:], by))
	return true
}

// unit finds the largest unit of up to 16 bytes that n pointers agree on, as its logarithm, and the elements before the first whole one.
func (p *Program) unit(first, n int, count uint64) (unit, head uint8) {
	list, mixed := p.args.pointer[first:first+n], uint64(16)
	for _, x := range list[1:] {
		mixed |= x ^ list[0]
	}
	unit = uint8(bits.TrailingZeros64(mixed))
	before := -list[0] & (1<<unit - 1) / p.kernel.size()
	return unit, uint8(min(before, count))
}

// Instrs returns how many instrs there are.
func (p *Program) Instrs() int { return int(p.instrs) }

// Lanes returns how many lanes there are.
func (p *Program) Lanes() int { return int(p.lanes) }

// Empty reports whether nothing was added.
func (p *Program) Empty() bool { return p.instrs == 0 }

// SetFactor sets what Scaled sources are multiplied by, the bits of a float (of a double for Float64), or the divisor of Divide.
func (p *Program) SetFactor(bits uint64) { p.args.factor = bits }

// SetShape sets the blocks of every lane and the threads of a block, a multiple of 32 up to MaxThreads.
func (p *Program) SetShape(blocks, threads int) {
	p.blocks, p.threads = uint32(blocks), uint32(threads)
}

// A Join is what a launch needs to stand between several streams. It belongs to one goroutine at a time.
type Join struct {
	d      *Device
	before []cu.Event
	after  cu.Event
}

// NewJoin makes one for up to n streams. Destroy frees it.
func (d *Device) NewJoin(n int) (*Join, error) {
	j := &Join{d: d}
	for range n + 1 {
		e, err := cu.EventCreate(d.ctx, false)
		if err != nil {
			_ = j.Destroy()
			return nil, err
		}
		if j.after == 0 {
			j.after = e
		} else {
			j.before = append(j.before, e)
		}
	}
	return j, nil
}

// Behind reports whether the last launch between streams that wait for each other is still to come or under way, and which of the
// others, by their number, have not come so far as to let it start. It does not wait.
func (j *Join) Behind() (under bool, others []int, err error) {
	done, err := cu.EventDone(j.d.ctx, j.after)
	if done || err != nil {
		return false, nil, err
	}
	for i, e := range j.before {
		if done, err = cu.EventDone(j.d.ctx, e); err != nil {
			return false, nil, err
		}
		if !done {
			others = append(others, i)
		}
	}
	return true, others, nil
}

// Destroy frees its events.
func (j *Join) Destroy() (err error) {
	for _, e := range append(j.before, j.after) {
		if e != 0 {
			if e := cu.EventDestroy(j.d.ctx, e); err == nil {
				err = e
			}
		}
	}
	j.before, j.after = nil, 0
	return err
}

// Launch queues programs one after the other on a stream: after all that was queued on the others, which wait for the last
// program; with no program the streams meet all the same. Others equal to on cost nothing; j may be nil if there are no more.
// It allocates nothing.
func (d *Device) Launch(ps []Program, on Stream, others []Stream, j *Join) error {
	before, after, others := j.events(others)
	var buf [maxLaunches]cu.Launch
	for first := true; first || len(ps) > 0; first = false {
		n := min(len(ps), len(buf))
		if err := cu.LaunchJoined(d.ctx, d.launches(&buf, ps[:n]), unsafe.Pointer(unsafe.SliceData(ps)), int(unsafe.Sizeof(Program{})), on, others, before, after); err != nil {
			return err
		}
		ps = ps[n:]
	}
	return nil
}

// launches returns those of up to maxLaunches programs, in buf.
func (d *Device) launches(buf *[maxLaunches]cu.Launch, ps []Program) []cu.Launch {
	for i := range ps {
		p := &ps[i]
		buf[i] = cu.Launch{Function: d.table[p.kernel], Columns: p.blocks, Rows: uint32(p.lanes), Threads: p.threads}
	}
	return buf[:len(ps)]
}

// events returns what a launch between streams records, and the streams: none without a join.
func (j *Join) events(streams []Stream) (before []cu.Event, after cu.Event, others []Stream) {
	if j == nil {
		return nil, 0, nil
	}
	return j.before, j.after, streams
}
