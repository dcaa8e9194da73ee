package engine

import (
	"context"
	"runtime"
	"time"

	"github.com/gccl-project/gccl/transport/spin"
)

// How a driver waits. Source of the numbers: measurements on two-core hosts, BenchmarkExchange.
const (
	batch        = 64                     // polls between preemption points, about 2 µs
	spinTime     = 200 * time.Microsecond // spin this long before sleeping
	crowdedPolls = 4                      // polls before yielding when ranks outnumber processors
	crowdedTurns = 64                     // yields before sleeping
	longTurn     = time.Millisecond       // a yield that takes longer: others compute on our processor
	longTurnOver = 64                     // waits that sleep instead after such a yield
	napTime      = 20 * time.Millisecond  // longest sleep: then look at deadlines
	checkEvery   = 64                     // passes between looks at the clock and the context
	asks         = 4                      // times that a stream without a word is asked in a batch, about 2 µs of a socket's
	sprints      = 8                      // messages that a call may wait for before the driver does more than run it
	sharing      = 4                      // waits that a yield ended, one after the other, until we think that a peer shares our processor
)

// idleness is a driver's state since something last moved.
type idleness struct {
	passes int
	since  time.Time
	armed  bool // bells are armed; one more pass, then sleep
	yields bool // the last thing we did was to yield, or to sleep instead
}

// ended learns from a wait that is over: where a yield ended it again and again, whoever we wait for is on our
// processor, although there seem to be enough, and only a yield lets it run.
func (d *Driver) ended(s *idleness) {
	if s.passes > 0 {
		d.yieldsHelped++
		if !s.yields {
			d.yieldsHelped = 0
		}
	}
	d.disarm(s)
	*s = idleness{}
}

// idle spends the time after a pass that moved nothing.
func (d *Driver) idle(ctx context.Context, c *Call, s *idleness) {
	s.passes++
	if d.bubble != nil {
		d.look(ctx, c)
		d.napInBubble()
		return
	}
	if s.armed {
		d.nap(napTime)
		d.disarm(s)
		s.passes, s.since = 1, time.Time{}
		d.look(ctx, c)
		return
	}
	crowded := d.yields()
	polls := int32(batch)
	if crowded {
		polls = crowdedPolls
	}
	s.yields = false
	come := d.spin(polls)
	spin.Preemptible()
	if come {
		return
	}
	if crowded {
		s.yields = true
		if d.sleeps > 0 { // who yields comes after those who compute, whose turns are milliseconds; who wakes up comes before them
			d.sleeps--
			d.arm(s)
			return
		}
		began := time.Now()
		osYield()
		if time.Since(began) > longTurn {
			d.sleeps = longTurnOver
		}
		if s.passes%8 == 0 {
			runtime.Gosched()
			d.look(ctx, c)
		}
		if s.passes >= crowdedTurns {
			d.arm(s)
		}
		return
	}
	if s.yields = s.passes == 2 || s.passes%4 == 0; s.yields {
		osYield() // to a peer that others keep off its processor, or that shares ours
	}
	if s.passes%8 != 0 {
		return
	}
	if s.passes%checkEvery == 0 {
		runtime.Gosched()
		d.look(ctx, c)
	}
	now := time.Now()
	if s.since.IsZero() {
		s.since = now
	} else if now.Sub(s.since) > spinTime {
		d.look(ctx, c)
		d.arm(s)
	}
}

// yields reports whether whoever we wait for may need our processor.
func (d *Driver) yields() bool { return d.crowded.Load() || d.yieldsHelped >= sharing }

// spin polls the one word that must change, if there is only one, at most polls times, and reports whether it did.
func (d *Driver) spin(polls int32) bool {
	if len(d.lanes) != 1 {
		spin.Pause(2)
		return false
	}
	return d.soon(d.lanes[0], polls)
}

// soon waits a moment, polls of a word in memory, for what the lane waits for, and reports whether that came. A stream without such a
// word is asked itself.
func (d *Driver) soon(l *Lane, polls int32) bool {
	if word, old := l.awaits(); word != nil {
		return spin.WaitNot(word, old, polls)
	}
	spin.Pause(min(polls, 8))
	if !l.arrival || polls < batch {
		return false
	}
	for range asks {
		if d.step(l) {
			return true
		}
		spin.Pause(8)
	}
	return false
}

// awaits is the word whose change the lane waits for, and what it is until then; nil if there is none.
func (l *Lane) awaits() (word *uint64, old uint64) {
	if l.arrival && l.waits.awaiter != nil {
		return l.waits.awaiter.Awaits()
	}
	return nil, 0
}

// look asks whether what stands still may go on standing still.
func (d *Driver) look(ctx context.Context, c *Call) {
	if ctx.Err() != nil && c != nil {
		c.port.failed.CompareAndSwap(nil, &failure{context.Cause(ctx)})
		d.events.Store(true)
		return
	}
	now := time.Now()
	for _, l := range d.lanes {
		stalled := l.port.opt.Stalled
		if stalled == nil || len(l.queue) == 0 {
			continue
		}
		call := l.queue[0].call
		if call.began.IsZero() {
			call.began, call.looked = now, now
		}
		if now.Sub(call.looked) < napTime/2 {
			continue
		}
		call.looked = now
		if err := stalled(call, now.Sub(call.began), l.port.peers()); err != nil {
			l.port.failed.CompareAndSwap(nil, &failure{err})
			d.events.Store(true)
		}
	}
}
