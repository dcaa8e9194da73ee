package tune

import (
	"math/bits"

	"github.com/gccl-project/gccl/collective"
)

// profile is what an algorithm costs in a shape, for any piece.
type profile struct {
	pieces int
	fan    int     // most messages that a rank sends or receives in one step
	first  line    // a round alone, until the last rank is done
	span   line    // the longest that a round takes of one rank's lane
	busy   line    // the longest that a round takes of one rank's core or wire
	wait   float64 // in a further round, what is not hidden by others
}

// newProfile looks at some ranks, counted from the root on, since that is where those of rooted
// kinds differ: the first two, and if these are not alike the middle and the last. A sparse
// algorithm, with few messages a rank, is looked at whole, as its ranks may wait for each
// other longer than what they do takes.
func newProfile(m Model, s collective.Shape, a collective.Algorithm) profile {
	p := profile{pieces: 1, wait: m.Latency}
	n := s.Ranks
	if n == 1 { // a copy, whatever the algorithm
		p.add(m, collective.Cost{Copied: 1})
		return p
	}
	all := make([]*collective.Schedule, n)
	build := func(v int) *collective.Schedule {
		r := (s.Root + v) % n
		if all[r] == nil {
			sch := a.Build(s, r)
			all[r] = &sch
		}
		return all[r]
	}
	messages := 0
	var before collective.Cost
	for i, v := range [...]int{0, 1, n / 2, n - 1} {
		sch := build(v)
		c := sch.Cost()
		p.pieces = sch.Pieces
		p.add(m, c)
		messages = max(messages, c.Sends+c.Receives)
		if i == 1 && c == before && !s.Kind.Rooted() {
			break
		}
		before = c
	}
	if messages <= max(8, 2*bits.Len(uint(n-1))+2) {
		for v := range n {
			p.add(m, build(v).Cost())
		}
		p.first, p.span = play(m, all)
	}
	return p
}

// add takes in what one rank does.
func (p *profile) add(m Model, c collective.Cost) {
	fan := max(c.MaxFanout, c.MaxFanin)
	perByte := m.Byte
	if fan > 1 {
		perByte += m.Fanout
	}
	wire := line{m.Gap, perByte}
	core := line{0, m.Fold}.times(c.Folded).plus(line{0, m.Copy}.times(c.Copied))
	own := wire.times(c.Duplex).plus(core).plus(line{m.Latency - m.Gap, 0}.times(c.Steps))
	busy := wire.times(max(c.Sends, c.Receives)).plus(core)
	if m.Shared { // a message is half its sender's work and half its receiver's
		busy = line{m.Gap / 2, perByte / 2}.times(c.Sends + c.Receives).plus(core)
	}
	p.fan = max(p.fan, fan)
	p.first = p.first.max(own)
	p.span = p.span.max(own)
	p.busy = p.busy.max(busy)
}

// estimate is the time, in ns, of rounds rounds with pieces of that many bytes, of which
// lanes are in flight.
func (p *profile) estimate(bytes, rounds, lanes int) float64 {
	stage := p.wait + max(p.busy.at(bytes), p.span.at(bytes)/float64(lanes))
	return p.first.at(bytes) + float64(float64(rounds-1)*stage)
}

// lanes is the fewest that are as fast as most.
func (p *profile) lanes(bytes, most int) int {
	w := 1
	for w < most && p.span.at(bytes)/float64(w) > p.busy.at(bytes) {
		w++
	}
	return w
}
