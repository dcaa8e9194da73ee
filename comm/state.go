package comm

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/kernels"
)

// agreed is what must be equal on all ranks about a call, as they tell each other.
type agreed struct {
	Kind      Kind
	DType     kernels.DType
	RedOp     kernels.RedOp
	Count     int
	Root      int
	Algorithm string
	Scaled    bool `json:",omitempty"` // Factor is set
	Whole     int  `json:",omitempty"` // Count of the call on GPU memory that it is a piece of

	Making string `json:",omitempty"` // instead of all that: the op of a making
}

func (a agreed) String() string {
	if a.Making != "" {
		return a.Making
	}
	c := Call{Kind: a.Kind, DType: a.DType, RedOp: a.RedOp, Count: a.Count, Root: a.Root, Factor: kernels.Factor{Set: a.Scaled}}
	s := c.String()
	if a.Whole != a.Count && a.Whole != 0 {
		s += fmt.Sprintf(" (a piece of %d)", a.Whole)
	}
	if a.Algorithm != "" {
		s += " by " + a.Algorithm
	}
	return s
}

// with is String, but of a message says which end of it the call is, and with whom; lane is -1 of a collective.
func (a agreed) with(lane, peer int) string {
	if lane < 0 {
		return a.String()
	}
	return fmt.Sprintf("%s of %d %v (peer %d)", [2]string{sending: "send", receiving: "recv"}[lane], a.Count, a.DType, peer)
}

func (p *prepared) agreed() agreed {
	return agreed{p.kind, p.dtype, p.redop, p.count, p.root, p.algorithm, p.scaled, p.whole, ""}
}

// entry is a call that was begun, in a ring of the last ones.
type entry struct {
	seq  uint64
	call *prepared
	run  *run // in flight while its seq is still this one; nil: done at once
}

const remembered = 16 // calls of a communicator, and of a pair and direction

// callState is what a rank says about one of its calls.
type callState struct {
	Seq  uint64
	Call agreed
	Done bool
}

// rankState is what a rank says about itself on one communicator when it is asked.
type rankState struct {
	Begun   uint64      // sequence number of the last collective begun
	Calls   []callState // the last ones, oldest first
	Waits   []int       // ranks that its calls in flight wait for
	Pair    [2]uint64   // sends to, and receives from, the rank that asks: numbers of the last begun
	Pairs   [2][]callState
	Failed  string   // why the communicator failed there
	Busy    []string // calls in flight on other communicators of the process, and where streams of GPUs stand
	Process string

	Made   uint64 // makings begun in which the rank that asks takes part, too
	Making string // the op of the last of them, while it is under way
	OnGPU  uint64 // collectives on GPU memory between processes that were called, but in graphs
	Stands bool   // one of those waits for other ranks

	Part *partState `json:",omitempty"` // if it is asked for, and there is one
}

// find returns what the state says about the collective seq.
func (s *rankState) find(seq uint64) *callState {
	for i := range s.Calls {
		if s.Calls[i].Seq == seq {
			return &s.Calls[i]
		}
	}
	return nil
}

// findPair is find for the message seq of a direction (sending, receiving) with the rank that asked.
func (s *rankState) findPair(lane int, seq uint64) *callState {
	for i := range s.Pairs[lane] {
		if s.Pairs[lane][i].Seq == seq {
			return &s.Pairs[lane][i]
		}
	}
	return nil
}

// finished is the number of the last collective that is done, as far as is remembered.
func (s *rankState) finished() uint64 {
	last := s.Begun
	for i := len(s.Calls) - 1; i >= 0 && !s.Calls[i].Done; i-- {
		last = s.Calls[i].Seq - 1
	}
	return last
}

// state is what we say about ourselves to rank from.
func (c *Comm) state(from int) rankState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := rankState{Begun: c.seq, Process: c.family.place()}
	for i := uint64(0); i < remembered; i++ {
		if e := c.recent[(c.seq+1+i)%remembered]; e.call != nil {
			s.Calls = append(s.Calls, callState{e.seq, e.call.agreed(), e.done()})
		}
	}
	for _, e := range c.refused {
		s.Calls = append(s.Calls, callState{e.seq, e.call.agreed(), false})
	}
	if p := c.pairs[from]; p != nil {
		s.Pair = p.seq
		for lane := range p.recent {
			for i := uint64(0); i < remembered; i++ {
				if e := p.recent[lane][(p.seq[lane]+1+i)%remembered]; e.call != nil {
					s.Pairs[lane] = append(s.Pairs[lane], callState{e.seq, e.call.agreed(), e.done()})
				}
			}
		}
	}
	if k := c.stuck.Load(); k != nil && !k.over() {
		s.Waits = k.peers
	}
	if c.part != nil && len(s.Waits) == 0 {
		for _, ranks := range [2]*[]int{c.part.waits.Load(), c.part.posts.Load()} {
			if ranks != nil {
				s.Waits = append(s.Waits, *ranks...)
			}
		}
	}
	if from < len(c.made) {
		s.Made = c.made[from]
	}
	if c.part != nil {
		s.OnGPU, s.Stands = c.part.number, c.part.waits.Load() != nil
	}
	if c.proxy != nil {
		k := c.proxy.host.stuck.Load()
		s.OnGPU += c.proxy.collectives.Load()
		s.Stands = s.Stands || k != nil && !c.proxy.host.over(k)
	}
	if m := c.making; m != nil {
		if slices.Contains(m.members, from) {
			s.Making = m.op
		}
		s.Busy = append(s.Busy, fmt.Sprintf("%s with ranks %v", m.op, m.members))
		if len(s.Waits) == 0 {
			for _, r := range m.members {
				if r != c.rank {
					s.Waits = append(s.Waits, r)
				}
			}
		}
	}
	if err := c.reason(); err != nil {
		s.Failed = err.Error()
	}
	return s
}

// done reports whether the call is over and went well. The communicator's lock is held.
func (e *entry) done() bool {
	return e.run == nil || e.run.seq != e.seq || e.run.Done() && e.run.Err() == nil
}

// answer is the session's Answer: any rank may ask for our state, and with a number of 8 bytes for that of our part, and what call had it.
func (c *Comm) answer(from int, question []byte) []byte {
	s := c.state(from)
	if len(question) == 8 {
		s.Part = c.partState(from, binary.LittleEndian.Uint64(question))
	}
	s.Busy = append(s.Busy, c.elsewhere()...)
	if y := c.serves.Load(); y != nil && y.awaitsStream() {
		s.Busy = append(s.Busy, fmt.Sprintf("calls that are queued on %v, to which their stream has not come", y.device))
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("comm: a state that is no JSON: %v", err))
	}
	return b
}

// elsewhere lists calls that stand still on other communicators that the driver moves.
func (c *Comm) elsewhere() []string {
	var out []string
	for _, owner := range c.family.driver.Owners() {
		o, ok := owner.(*Comm)
		if !ok || o.id == c.id { // another rank of ours in this process speaks for itself
			continue
		}
		if k := o.stuck.Load(); k != nil && !o.over(k) {
			out = append(out, fmt.Sprintf("%v, sequence %d, of communicator %s, waiting for ranks %v", k, k.seq, o.name(), k.peers))
		}
	}
	return out
}
