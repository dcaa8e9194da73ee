package tune

import (
	"slices"

	"github.com/gccl-project/gccl/collective"
)

// player runs all ranks' schedules in the model's time, each rank in its order. Which
// message a rank waits for never depends on times, so one run does for all lengths of a
// piece.
type player struct {
	Model
	home  []int // of each rank its host; nil: not known
	ranks []playing
	ready []int // ranks that may be able to go on
}

// playing is a rank on its way through its schedule.
type playing struct {
	steps    [][]collective.Instr
	at       int // how many instrs of steps[0] are done, once begun
	begun    bool
	sent     line // what the sends in steps[0] take
	receives int  // in all steps so far
	clock    line
	last     line // when the last of them was received
	met      bool // a message was sent or received
	since    line // when that first began
	inbox    []arrival
}

// arrival is a message that nobody has received.
type arrival struct {
	from int32
	at   line
}

// play returns when the last rank is done, and the longest that one rank takes from its
// first message to its end.
func play(m Model, home []int, all []*collective.Schedule) (first, span line) {
	p := player{Model: m, home: home, ranks: make([]playing, len(all)), ready: make([]int, len(all))}
	for r, s := range all {
		p.ranks[r].steps = s.Steps
		p.ready[r] = r
	}
	for len(p.ready) > 0 {
		r := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		for len(p.ranks[r].steps) > 0 && p.step(r) {
		}
	}
	for i := range p.ranks {
		first = first.max(p.ranks[i].clock)
		span = span.max(p.ranks[i].clock.minus(p.ranks[i].since))
	}
	return first, span
}

// step runs the next step of rank r, or as much as can be done before a message
// is missing.
func (p *player) step(r int) bool {
	me := &p.ranks[r]
	if !me.begun {
		p.send(r)
	}
	step := me.steps[0]
	for ; me.at < len(step); me.at++ {
		if in := &step[me.at]; in.Code == collective.Recv || in.Code == collective.RecvReduce {
			i := slices.IndexFunc(me.inbox, func(a arrival) bool { return a.from == in.Peer })
			if i < 0 {
				return false
			}
			p.receive(me, me.inbox[i].at, p.wire(r, in.Peer))
			me.inbox = slices.Delete(me.inbox, i, i+1)
		}
	}
	me.clock = me.clock.plus(me.sent).max(me.last)
	for _, in := range step {
		switch in.Code {
		case collective.RecvReduce, collective.Fold:
			me.clock.perByte += float64(p.Fold * float64(len(in.Srcs)))
		case collective.Copy:
			me.clock.perByte += p.Copy
		}
	}
	me.steps, me.at, me.begun, me.sent = me.steps[1:], 0, false, line{}
	return true
}

// send begins a step of rank r with its sends.
func (p *player) send(r int) {
	me := &p.ranks[r]
	me.begun = true
	sends := 0
	for _, in := range me.steps[0] {
		if in.Code == collective.Send {
			sends++
		}
	}
	if sends > 0 && !me.met {
		me.met, me.since = true, me.clock
	}
	for _, in := range me.steps[0] {
		if in.Code == collective.Send {
			w := p.wire(r, in.Peer)
			each := line{w.Gap, w.Byte}
			if sends > 1 { // to several at once
				each.perByte += w.Fanout
			}
			at := me.clock.plus(me.sent).plus(line{w.Latency, each.perByte})
			p.ranks[in.Peer].inbox = append(p.ranks[in.Peer].inbox, arrival{int32(r), at})
			p.ready = append(p.ready, int(in.Peer))
			me.sent = me.sent.plus(each)
		}
	}
}

// wire is what messages between two ranks cost.
func (p *player) wire(r int, peer int32) Wire {
	if p.Near != nil && p.home != nil && p.home[r] == p.home[peer] {
		return *p.Near
	}
	return p.Wire()
}

// receive takes a message, after those that were taken before.
func (p *player) receive(me *playing, at line, w Wire) {
	if !me.met {
		me.met, me.since = true, at.minus(line{0, w.Byte})
	}
	if me.receives++; me.receives > 1 {
		at = at.max(me.last.plus(line{w.Gap, w.Byte}))
	}
	me.last = at
}
