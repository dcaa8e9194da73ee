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
		p.add(m, collective.Cost{Copied: 1}, collective.Cost{})
		return p
	}
	home := homes(s)
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
	var before [2]collective.Cost
	for i, v := range [...]int{0, 1, n / 2, n - 1} {
		sch := build(v)
		far, near := apart(home, sch)
		p.pieces = sch.Pieces
		p.add(m, far, near)
		messages = max(messages, far.Sends+far.Receives+near.Sends+near.Receives)
		if now := [2]collective.Cost{far, near}; i == 1 && now == before && !s.Kind.Rooted() && s.Hosts == nil {
			break
		} else {
			before = now
		}
	}
	if messages <= max(8, 2*bits.Len(uint(n-1))+2) {
		for v := range n {
			far, near := apart(home, build(v))
			p.add(m, far, near)
		}
		p.first, p.span = play(m, home, all)
	}
	return p
}

// homes is the host of each rank; nil: nothing is known of them.
func homes(s collective.Shape) []int {
	if s.Hosts == nil {
		return nil
	}
	home := make([]int, s.Ranks)
	for r := range home {
		home[r] = s.HostOf(r)
	}
	return home
}

// apart is what a rank does, with its messages to other hosts, and its messages within its own.
func apart(home []int, sch *collective.Schedule) (far, near collective.Cost) {
	if home == nil {
		return sch.Cost(), near
	}
	return sch.CostBy(func(peer int32) bool { return home[peer] == home[sch.Rank] })
}

// add takes in what one rank does.
func (p *profile) add(m Model, far, near collective.Cost) {
	core := line{0, m.Fold}.times(far.Folded + near.Folded).plus(line{0, m.Copy}.times(far.Copied + near.Copied))
	own, busy := core, core
	for _, x := range [...]struct {
		wire Wire
		cost collective.Cost
	}{{m.Wire(), far}, {m.near(), near}} {
		c := x.cost
		fan := max(c.MaxFanout, c.MaxFanin)
		perByte := x.wire.Byte
		if fan > 1 {
			perByte += x.wire.Fanout
		}
		each := line{x.wire.Gap, perByte}
		own = own.plus(each.times(c.Duplex)).plus(line{x.wire.Latency - x.wire.Gap, 0}.times(c.Steps))
		if x.wire.Shared { // a message is half its sender's work and half its receiver's
			busy = busy.plus(line{x.wire.Gap / 2, perByte / 2}.times(c.Sends + c.Receives))
		} else {
			busy = busy.plus(each.times(max(c.Sends, c.Receives)))
		}
		p.fan = max(p.fan, fan)
	}
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
