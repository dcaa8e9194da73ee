package collective

import (
	"fmt"
	"math/rand/v2"
)

// runner runs all ranks' plans on numbers in memory, in linear order, as an engine would over
// transports that do whatever they may: a message is copied when it is sent, or when it is taken, or, if
// lent, read where it lies until it is let go of; between two ranks there is room for one to three.
type runner struct {
	plans  []*Plan
	layout Layout
	rnd    *rand.Rand
	hosts  []host
	lines  map[[2]int32]*line
	broken string
}

// host is one rank: its memory and where it is.
type host struct {
	in, out []int64
	temp    [][]int64
	round   int
	pc      int
	views   []*note
}

// line is the messages one way between two ranks, since the beginning.
type line struct {
	room            int
	notes           []*note
	taken, released int
}

type note struct {
	msg      uint32
	data     []int64 // the sender's memory or a copy
	lent     bool
	on       *line
	released bool
}

// sent is how many messages from the first on are let go of.
func (l *line) sent() int {
	n := 0
	for n < len(l.notes) && l.notes[n].released {
		n++
	}
	return n
}

const factor = 3 // of a scaled call

// newRunner gives every rank an input; memory is laid out as the options of its plan say.
func newRunner(plans []*Plan, l Layout, rnd *rand.Rand) *runner {
	x := &runner{plans: plans, layout: l, rnd: rnd, hosts: make([]host, len(plans)), lines: map[[2]int32]*line{}}
	for r, p := range plans {
		h := &x.hosts[r]
		in, out := p.Shape.Kind.Blocks(len(plans))
		big := make([]int64, max(in, out)*l.Count)
		h.in, h.out = big[:in*l.Count], big[:out*l.Count]
		switch {
		case !p.InPlace:
			h.out = make([]int64, out*l.Count)
		case p.Shape.Kind == AllGather:
			h.in = h.out[r*l.Count : (r+1)*l.Count]
		case p.Shape.Kind == ReduceScatter:
			h.out = h.in[r*l.Count : (r+1)*l.Count]
		}
		for i := range h.out {
			h.out[i] = -1
		}
		if p.Shape.HasIn(r) {
			for i := range h.in {
				h.in[i] = input(r, i)
			}
		}
		h.temp, h.views = make([][]int64, p.Temps), make([]*note, p.Views)
		for i := range h.temp {
			h.temp[i] = make([]int64, min(l.Round, max(l.Count, 1)))
		}
	}
	return x
}

// input is element i of rank r's input.
func input(r, i int) int64 { return int64(r+1)*1000003 + int64(i)*7919 }

// at is the memory of a ref in the host's round.
func (x *runner) at(h *host, r Ref) []int64 {
	at, n := x.layout.Piece(h.round, int(r.Piece))
	switch r.Space {
	case In:
		return h.in[int(r.Block)*x.layout.Count+at:][:n]
	case Out:
		return h.out[int(r.Block)*x.layout.Count+at:][:n]
	}
	start, _ := x.layout.Range(h.round)
	return h.temp[r.Block][at-start:][:n]
}

func (x *runner) line(from, to int32) *line {
	k := [2]int32{from, to}
	if x.lines[k] == nil {
		x.lines[k] = &line{room: 1 + x.rnd.IntN(3)}
	}
	return x.lines[k]
}

// run returns what went wrong, or "".
func (x *runner) run() string {
	alive := len(x.plans)
	for alive > 0 && x.broken == "" {
		first, moved := x.rnd.IntN(len(x.plans)), false
		for k := range x.plans {
			r := (first + k) % len(x.plans)
			h, p := &x.hosts[r], x.plans[r]
			if h.round == x.layout.Rounds() {
				continue
			}
			if h.pc < len(p.Ops) {
				if !x.step(r, &p.Ops[h.pc]) {
					continue
				}
				h.pc++
			} else {
				if p.SendsTemp && !x.allSent(r) {
					continue
				}
				h.round, h.pc = h.round+1, 0
				if h.round == x.layout.Rounds() {
					alive--
				}
			}
			moved = true
			break
		}
		if !moved {
			return "the ranks are stuck"
		}
	}
	for k, l := range x.lines {
		if x.broken == "" && l.sent() != len(l.notes) {
			return fmt.Sprintf("messages from %d to %d are left", k[0], k[1])
		}
	}
	return x.broken
}

func (x *runner) allSent(r int) bool {
	for _, to := range x.plans[r].To {
		if l := x.line(int32(r), to); l.sent() != len(l.notes) {
			return false
		}
	}
	return true
}

func (x *runner) step(r int, o *Op) bool {
	h, p := &x.hosts[r], x.plans[r]
	switch o.Code {
	case OpSend:
		l := x.line(int32(r), o.Peer)
		if len(l.notes)-l.released >= l.room {
			return false
		}
		src := p.Sources(o)[0]
		m := &note{msg: o.Msg, data: x.at(h, src), on: l, lent: src.Flags&Lend != 0 && x.rnd.IntN(2) == 0}
		if !m.lent && x.rnd.IntN(2) == 0 {
			m.data, m.released = append([]int64(nil), m.data...), true
		}
		l.notes = append(l.notes, m)
	case OpReuse:
		l := x.line(int32(r), o.Peer)
		return uint64(l.sent()) >= uint64(len(l.notes))-o.Behind()
	case OpRecv, OpView:
		l := x.line(o.Peer, int32(r))
		if l.taken == len(l.notes) {
			return false
		}
		m := l.notes[l.taken]
		_, n := x.layout.Piece(h.round, int(o.Dst.Piece))
		if l.taken != l.released || m.msg != o.Msg || len(m.data) != n {
			x.broken = fmt.Sprintf("rank %d asks for message %d of rank %d with %d elements, but gets %d with %d", r, o.Msg, o.Peer, n, m.msg, len(m.data))
			return false
		}
		l.taken++
		if o.Code == OpRecv {
			copy(x.at(h, o.Dst), m.data)
			m.release()
			return true
		}
		if !m.lent {
			m.data, m.released = append([]int64(nil), m.data...), true
		}
		h.views[o.Dst.Block] = m
	default:
		_, n := x.layout.Piece(h.round, int(o.Dst.Piece))
		sum := make([]int64, n)
		for _, src := range p.Sources(o) {
			var data []int64
			m := (*note)(nil)
			if src.IsView() {
				if m = h.views[src.Block]; m == nil {
					x.broken = fmt.Sprintf("rank %d reads view %d, which is not out", r, src.Block)
					return false
				}
				data = m.data
			} else {
				data = x.at(h, src)
			}
			if len(data) != n {
				x.broken = fmt.Sprintf("rank %d adds %d elements to %d", r, len(data), n)
				return false
			}
			for i, y := range data {
				if src.Flags&Scaled != 0 {
					y *= factor
				}
				sum[i] += y
			}
			if m != nil && src.Flags&Last != 0 {
				m.release()
				h.views[src.Block] = nil
			}
		}
		copy(x.at(h, o.Dst), sum)
	}
	return true
}

func (m *note) release() {
	m.released = true
	m.on.released++
}

// wrongElement looks at every element of every output.
func (x *runner) wrongElement() string {
	n, count := len(x.plans), x.layout.Count
	for r, p := range x.plans {
		if !p.Shape.HasOut(r) {
			continue
		}
		scale := int64(1)
		if p.Scale && p.Shape.Kind.Reduces() {
			scale = factor
		}
		for i, got := range x.hosts[r].out {
			var want int64
			switch p.Shape.Kind {
			case AllGather:
				want = input(i/count, i%count)
			case AllToAll:
				want = input(i/count, r*count+i%count)
			case Broadcast:
				want = input(p.Shape.Root, i)
			case ReduceScatter:
				for q := range n {
					want += scale * input(q, r*count+i)
				}
			default:
				for q := range n {
					want += scale * input(q, i)
				}
			}
			if got != want {
				return fmt.Sprintf("rank %d, element %d is %d, want %d", r, i, got, want)
			}
		}
	}
	return ""
}

// fault runs plans that many times and returns the first thing that went wrong.
func fault(plans []*Plan, l Layout, runs int) string {
	for seed := range uint64(runs) {
		x := newRunner(plans, l, rand.New(rand.NewPCG(seed, 11)))
		if why := x.run(); why != "" {
			return why
		}
		if why := x.wrongElement(); why != "" {
			return why
		}
	}
	return ""
}
