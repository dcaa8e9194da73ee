package collective

import (
	"errors"
	"fmt"
)

// Space is one of the memories a slot can lie in.
type Space uint8

// The spaces. A schedule reads In, writes Out and does as it likes with Temp;
// Wire stands, among the sources of a RecvReduce, for what was received.
const (
	In Space = iota
	Out
	Temp
	Wire
	view // in a plan: a message where the transport shows it
)

var spaceNames = [...]string{"in", "out", "temp", "wire", "view"}

func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return fmt.Sprintf("space(%d)", uint8(s))
}

// Slot is a numbered chunk of a space. Spaces are rows of blocks, each cut into
// Schedule.Pieces pieces: chunk c is piece c mod Pieces of block c div Pieces, and
// pieces with the same number have the same length everywhere.
type Slot struct {
	Space Space
	Chunk int32
}

// Code says what an Instr does.
type Code uint8

// The codes of a schedule.
const (
	Send       Code = iota // Srcs[0] to Peer
	Recv                   // from Peer to Dst
	RecvReduce             // Dst = sum of Srcs in their order, one of which is Wire: what Peer sent
	Fold                   // Dst = sum of Srcs in their order
	Copy                   // Dst = Srcs[0]
	viewOp                 // while compiling: a message from Peer as a view
)

var codeNames = [...]string{"send", "recv", "recvreduce", "fold", "copy", "view"}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

// Instr is one action of one rank. Whatever Code does not use is zero.
type Instr struct {
	Code Code
	Peer int32
	Dst  Slot
	Srcs []Slot
}

// Schedule is what one rank does, in steps. The instrs of a step happen together: all of
// them read what was there before the step. Messages between two ranks are matched in
// the order in which the steps, and the instrs in a step, send and receive them.
type Schedule struct {
	Shape  Shape
	Rank   int
	Pieces int // pieces that a block is cut in, 1…2^24
	Temps  int // blocks of Temp, 0…2^24
	Steps  [][]Instr
}

// The bounds keep every chunk number, and what Compile adds to them, in 32 bits.
const (
	maxPieces  = 1 << 24
	maxChunks  = 1 << 29
	maxSources = 1<<16 - 1
)

// chunks returns the number of chunks of a space.
func (s *Schedule) chunks(sp Space) int64 {
	in, out := s.Shape.Kind.Blocks(s.Shape.Ranks)
	switch sp {
	case In:
		return int64(in) * int64(s.Pieces)
	case Out:
		return int64(out) * int64(s.Pieces)
	case Temp:
		return int64(s.Temps) * int64(s.Pieces)
	}
	return 0
}

// Check returns an error that names the first instr that no machine could run.
func (s *Schedule) Check() error {
	if err := s.Shape.Check(); err != nil {
		return err
	}
	if s.Rank < 0 || s.Rank >= s.Shape.Ranks {
		return fmt.Errorf("collective: rank %d, want 0…%d", s.Rank, s.Shape.Ranks-1)
	}
	if s.Pieces < 1 || s.Pieces > maxPieces {
		return fmt.Errorf("collective: %d pieces, want 1…%d", s.Pieces, maxPieces)
	}
	if s.Temps < 0 || s.Temps > maxPieces {
		return fmt.Errorf("collective: %d blocks of temp, want 0…%d", s.Temps, maxPieces)
	}
	for sp := In; sp <= Temp; sp++ {
		if n := s.chunks(sp); n > maxChunks {
			return fmt.Errorf("collective: %d chunks of %v, want at most %d", n, sp, maxChunks)
		}
	}
	written := map[Slot]bool{}
	for k, step := range s.Steps {
		clear(written)
		for _, in := range step {
			err := s.checkInstr(in)
			if err == nil && in.Code != Send {
				if written[in.Dst] {
					err = errors.New("the destination is written twice in one step")
				}
				written[in.Dst] = true
			}
			if err != nil {
				return fmt.Errorf("collective: rank %d, step %d, %v: %w", s.Rank, k, in, err)
			}
		}
	}
	return nil
}

// sources is how many sources each code takes at least and at most.
var sources = [Copy + 1][2]int{Send: {1, 1}, Recv: {0, 0}, RecvReduce: {2, maxSources}, Fold: {1, maxSources}, Copy: {1, 1}}

func (s *Schedule) checkInstr(in Instr) error {
	if in.Code > Copy {
		return errors.New("unknown code")
	}
	switch messages := in.Code <= RecvReduce; {
	case messages && (in.Peer < 0 || int(in.Peer) >= s.Shape.Ranks || int(in.Peer) == s.Rank):
		return fmt.Errorf("peer %d, want another rank of %d", in.Peer, s.Shape.Ranks)
	case !messages && in.Peer != 0:
		return fmt.Errorf("peer %d, want 0 as nothing is sent", in.Peer)
	}
	if n, want := len(in.Srcs), sources[in.Code]; n < want[0] || n > want[1] {
		return fmt.Errorf("%d sources, want %d…%d", n, want[0], want[1])
	}
	if in.Code == Send {
		if in.Dst != (Slot{}) {
			return fmt.Errorf("destination %v, want none", in.Dst)
		}
	} else {
		if in.Dst.Space == In {
			return errors.New("a schedule does not write its input")
		}
		if err := s.checkSlot(in.Dst); err != nil {
			return err
		}
	}
	wires := 0
	for _, src := range in.Srcs {
		if src == (Slot{Space: Wire}) && in.Code == RecvReduce {
			wires++
			continue
		}
		if err := s.checkSlot(src); err != nil {
			return err
		}
		if p := int32(s.Pieces); in.Code != Send && src.Chunk%p != in.Dst.Chunk%p {
			return fmt.Errorf("%v is piece %d of its block and %v piece %d: the lengths differ", src, src.Chunk%p, in.Dst, in.Dst.Chunk%p)
		}
	}
	if in.Code == RecvReduce && wires != 1 {
		return fmt.Errorf("%d of the sources are the wire, want 1", wires)
	}
	return nil
}

func (s *Schedule) checkSlot(sl Slot) error {
	if sl.Space > Temp {
		return fmt.Errorf("%v, want in, out or temp", sl)
	}
	if n := s.chunks(sl.Space); sl.Chunk < 0 || int64(sl.Chunk) >= n {
		return fmt.Errorf("%v is outside %v, which has %d chunks", sl, sl.Space, n)
	}
	if sl.Space == In && !s.Shape.HasIn(s.Rank) || sl.Space == Out && !s.Shape.HasOut(s.Rank) {
		return fmt.Errorf("rank %d has no %v in %v with root %d", s.Rank, sl.Space, s.Shape.Kind, s.Shape.Root)
	}
	return nil
}
