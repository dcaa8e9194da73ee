package histories

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Phase is a part of a job's life.
type Phase uint8

// The phases.
const (
	Init Phase = iota
	Calls
	Split
	Shrink
	Close
	phases
)

func (p Phase) String() string { return [...]string{"init", "calls", "split", "shrink", "close"}[p] }

// Program is what all ranks of a job do, each its part.
type Program struct {
	Ranks       int
	Wire        Wire
	Credit      int // of a socket, in bytes
	Lanes       int
	MaxMessage  int
	Algorithm   string
	Checksum    bool
	FirstSeq    uint64
	InitTimeout time.Duration
	CallTimeout time.Duration
	NetDelay    time.Duration // up to so much, of each write of the bootstrap
	MemDelay    time.Duration // up to so much, of some messages
	Dwell       time.Duration // up to so much, of some readers on what was lent to them
	Steps       []Step
	Shrinks     bool // survivors shrink; else they just close
	RootApart   bool // the root is on a host of its own
	Lends       bool // memory is such as peers can read, and much of it long
}

// Step is a number of calls on one communicator, or the making of one.
type Step struct {
	Phase Phase
	Do    Deed
	On    Target // of Deeds calls: which communicator
	Mode  Mode
	Calls []Call
	// Of the rank in the world: colour and key of a Split.
	Colors, Keys []int
	Exclude      []int // of a Shrink
	Last         bool  // of the phase of the fault: all ranks send and receive; what did not strike before does now
}

// Deed is what a step does.
type Deed uint8

// The deeds.
const (
	DoCalls Deed = iota
	DoSplit
	DoShrink // a whole communicator, without Exclude
	DoCloseChild
)

// Target is a communicator of a program.
type Target uint8

// The communicators.
const (
	World   Target = iota
	Child          // the rank's part of the split
	Smaller        // what a healthy shrink made
	Both           // alternately World and Child, or World where there is no child
)

// Mode is how calls are waited for.
type Mode uint8

// The modes.
const (
	Blocking Mode = iota
	Started       // all are started, and waited for in a random order
	Grouped
	Parallel // all are started, and waited for at the same time
)

// Call is one collective, or a set of messages between pairs.
type Call struct {
	ID        uint64 // determines the data
	Kind      comm.Kind
	DType     kernels.DType
	RedOp     kernels.RedOp
	Count     int
	Root      int // modulo the size
	Algorithm string
	Messages  []Message // for KindSend, instead of a collective; ranks are modulo the size
}

// Message goes from one rank to another.
type Message struct{ From, To, Count int }

var dtypes = []kernels.DType{kernels.Int8, kernels.Uint8, kernels.Int32, kernels.Uint32, kernels.Int64, kernels.Uint64, kernels.Float32, kernels.Float64}

// newProgram draws a program of ranks on a wire that has the phase in it.
func newProgram(rng *rand.Rand, with Phase, ranks int, wire Wire) Program {
	p := Program{
		Ranks: ranks, Wire: wire, Credit: []int{64, 512, 4096, 1 << 20}[rng.IntN(4)], Lanes: []int{1, 1, 2, 4}[rng.IntN(4)], MaxMessage: []int{64, 128, 512, 4096, 1 << 20}[rng.IntN(5)],
		Checksum: rng.IntN(3) == 0, Shrinks: rng.IntN(3) > 0, RootApart: rng.IntN(2) == 0, Lends: wire != Socket && rng.IntN(6) > 0,
		InitTimeout: 20 * time.Second, CallTimeout: []time.Duration{10 * time.Second, 14 * time.Second}[rng.IntN(2)],
	}
	if rng.IntN(3) == 0 {
		p.Algorithm = []string{"ring", "tree", "doubling", "direct", "oneshot", "twoshot", "chain", "pairwise"}[rng.IntN(8)]
	}
	if p.Lends {
		p.MaxMessage = max(p.MaxMessage, 512)
	}
	if rng.IntN(4) == 0 {
		p.FirstSeq = math.MaxUint64 - uint64(rng.IntN(20))
	}
	if rng.IntN(4) > 0 {
		p.NetDelay = time.Duration(rng.IntN(3000)) * time.Microsecond
	}
	if rng.IntN(2) == 0 {
		p.MemDelay = time.Duration(rng.IntN(5000)) * time.Microsecond
	}
	if p.Lends && rng.IntN(2) == 0 {
		p.Dwell = time.Duration(rng.IntN(10000)) * time.Microsecond
	}
	if p.Lends && rng.IntN(2) == 0 { // much is lent or on its way when something fails, and word of that is late
		p.NetDelay, p.MemDelay, p.Dwell = 10*time.Millisecond+8*p.NetDelay, 5*time.Millisecond+4*p.MemDelay, 5*time.Millisecond+2*p.Dwell
	}
	calls := func(phase Phase, on Target, most int) {
		for range 1 + rng.IntN(most) {
			p.Steps = append(p.Steps, newCalls(rng, p.Ranks, phase, on, p.Lends))
		}
	}
	traffic := func(phase Phase) {
		if with == phase {
			p.Steps = append(p.Steps, newTraffic(rng, p.Ranks, phase))
		}
	}
	calls(Calls, World, 4)
	traffic(Calls)
	if with == Split || rng.IntN(3) == 0 {
		s := Step{Phase: Split, Do: DoSplit}
		colors := 1 + rng.IntN(3)
		for range p.Ranks {
			s.Colors = append(s.Colors, rng.IntN(colors+1)-1)
			s.Keys = append(s.Keys, rng.IntN(4))
		}
		if rng.IntN(2) == 0 {
			for r := range s.Colors {
				s.Colors[r] = max(s.Colors[r], 0)
			}
		}
		p.Steps = append(p.Steps, s)
		calls(Split, Child, 2)
		if rng.IntN(2) == 0 {
			calls(Split, Both, 2)
		}
		if rng.IntN(2) == 0 {
			p.Steps = append(p.Steps, Step{Phase: Split, Do: DoCloseChild})
			calls(Split, World, 1)
		}
		traffic(Split)
	}
	if with == Shrink || rng.IntN(5) == 0 {
		s := Step{Phase: Shrink, Do: DoShrink, Exclude: rng.Perm(p.Ranks)[:1+rng.IntN(p.Ranks-1)]}
		p.Steps = append(p.Steps, s)
		calls(Shrink, Smaller, 2)
		traffic(Shrink)
	}
	p.Steps = append(p.Steps, Step{Phase: Close, Calls: []Call{{ID: rng.Uint64(), Kind: comm.KindBarrier}}})
	return p
}

// members returns the ranks of the communicator that call k of a step on such a target is on, for one rank; nil: on none.
func (p *Program) members(on Target, k, rank int) []int {
	if on == Both {
		on = []Target{World, Child}[k%2]
	}
	all := sequence(p.Ranks)
	if on == World {
		return all
	}
	for _, s := range p.Steps {
		switch {
		case on == Child && s.Do == DoSplit && s.Colors[rank] >= 0:
			all = slices.DeleteFunc(all, func(q int) bool { return s.Colors[q] != s.Colors[rank] })
			slices.SortStableFunc(all, func(a, b int) int { return s.Keys[a] - s.Keys[b] })
			return all
		case on == Smaller && s.Do == DoShrink && !slices.Contains(s.Exclude, rank):
			return slices.DeleteFunc(all, func(q int) bool { return slices.Contains(s.Exclude, q) })
		}
	}
	return nil
}

func newCalls(rng *rand.Rand, ranks int, phase Phase, on Target, long bool) Step {
	s := Step{Phase: phase, On: on, Mode: Mode(rng.IntN(4))}
	n := 1 + rng.IntN(4)
	for range n {
		c := newCall(rng, ranks)
		if long && rng.IntN(4) > 0 {
			for i := range c.Messages {
				c.Messages[i].Count += lentBytes / c.DType.Size()
			}
			if c.Messages == nil && c.Kind != comm.KindBarrier {
				c.Count += (lentBytes + rng.IntN(lentBytes)) / c.DType.Size()
			}
		}
		s.Calls = append(s.Calls, c)
	}
	if rng.IntN(3) == 0 { // the same call again and again, with other data
		for i := range s.Calls {
			id := s.Calls[i].ID
			s.Calls[i] = s.Calls[0]
			s.Calls[i].ID = id
		}
	}
	return s
}

// lentBytes is the length of a buffer from which on it is lent.
const lentBytes = 4096

// newTraffic draws a call on the world in which every rank sends something that is not empty.
func newTraffic(rng *rand.Rand, ranks int, phase Phase) Step {
	kinds := []comm.Kind{comm.KindAllReduce, comm.KindAllGather, comm.KindReduceScatter, comm.KindAllToAll}
	c := Call{ID: rng.Uint64(), Kind: kinds[rng.IntN(len(kinds))], DType: dtypes[rng.IntN(len(dtypes))], Count: 64 * ranks}
	return Step{Phase: phase, Mode: Mode(rng.IntN(4)), Calls: []Call{c}, Last: true}
}

func newCount(rng *rand.Rand) int {
	switch rng.IntN(12) {
	case 0:
		return 0
	case 1, 2, 3:
		return 1 + rng.IntN(4)
	case 4:
		return 512 + rng.IntN(1024)
	}
	return 1 + rng.IntN(200)
}

func newCall(rng *rand.Rand, ranks int) Call {
	c := Call{ID: rng.Uint64(), DType: dtypes[rng.IntN(len(dtypes))]}
	if rng.IntN(4) == 0 {
		c.Kind = comm.KindSend
		for range 1 + rng.IntN(4) {
			c.Messages = append(c.Messages, Message{rng.IntN(ranks), rng.IntN(ranks), newCount(rng)})
		}
		return c
	}
	kinds := collective.Kinds()
	c.Kind = comm.Kind(kinds[rng.IntN(len(kinds))])
	if c.Kind == comm.KindBarrier {
		c.DType = 0
		return c
	}
	c.Count = newCount(rng)
	if collective.Kind(c.Kind).Reduces() {
		c.RedOp = kernels.RedOp(rng.IntN(4))
	}
	if collective.Kind(c.Kind).Rooted() {
		c.Root = rng.IntN(ranks)
	}
	if rng.IntN(3) == 0 {
		catalog := collective.Catalog(collective.Kind(c.Kind))
		c.Algorithm = catalog[rng.IntN(len(catalog))].Name
	}
	return c
}

// String says what the program is, in a few lines.
func (p Program) String() string {
	s := fmt.Sprintf("%d ranks, wire %v with credit %d, lanes %d, max message %d, algorithm %q, checksum %v, first seq %d, call timeout %v, delays %v, %v and %v, shrinks %v, root apart %v, lends %v",
		p.Ranks, p.Wire, p.Credit, p.Lanes, p.MaxMessage, p.Algorithm, p.Checksum, p.FirstSeq, p.CallTimeout, p.NetDelay, p.MemDelay, p.Dwell, p.Shrinks, p.RootApart, p.Lends)
	for i, t := range p.Steps {
		s += fmt.Sprintf("\n  step %d, %v: ", i, t.Phase)
		switch t.Do {
		case DoSplit:
			s += fmt.Sprintf("split, colours %v, keys %v", t.Colors, t.Keys)
		case DoShrink:
			s += fmt.Sprintf("shrink without %v", t.Exclude)
		case DoCloseChild:
			s += "close the child"
		default:
			s += fmt.Sprintf("on %v, %v:", [...]string{"the world", "the child", "the smaller one", "both"}[t.On], [...]string{"one by one", "started", "as a group", "in parallel"}[t.Mode])
			for _, c := range t.Calls {
				if c.Messages != nil {
					s += fmt.Sprintf(" messages %v of %v;", c.Messages, c.DType)
				} else {
					s += fmt.Sprintf(" %v of %d %v %v root %d by %q;", c.Kind, c.Count, c.DType, c.RedOp, c.Root, c.Algorithm)
				}
			}
		}
	}
	return s
}
