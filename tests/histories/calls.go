package histories

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
)

// deed is one call of one rank, with its memory.
type deed struct {
	on       *member
	call     comm.Call
	src, dst []byte          // with a guard behind
	want     func(i int) int // element i of dst; nil: dst is not checked
	own      func(i int) int // element i of src
	inPlace  bool            // src lies in dst, or dst in src
	pending  *comm.Pending
	pair     int // of a message: its two ends
	number   int // of the call in its step, from 1
}

const (
	guard    = 16
	guarding = 0x5A
	poison   = 0xA5
)

// calls makes the calls of a step that are this rank's.
func (r *rank) calls(i int, s *Step) error {
	var deeds []*deed
	f := r.job.Fault
	for k, c := range s.Calls {
		m := r.target(s.On, k)
		if m == nil {
			continue
		}
		odd := false
		if f.Step == i && f.Call == k && f.Ranks != nil && f.Ranks[0] == r.number {
			switch f.Kind {
			case NoCall:
				r.job.struck.Store(true)
				r.job.tracef("STRIKE: %v", f)
				r.away = true
			case OddCall:
				odd = true
				r.job.struck.Store(true)
				r.job.tracef("STRIKE: %v", f)
				if len(m.ranks) == 2 || c.Messages != nil {
					r.job.blame(m.ranks...)
				}
			}
			if r.away {
				break
			}
		}
		for _, d := range r.prepare(m, c, odd) {
			d.number = k + 1
			deeds = append(deeds, d)
		}
	}
	if s.On != Both && len(deeds) > 0 {
		r.using.Store(deeds[0].on)
	}
	err := r.make(i, s, deeds)
	r.using.Store(nil)
	if r.away {
		r.doing.Store("away")
		time.Sleep(r.job.CallTimeout + 5*time.Second)
	}
	return err
}

// takesPart reports whether the call of those members, ranks in the world, has something for the rank to do, which others miss if
// it does not.
func takesPart(c Call, members []int, rank int) bool {
	n := len(members)
	if n < 2 {
		return false
	}
	if c.Messages == nil {
		return true
	}
	return slices.ContainsFunc(c.Messages, func(g Message) bool {
		from, to := g.From%n, g.To%n
		return from != to && g.Count > 0 && (members[from] == rank || members[to] == rank)
	})
}

func (r *rank) target(t Target, k int) *member {
	switch {
	case t == Child || t == Both && k%2 == 1:
		return r.child
	case t == Smaller:
		return r.smaller
	}
	return r.world
}

// make makes the calls, and checks what came of each.
func (r *rank) make(i int, s *Step, deeds []*deed) error {
	if len(deeds) == 0 {
		return nil
	}
	began := time.Now()
	mode := s.Mode
	if mode == Blocking && slices.ContainsFunc(s.Calls, func(c Call) bool { return c.Messages != nil }) {
		mode = Grouped // one after the other they would wait for each other
	}
	limit := r.job.CallTimeout + 8*time.Second
	ended := func(d *deed, err error, at time.Time) outcome {
		return outcome{step: i, what: d.call.Kind.String(), members: d.on.ranks, err: err, at: at, took: at.Sub(began), limit: limit, number: d.number, pair: d.pair, waited: mode == Blocking || mode == Parallel}
	}
	end := func(d *deed, err error, at time.Time) error {
		r.check(i, d, err)
		if mode == Blocking {
			r.checkClosed(i, d, err, at)
		}
		return r.note(ended(d, err, at))
	}
	switch mode {
	case Blocking:
		for _, d := range deeds {
			began = time.Now()
			if err := end(d, d.on.comm.Do(r.ctx, d.call), time.Now()); err != nil {
				return err
			}
			r.nap(2 * time.Millisecond)
		}
		return nil
	case Grouped:
		var group []comm.Call
		members := map[int]bool{}
		for _, d := range deeds {
			d.call.Comm = d.on.comm
			group = append(group, d.call)
			for _, q := range d.on.ranks {
				members[q] = true
			}
		}
		err := comm.Group(r.ctx, group...)
		for _, d := range deeds {
			r.checkClosed(i, d, err, time.Now())
			r.check(i, d, err)
		}
		var all []int
		for q := range members {
			all = append(all, q)
		}
		return r.note(outcome{step: i, what: "group", members: all, err: err, took: time.Since(began), limit: limit, number: 1})
	}
	for _, d := range deeds {
		d.pending = d.on.comm.Start(d.call)
	}
	r.nap(10 * time.Millisecond)
	if mode == Parallel {
		errs, ats := make([]error, len(deeds)), make([]time.Time, len(deeds))
		began = time.Now()
		var waits sync.WaitGroup
		for k, d := range deeds {
			waits.Go(func() {
				errs[k] = d.pending.Wait(r.ctx)
				ats[k] = time.Now()
				r.check(i, d, errs[k])
			})
		}
		waits.Wait()
		for k, d := range deeds {
			errs[k] = r.note(ended(d, errs[k], ats[k]))
		}
		return errors.Join(errs...)
	}
	var first error
	for _, k := range r.rng.Perm(len(deeds)) {
		if err := end(deeds[k], deeds[k].pending.Wait(r.ctx), time.Now()); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// checkClosed sees that a call on a communicator that was closed did not go on and end well.
func (r *rank) checkClosed(i int, d *deed, err error, at time.Time) {
	if closed := d.on.closed.Load(); err == nil && closed > 0 && at.UnixNano() > closed {
		r.job.fault("rank %d, step %d: %v ended well %v after its communicator had been closed", r.number, i, &d.call, at.Sub(time.Unix(0, closed)))
	}
}

// check looks at the memory of a call that has returned, and poisons it at once: nobody may read or write it any more. Calls that
// end at the same time may be checked at the same time.
func (r *rank) check(i int, d *deed, err error) {
	if d.call.Kind == comm.KindBarrier {
		return
	}
	elem := d.call.DType.Size()
	where := func() string { return fmt.Sprintf("rank %d, step %d: %v", r.number, i, &d.call) }
	if err == nil && d.want != nil && !r.oddAt(i) {
		for k := range d.call.Count * r.outBlocks(d) {
			if got, want := get(d.dst[k*elem:], d.call.DType), d.want(k); got != float64(want) {
				r.job.fault("%s: element %d is %v, want %d", where(), k, got, want)
				break
			}
		}
	}
	if err == nil && d.own != nil && !d.inPlace {
		for k := range int(d.call.Src.Bytes) / elem {
			if got, want := get(d.src[k*elem:], d.call.DType), d.own(k); got != float64(want) {
				r.job.fault("%s: element %d of Src was changed to %v from %d", where(), k, got, want)
				break
			}
		}
	}
	for _, b := range [][]byte{d.src, d.dst} {
		if d.inPlace && len(b)%elem == 0 && len(b) == d.call.Count*elem {
			continue // a block within the other
		}
		if len(b) < guard {
			continue
		}
		if tail := b[len(b)-guard:]; !all(tail, guarding) && !all(tail, poison) {
			r.job.fault("%s: memory behind it was overwritten: %x", where(), tail)
		}
	}
	for _, b := range [][]byte{d.src, d.dst} {
		fill(b, poison)
		r.mu.Lock()
		r.poisoned = append(r.poisoned, b)
		r.mu.Unlock()
	}
}

// oddAt reports whether the rank called something odd in the step: what it gets then is nobody's promise.
func (r *rank) oddAt(i int) bool {
	f := r.job.Fault
	return f.Kind == OddCall && f.Step == i && f.Ranks[0] == r.number
}

func (r *rank) outBlocks(d *deed) int {
	if d.call.Kind >= comm.KindSend {
		return 1
	}
	_, out := collective.Kind(d.call.Kind).Blocks(len(d.on.ranks))
	return out
}

// checkPoison sees that memory of calls that had returned was left alone.
func (r *rank) checkPoison() {
	for _, b := range r.poisoned {
		if !all(b, poison) {
			r.job.fault("rank %d: %d bytes were written after their call had returned: %x", r.number, len(b), b[:min(len(b), 64)])
			return
		}
	}
}
