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
	viewOp                 // in a plan: a message from Peer as a view
	reuseOp                // in a plan: wait until Peer has let go of a message
)

var codeNames = [...]string{"send", "recv", "recvreduce", "fold", "copy", "view", "reuse"}

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
	Pieces int // pieces that a block is cut in, ≥ 1
	Temps  int // blocks of Temp
	Steps  [][]Instr
}

// chunks returns the number of chunks of a space.
func (s *Schedule) chunks(sp Space) int {
	in, out := s.Shape.Kind.Blocks(s.Shape.Ranks)
	switch sp {
	case In:
		return in * s.Pieces
	case Out:
		return out * s.Pieces
	case Temp:
		return s.Temps * s.Pieces
	}
	return 0
}

// Check returns an error that names the first instr that no machine could run.
func (s *Schedule) Check() error {
	if err := s.Shape.Check(); err != nil {
		return err
	}
	if s.Rank < 0 || s.Rank >= s.Shape.Ranks {
		return fmt.Errorf("collective: rank %d of %d", s.Rank, s.Shape.Ranks)
	}
	if s.Pieces < 1 || s.Temps < 0 {
		return fmt.Errorf("collective: %d pieces, %d temps", s.Pieces, s.Temps)
	}
	for k, step := range s.Steps {
		written := map[Slot]bool{}
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

func (s *Schedule) checkInstr(in Instr) error {
	if in.Code > Copy {
		return errors.New("unknown code")
	}
	if in.Code <= RecvReduce {
		if in.Peer < 0 || int(in.Peer) >= s.Shape.Ranks || int(in.Peer) == s.Rank {
			return fmt.Errorf("peer %d, want another rank of %d", in.Peer, s.Shape.Ranks)
		}
	}
	wires := 0
	for _, src := range in.Srcs {
		if src.Space == Wire && in.Code == RecvReduce {
			wires++
			continue
		}
		if err := s.checkSlot(src); err != nil {
			return err
		}
	}
	want := map[Code]string{Send: "1", Recv: "0", RecvReduce: "2", Fold: "1", Copy: "1"}[in.Code]
	n := len(in.Srcs)
	if n != int(want[0]-'0') && (in.Code != RecvReduce && in.Code != Fold || n < int(want[0]-'0')) {
		return fmt.Errorf("%d sources, want %s", n, want)
	}
	if in.Code == RecvReduce && wires != 1 {
		return fmt.Errorf("%d of the sources are the wire, want 1", wires)
	}
	if in.Code != Send {
		if in.Dst.Space == In {
			return errors.New("a schedule does not write its input")
		}
		return s.checkSlot(in.Dst)
	}
	return nil
}

func (s *Schedule) checkSlot(sl Slot) error {
	if n := s.chunks(sl.Space); sl.Chunk < 0 || int(sl.Chunk) >= n {
		return fmt.Errorf("%v is outside %v[0…%d]", sl, sl.Space, n-1)
	}
	if sl.Space == In && !s.Shape.HasIn(s.Rank) || sl.Space == Out && !s.Shape.HasOut(s.Rank) {
		return fmt.Errorf("rank %d has no %v in %v with root %d", s.Rank, sl.Space, s.Shape.Kind, s.Shape.Root)
	}
	return nil
}

// Cost is what a schedule does, for documentation, tests and the tuner. Bytes are in
// pieces, of which Schedule.Pieces make one block.
type Cost struct {
	Steps     int // steps with a message of this rank
	Sends     int // messages sent
	Receives  int // messages received
	Folded    int // pieces read by folds
	Copied    int // pieces copied
	MaxFanout int // most sends in one step
}

// Cost counts.
func (s *Schedule) Cost() Cost {
	var c Cost
	for _, step := range s.Steps {
		sends, moves := 0, 0
		for _, in := range step {
			switch in.Code {
			case Send:
				sends++
				moves++
			case Recv:
				c.Receives++
				moves++
			case RecvReduce:
				c.Receives++
				moves++
				c.Folded += len(in.Srcs)
			case Fold:
				c.Folded += len(in.Srcs)
			case Copy:
				c.Copied++
			}
		}
		c.Sends += sends
		c.MaxFanout = max(c.MaxFanout, sends)
		if moves > 0 {
			c.Steps++
		}
	}
	return c
}
