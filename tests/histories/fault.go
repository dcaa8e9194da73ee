package histories

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Kind is what happens to a job.
type Kind uint8

// The kinds of faults.
const (
	None     Kind = iota
	Kill          // a rank's host dies: connections are reset
	KillTwo       // two ranks' hosts, at the same time
	Cut           // a rank's host is cut off: nothing passes, nobody is told
	Freeze        // a rank is cut off and stands still for a while
	Drop          // a message is lost
	Twice         // a message arrives twice
	Delay         // messages of one rank arrive late
	Reset         // a connection is reset
	Flip          // a bit is flipped on the way
	Reorder       // a message is overtaken by the next
	Truncate      // the end of a message is lost
	NoCall        // a rank leaves a call out, and is long away
	OddCall       // a rank calls something else
	Abort         // a rank aborts the communicator
	Cancel        // a rank's context ends
	Leave         // a rank closes too early
	kinds
)

func (k Kind) String() string {
	return [...]string{"none", "kill", "kill two", "cut", "freeze", "drop", "twice", "delay", "reset", "flip", "reorder", "truncate", "no call", "odd call", "abort", "cancel", "leave"}[k]
}

// phases of a job in which the kind makes sense: a message is only lost where there are messages.
func (k Kind) phases() []Phase {
	switch k {
	case None:
		return []Phase{Calls}
	case Drop, Twice, Delay, Reset, Flip, Reorder, Truncate, NoCall, OddCall, Leave:
		return []Phase{Calls, Split, Shrink}
	case Abort:
		return []Phase{Calls, Split, Shrink, Close}
	}
	return []Phase{Init, Calls, Split, Shrink, Close}
}

// messages is about how many a rank sends in the phase: a fault that waits for more only comes at the end of the phase.
func (p Phase) messages() int { return [...]int{Init: 0, Calls: 40, Split: 6, Shrink: 3, Close: 2}[p] }

// Fault is what happens, to whom and when.
type Fault struct {
	Kind   Kind
	Phase  Phase
	Ranks  []int         // at fault; the first one triggers
	Frames int           // the fault comes with its so many-th message since it came to the phase,
	After  time.Duration // or after so long, whichever is first
	Lasts  time.Duration // of Freeze and Delay
	Step   int           // of NoCall and OddCall: which step and call
	Call   int
	Bit    int
}

// long freezes are those after which a rank is given up for certain, short ones those that do no harm.
const (
	shortFreeze = 2 * time.Second
	longFreeze  = 8 * time.Second
)

// newFault draws a fault of a kind in a phase of the program.
func newFault(rng *rand.Rand, k Kind, phase Phase, p *Program) Fault {
	f := Fault{Kind: k, Phase: phase, Ranks: rng.Perm(p.Ranks)[:1], After: time.Duration(rng.IntN(60000)) * time.Microsecond, Bit: 1 + rng.IntN(4096)}
	most := phase.messages()
	if rng.IntN(2) == 0 {
		most = min(most, 5)
	}
	if most > 0 {
		f.Frames = 1 + rng.IntN(most)
	}
	if rng.IntN(2) == 0 {
		f.After /= 10
	}
	if most > 0 {
		switch rng.IntN(3) {
		case 0:
			f.Frames = 0
		case 1:
			f.After = time.Second
		}
	}
	switch k {
	case None:
		f.Ranks = nil
	case KillTwo:
		f.Ranks = rng.Perm(p.Ranks)[:2]
	case Freeze:
		f.Lasts = time.Duration(rng.Int64N(int64(shortFreeze)))
		if rng.IntN(2) == 0 {
			f.Lasts = longFreeze + time.Duration(rng.Int64N(int64(longFreeze)))
		}
	case Drop, Twice, Reset, Flip, Reorder, Truncate:
		f.Frames, f.After = 1+rng.IntN(most), 0
	case Delay:
		f.Frames, f.After, f.Lasts = 1+rng.IntN(most), 0, time.Duration(rng.Int64N(int64(500*time.Millisecond)))
	case NoCall, OddCall:
		var all [][2]int
		for i, s := range p.Steps {
			for k, c := range s.Calls {
				if s.Phase == phase && takesPart(c, p.members(s.On, k, f.Ranks[0]), f.Ranks[0]) {
					all = append(all, [2]int{i, k})
				}
			}
		}
		which := all[rng.IntN(len(all))] // the last step of the phase is one
		f.Step, f.Call = which[0], which[1]
	}
	if k == Flip {
		p.Checksum = true
	}
	return f
}

// ofMessage reports whether the fault befalls messages.
func (k Kind) ofMessage() bool {
	switch k {
	case Drop, Twice, Delay, Reset, Flip, Reorder, Truncate:
		return true
	}
	return false
}

// ofCall reports whether the fault is that of a call.
func (k Kind) ofCall() bool { return k == NoCall || k == OddCall }

// harmless reports whether every call must succeed all the same.
func (f Fault) harmless() bool {
	return f.Kind == None || f.Kind == Delay || f.Kind == Freeze && f.Lasts <= shortFreeze
}

// removes reports whether the ranks at fault are lost to the job.
func (f Fault) removes() bool {
	switch f.Kind {
	case Kill, KillTwo, Cut, Leave:
		return true
	case Freeze:
		return f.Lasts > shortFreeze
	}
	return false
}

func (f Fault) String() string {
	s := fmt.Sprintf("%v of ranks %v in %v", f.Kind, f.Ranks, f.Phase)
	switch f.Kind {
	case None:
		return "no fault"
	case NoCall, OddCall:
		return fmt.Sprintf("%s, step %d, call %d", s, f.Step, f.Call)
	}
	if f.Frames > 0 {
		s += fmt.Sprintf(", message %d", f.Frames)
	}
	if f.After > 0 {
		s += fmt.Sprintf(", after %v", f.After)
	}
	if f.Lasts > 0 {
		s += fmt.Sprintf(", for %v", f.Lasts)
	}
	return s
}

// History is a program and its fault.
type History struct {
	Seed uint64
	Program
	Fault Fault
}

// New draws the history of a seed. The fault's kind and phase, the wire and the number of ranks go round with the seed, so that a
// run of successive seeds has all combinations alike; one in soundEvery has no fault.
func New(seed uint64) History {
	rng := rand.New(rand.NewPCG(seed, 0x68697374))
	h := History{Seed: seed}
	combo, turn := faults[0], int(seed/soundEvery)
	if seed%soundEvery != 0 {
		turn = int(seed - seed/soundEvery - 1)
		combo, turn = faults[1+turn%(len(faults)-1)], turn/(len(faults)-1)
	}
	wire, ranks := Wire(turn%int(wires)), 2+turn/int(wires)%(maxRanks-1)
	h.Program = newProgram(rng, combo.phase, ranks, wire)
	h.Fault = newFault(rng, combo.kind, combo.phase, &h.Program)
	return h
}

const soundEvery = 20

// faults are all combinations of kind and phase; the first is none.
var faults = func() (all []combination) {
	for k := None; k < kinds; k++ {
		for _, p := range k.phases() {
			all = append(all, combination{k, p})
		}
	}
	return all
}()

type combination struct {
	kind  Kind
	phase Phase
}
