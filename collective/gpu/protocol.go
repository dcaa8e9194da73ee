package gpu

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A protocol is how lanes of ranks wait for each other where no launch holds them all behind one join of streams: one lane a launch
// and GPU, or, as the tests have it, all lanes in one cooperative launch. No communicator chooses them: between linked GPUs the ways
// of across.go are faster.
type protocol uint8

const (
	// lines: what a rank reads of others' memory they store in its lines, each with the epoch in it. For short messages. No barrier
	// follows: a rank that stores lines of the epoch after the next has taken lines of the next one from every rank that it stores
	// them for, so kinds in which not everybody reads from everybody are refused.
	lines protocol = iota
	// barriers: every rank does its own moves on everybody's memory, between a barrier of all and another.
	barriers
)

// A desk is one rank's memory for waiting, on its device, mapped by the others.
type desk struct{ mem kernels.Mem }

// The layout of a desk: an epoch table, the flag tables of two barriers, lines.
const (
	flagTable  = 2 * cuda.MaxBlocks * cuda.MaxRanks * 4 // for even and odd epochs
	flagsAt    = 4096                                   // the epoch table has 256 bytes
	linesAt    = flagsAt + 2*flagTable
	deskBytes  = 4 << 20
	linesBytes = (deskBytes - linesAt) / 2 &^ 255 // of the lines of one parity
)

func (d *desk) epochs() unsafe.Pointer { return d.mem.Ptr }

// flags is the flag table of barrier 0 or 1.
func (d *desk) flags(barrier int) unsafe.Pointer {
	return unsafe.Add(d.mem.Ptr, flagsAt+barrier*flagTable)
}

// row is a row of lines, from a byte of the area on.
func (d *desk) row(at int64) unsafe.Pointer { return unsafe.Add(d.mem.Ptr, linesAt+at) }

// newDesks makes a zeroed desk for each rank, all on one device.
func newDesks(d *cuda.Device, ranks int) ([]desk, error) {
	desks := make([]desk, ranks)
	for r := range desks {
		m, err := d.Alloc(deskBytes)
		if err != nil {
			return nil, errors.Join(err, freeDesks(d, desks))
		}
		desks[r] = desk{m}
		if err := d.Fill(0, m.Ptr, 0, deskBytes); err != nil {
			return nil, errors.Join(err, freeDesks(d, desks))
		}
	}
	return desks, d.Wait(0)
}

func freeDesks(d *cuda.Device, desks []desk) (err error) {
	for _, k := range desks {
		if k.mem.Ptr != nil {
			err = errors.Join(err, d.Free(k.mem))
		}
	}
	return err
}

// waiting returns one program with a lane for each of the ranks given, who may be some of all: the others' lanes are in other
// launches. blocks is of a lane, the same in all launches of a call.
func (b *builder) waiting(m *Moves, calls []Call, desks []desk, ranks []int, how protocol, blocks, threads int, abort unsafe.Pointer) ([]cuda.Program, error) {
	b.begin(m, calls)
	call := &calls[0]
	if len(m.Phases) != 1 {
		return nil, fmt.Errorf("gpu: %v has %d phases, want 1 between ranks that wait for each other: %w", call, len(m.Phases), errors.ErrUnsupported)
	}
	if blocks > cuda.MaxBlocks {
		return nil, fmt.Errorf("gpu: %d blocks of a lane, want at most %d: %w", blocks, cuda.MaxBlocks, kernels.ErrInvalid)
	}
	kernel, size, err := waitingKernel(call, m.Phases[0], how)
	if err != nil {
		return nil, err
	}
	p := b.program(kernel, cuda.FactorBits(call.DType, 1/float64(m.Shape.Ranks)))
	p.SetShape(blocks, threads)
	p.SetWait(linesBytes, abort)
	plan, err := b.rows(m, how, size)
	if err != nil {
		return nil, err
	}
	start, end := -1, -1
	for _, r := range ranks {
		b.srcs = append(b.srcs[:0], desks[r].epochs())
		ok := p.Lane() && p.Add(cuda.Instr{Code: cuda.Begin}, b.srcs, nil)
		if how == lines {
			ok = ok && b.putLines(p, m, desks, plan, r, size) && b.takeLines(p, m, desks, plan, r, size)
		} else {
			first := p.Instrs()
			ok = ok && b.barrier(p, desks, 0, r, start, 0) && b.ownMoves(p, m, r, size)
			last := p.Instrs()
			ok = ok && b.barrier(p, desks, 1, r, end, cuda.Release)
			if start < 0 {
				start, end = first, last
			}
		}
		if !ok {
			return nil, fmt.Errorf("gpu: %v: the programs of ranks %v do not fit one launch: %w", call, ranks, errors.ErrUnsupported)
		}
	}
	return b.programs(), nil
}

// waitingKernel finds the one kernel that all moves can use, and bytes of what it counts in.
func waitingKernel(call *Call, moves []Move, how protocol) (cuda.Kernel, int, error) {
	folds, err := cuda.FoldKernel(call.DType, call.RedOp, how == lines)
	if err != nil {
		return 0, 0, err
	}
	k := kernelOf(&moves[0], folds)
	for i := range moves {
		if other := kernelOf(&moves[i], folds); other != k || other == cuda.SwapBytes && how == lines {
			return 0, 0, fmt.Errorf("gpu: %v needs several kernels, or exchanges by lines: %w", call, errors.ErrUnsupported)
		}
	}
	switch {
	case k == folds:
		return k, call.DType.Size(), nil
	case how == lines:
		return cuda.LineBytes, 1, nil
	}
	return k, 1, nil
}

// A read is what one rank reads of another's memory.
type read struct {
	place  Place
	scaled bool
	by     int32
}

// rows gives every read its row in the reader's lines.
func (b *builder) rows(m *Moves, how protocol, size int) (map[read]int64, error) {
	if how != lines {
		return nil, nil
	}
	rows, used := map[read]int64{}, make([]int64, m.Shape.Ranks)
	from := make([]uint64, m.Shape.Ranks)
	for i := range m.Phases[0] {
		mv := &m.Phases[0][i]
		_, n := b.layout.Piece(0, int(mv.Dsts[0].Piece))
		bytes := (int64(n)*int64(b.layout.Elem) + cuda.LinePayload - 1) / cuda.LinePayload * 16
		for _, d := range mv.Dsts {
			for k, s := range mv.Srcs {
				r := read{s, mv.Scaled>>k&1 != 0, d.Rank}
				if _, ok := rows[r]; ok || s.Rank == d.Rank {
					continue
				}
				rows[r] = used[d.Rank]
				used[d.Rank] += bytes
				from[d.Rank] |= 1 << s.Rank
			}
		}
	}
	for r := range used {
		if used[r] > linesBytes {
			return nil, fmt.Errorf("gpu: %v needs %d bytes of lines at rank %d, want at most %d: %w", &b.calls[0], used[r], r, linesBytes, errors.ErrUnsupported)
		}
		if all := uint64(1)<<m.Shape.Ranks - 1; from[r]|1<<r != all {
			return nil, fmt.Errorf("gpu: rank %d does not read from all others in %v: its lines could be overrun: %w", r, m.Shape.Kind, errors.ErrUnsupported)
		}
	}
	return rows, nil
}

// putLines stores what others read of rank's memory.
func (b *builder) putLines(p *cuda.Program, m *Moves, desks []desk, rows map[read]int64, rank, size int) bool {
	type source struct {
		place  Place
		scaled bool
	}
	seen := map[source]bool{}
	for i := range m.Phases[0] {
		for k, s := range m.Phases[0][i].Srcs {
			src := source{s, m.Phases[0][i].Scaled>>k&1 != 0}
			if int(s.Rank) != rank || seen[src] {
				continue
			}
			seen[src] = true
			at, n := b.layout.Piece(0, int(s.Piece))
			in := cuda.Instr{Code: cuda.Put, Count: uint64(n * b.layout.Elem / size)}
			if src.scaled {
				in.Scaled = 1
			}
			b.dsts = b.dsts[:0]
			for by := 1; by < len(desks); by++ { // the next rank first, so that not all store to the same one
				reader := (rank + by) % len(desks)
				if row, ok := rows[read{s, src.scaled, int32(reader)}]; ok {
					b.dsts = append(b.dsts, desks[reader].row(row))
				}
			}
			b.srcs = b.resolve(b.srcs, []Place{s}, at)
			if n > 0 && len(b.dsts) > 0 && !p.Add(in, b.srcs, b.dsts) {
				return false
			}
		}
	}
	return true
}

// takeLines makes rank's destinations of lines and its own memory.
func (b *builder) takeLines(p *cuda.Program, m *Moves, desks []desk, rows map[read]int64, rank, size int) bool {
	for i := range m.Phases[0] {
		mv := &m.Phases[0][i]
		at, n := b.layout.Piece(0, int(mv.Dsts[0].Piece))
		var own []Place
		for _, d := range mv.Dsts {
			if int(d.Rank) == rank {
				own = append(own, d)
			}
		}
		if len(own) == 0 || n == 0 {
			continue
		}
		in := cuda.Instr{Code: cuda.Take, Count: uint64(n * b.layout.Elem / size), Plain: cuda.NoPlain}
		b.dsts = b.resolve(b.dsts, own, at)
		b.srcs = b.resolve(b.srcs, mv.Srcs, at)
		plain := 0
		for k, s := range mv.Srcs {
			if int(s.Rank) != rank {
				b.srcs[k] = desks[rank].row(rows[read{s, mv.Scaled>>k&1 != 0, int32(rank)}])
				continue
			}
			plain++
			in.Plain, in.Scaled = uint8(k), mv.Scaled&(1<<k)
		}
		if plain > 1 || !p.Add(in, b.srcs, b.dsts) {
			return false
		}
	}
	return true
}

// barrier adds a barrier of all ranks; earlier is the number of the same one in another lane, or -1.
func (b *builder) barrier(p *cuda.Program, desks []desk, which, rank, earlier int, flags uint8) bool {
	in := cuda.Instr{Code: cuda.Barrier, Plain: uint8(rank), Flags: flags}
	if earlier >= 0 {
		return p.Repeat(in, earlier)
	}
	b.srcs = b.srcs[:0]
	for r := range desks {
		b.srcs = append(b.srcs, desks[r].flags(which))
	}
	return p.Add(in, b.srcs, nil)
}

// ownMoves are those that the rank does itself.
func (b *builder) ownMoves(p *cuda.Program, m *Moves, rank, size int) bool {
	for i := range m.Phases[0] {
		mv := &m.Phases[0][i]
		at, n := b.layout.Piece(0, int(mv.Dsts[0].Piece))
		if int(mv.Rank) != rank || n == 0 {
			continue
		}
		in := cuda.Instr{Code: cuda.Move, Count: uint64(n * b.layout.Elem / size), Scaled: mv.Scaled}
		if mv.Exchange {
			in.Code = cuda.Exchange
		}
		b.srcs, b.dsts = b.resolve(b.srcs, mv.Srcs, at), b.resolve(b.dsts, mv.Dsts, at)
		if !p.Add(in, b.srcs, b.dsts) {
			return false
		}
	}
	return true
}
