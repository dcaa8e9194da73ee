//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// spec is one collective to check: everything about it but the rank.
type spec struct {
	kind      comm.Kind
	algorithm string // empty: the tuner's choice
	dtype     kernels.DType
	redop     kernels.RedOp
	count     int
	root      int
	place     place
	memory    memory
	shift     int  // elements by which the buffers miss a multiple of 64 bytes
	special   bool // NaN, infinities, zeros of both signs, denormals
	seed      uint64
}

// place says on which ranks the call is in place. It may differ between ranks.
type place uint8

const (
	outOfPlace place = iota
	inPlace
	oddInPlace // on ranks with odd numbers
	places
)

func (p place) String() string { return [...]string{"out", "in", "oddin"}[p] }

func (p place) on(rank int) bool { return p == inPlace || p == oddInPlace && rank%2 == 1 }

// memory says where the buffers lie. It may differ between ranks.
type memory uint8

const (
	sliceMemory memory = iota // Go's
	allocMemory               // Comm.Alloc's
	mixedMemory               // the source in one and the destination in the other, or by turns
	memories
)

func (m memory) String() string { return [...]string{"slice", "alloc", "mixed"}[m] }

// shared reports for source and destination whether they lie in memory of Comm.Alloc.
func (m memory) shared(rank int) (src, dst bool) {
	if m == mixedMemory {
		return rank%3 != 0, rank%3 != 1
	}
	return m == allocMemory, m == allocMemory
}

func (s spec) String() string {
	alg := s.algorithm
	if alg == "" {
		alg = "chosen"
	}
	name := fmt.Sprintf("%v/%s/%v/%d", s.kind, alg, s.dtype, s.count)
	if s.reduces() {
		name += "/" + s.redop.String()
		if s.special {
			name += "/special"
		}
	}
	if collective.Kind(s.kind).Rooted() {
		name += fmt.Sprintf("/root%d", s.root)
	}
	return fmt.Sprintf("%s/%v/%v+%d", name, s.place, s.memory, s.shift)
}

func (s spec) reduces() bool {
	return s.kind != comm.KindBarrier && s.kind < comm.KindSend && collective.Kind(s.kind).Reduces()
}

// blocks are the numbers of elements in source and destination on this rank, 0 for a buffer that it has not.
func (s spec) blocks(rank, n int) (src, dst int) {
	switch s.kind {
	case comm.KindBarrier:
		return 0, 0
	case comm.KindSend:
		return s.count, s.count
	}
	in, out := collective.Kind(s.kind).Blocks(n)
	shape := collective.Shape{Kind: collective.Kind(s.kind), Ranks: n, Root: s.root}
	if shape.HasIn(rank) {
		src = in * s.count
	}
	if shape.HasOut(rank) {
		dst = out * s.count
	}
	return src, dst
}

// input describes what all ranks give.
func (s spec) input(n int) reference.Input {
	return reference.Input{DType: s.dtype, RedOp: s.redop, Ranks: n, Seed: s.seed, Special: s.special}
}

// limit bounds a single call: a hang is an error that says who was waited for.
const limit = 40 * time.Second

// run does the collective on this rank and checks everything that it may and may not have written.
func (s spec) run(c *comm.Comm, ground *ground, report *cluster.Case) error {
	return s.runAnd(c, ground, report, func(*buffers) {})
}

// runAnd is run with something done between the call and the judgement.
func (s spec) runAnd(c *comm.Comm, ground *ground, report *cluster.Case, then func(*buffers)) error {
	a, err := s.try(c, ground)
	if err != nil {
		return err
	}
	ctx, cancel := patient()
	defer cancel()
	enter := time.Now().UnixMicro()
	if calls := a.calls(); len(calls) == 1 {
		err = c.Do(ctx, calls[0])
	} else {
		err = comm.Group(ctx, calls...)
	}
	if err != nil {
		return err
	}
	then(a.buffers)
	if s.kind == comm.KindBarrier {
		report.Fact("enter", enter)
		report.Fact("leave", time.Now().UnixMicro())
	}
	if s.kind == comm.KindAllReduce {
		report.Same(a.dst)
		if c.Rank() != int(s.seed)%c.Size() {
			return a.harmless() // the same bits everywhere: one rank looks whether they are right
		}
	}
	return a.judge()
}

// patient returns a context that turns a hang into an error.
func patient() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), limit, errors.New("the test's patience ended"))
}

// attempt is a collective that is about to be done, with its buffers filled.
type attempt struct {
	spec
	*buffers
	comm   *comm.Comm
	before uint32 // checksum of the source
}

func (s spec) try(c *comm.Comm, ground *ground) (*attempt, error) {
	b, err := ground.lay(s, c.Rank(), c.Size())
	if err != nil {
		return nil, err
	}
	s.input(c.Size()).Write(b.src, c.Rank(), 0)
	return &attempt{s, b, c, sum(b.src)}, nil
}

// calls are what this rank calls: one call, or for a KindSend a send to the next rank and a receive from the one before.
func (a *attempt) calls() []comm.Call {
	call := comm.Call{Comm: a.comm, Kind: a.kind, Src: memOf(a.src), Dst: memOf(a.dst), Count: a.count, DType: a.dtype, Root: a.root, Algorithm: a.algorithm}
	if a.reduces() {
		call.RedOp = a.redop
	}
	if a.kind != comm.KindSend {
		return []comm.Call{call}
	}
	rank, n := a.comm.Rank(), a.comm.Size()
	send, recv := call, call
	send.Dst, send.Peer = kernels.Mem{}, (rank+1)%n
	recv.Kind, recv.Src, recv.Peer = comm.KindRecv, kernels.Mem{}, (rank+n-1)%n
	if a.shift%2 == 0 {
		send, recv = recv, send
	}
	return []comm.Call{send, recv}
}

// judge checks everything that the call may and may not have written.
func (a *attempt) judge() error {
	if err := a.harmless(); err != nil {
		return err
	}
	return a.check(a.comm, a.input(a.comm.Size()), a.dst)
}

// harmless checks what the call may not have written.
func (a *attempt) harmless() error {
	if err := a.guarded(); err != nil {
		return err
	}
	if !a.inPlace && sum(a.src) != a.before {
		return errors.New("the source was written to, out of place")
	}
	return nil
}

// check compares every element of the destination with what must be there.
func (s spec) check(c *comm.Comm, in reference.Input, dst []byte) error {
	rank, n := c.Rank(), c.Size()
	if len(dst) == 0 {
		return nil
	}
	block := s.count * s.dtype.Size()
	v := reference.Verdict{}
	switch s.kind {
	case comm.KindAllGather:
		for q := range n {
			v.Add(in.Copied(dst[q*block:][:block], q, 0))
		}
	case comm.KindAllToAll:
		for q := range n {
			v.Add(in.Copied(dst[q*block:][:block], q, rank*s.count))
		}
	case comm.KindBroadcast:
		v = in.Copied(dst, s.root, 0)
	case comm.KindSend:
		v = in.Copied(dst, (rank+n-1)%n, 0)
	default:
		first := 0
		if s.kind == comm.KindReduceScatter {
			first = rank * s.count
		}
		exact, err := s.exact(c)
		if err != nil {
			return err
		}
		if err := compareExactly(in, exact, dst, first); err != nil {
			return err
		}
		v = in.Reduced(dst, first)
	}
	if v.Wrong > 0 {
		return fmt.Errorf("%d elements are wrong, first %s", v.Wrong, v.First)
	}
	return nil
}

// exact reports whether the result is one fold of all inputs in rank order, which has one right value for each element.
func (s spec) exact(c *comm.Comm) (bool, error) {
	if !s.dtype.IsFloat() || s.redop == kernels.Min || s.redop == kernels.Max {
		return true, nil
	}
	name := s.algorithm
	if name == "" {
		choice, err := c.Choice(comm.Call{Kind: s.kind, Count: s.count, DType: s.dtype, RedOp: s.redop, Root: s.root})
		if err != nil {
			return false, err
		}
		name = choice.Algorithm
	}
	for _, a := range collective.Catalog(collective.Kind(s.kind)) {
		if a.Name == name {
			return a.RankOrder, nil
		}
	}
	return false, fmt.Errorf("no algorithm %q in the catalog", name)
}
