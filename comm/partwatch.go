package comm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gccl-project/gccl/collective/gpu"
)

// A partWatch looks after exchanges that our GPU has begun and is not through with: for ranks that have not called, call something else, or
// whose streams do not come to it.
type partWatch struct {
	c      *Comm
	number uint64    // of the oldest call that is not done; 0: none, but in graphs
	look   time.Time // when it is worth a look again
	begun  []uint32  // exchanges, as last seen
	since  time.Time // nothing more was begun, and not all of it was over; zero: nobody is waited for
	warned time.Time
}

// watchPart returns when the communicator is broken or closed. When it is broken it ends the kernels that wait.
func (c *Comm) watchPart() {
	limits := &c.family.cfg
	every := time.NewTicker(max(min(limits.WarnAfter, limits.CallTimeout, firstLook)/4, time.Millisecond))
	defer every.Stop()
	w, posts := partWatch{c: c}, postWatch{c: c}
	for {
		select {
		case <-c.broken:
			c.part.Abort(c.reason())
			return
		case <-c.life.Done():
			return
		case now := <-every.C:
			w.tick(now)
			posts.tick(now)
		}
	}
}

func (w *partWatch) tick(now time.Time) {
	c := w.c
	number, err := c.part.Behind()
	if err != nil {
		c.fail(fmt.Errorf("calls that are queued on %v: %w", c.family.device, err))
		return
	}
	if number != w.number || number == 0 && !c.part.captured.Load() {
		*w = partWatch{c: c, number: number, look: now.Add(firstLook)}
		c.part.waits.Store(nil)
		return
	}
	if now.Before(w.look) {
		return
	}
	limits := &c.family.cfg
	w.look = now.Add(min(max(firstLook, now.Sub(w.since)/2), max(min(limits.WarnAfter, limits.CallTimeout)/2, time.Millisecond), time.Second))
	begun, over, err := c.part.Begun()
	switch {
	case errors.Is(err, gpu.ErrClosed):
		return
	case err != nil:
		c.fail(fmt.Errorf("a look at calls that are queued on %v: %w", c.family.device, err))
		return
	case slices.Equal(begun, over): // our stream has not come to a call, if there is one
		w.since = time.Time{}
		c.part.waits.Store(nil)
		return
	case w.since.IsZero() || !slices.Equal(begun, w.begun):
		w.begun, w.since = begun, now
	}
	v := w.ask(begun)
	waited := now.Sub(w.since)
	if v.final != nil {
		if v.after > waited {
			w.look = now.Add(v.after - waited)
			return
		}
		if again, _, err := c.part.Begun(); err == nil && slices.Equal(again, begun) && w.still() { // what came meanwhile counts
			c.fail(v.final)
		}
		return
	}
	c.part.waits.Store(&v.ranks)
	v.press(c, w.call, waited, now, &w.warned)
}

// still reports whether the oldest call is what it was.
func (w *partWatch) still() bool {
	number, err := w.c.part.Behind()
	return err == nil && number == w.number
}

// call says which call waits.
func (w *partWatch) call() string {
	if s := w.c.partState(w.c.rank, w.number); s != nil && s.Call != nil {
		return fmt.Sprintf("%v (call %d over links)", *s.Call, w.number)
	}
	return "a call in a graph"
}

// ask has the other ranks say where they are. Ours has begun so many exchanges with each of them.
func (w *partWatch) ask(begun []uint32) (v verdict) {
	c := w.c
	own := c.partState(c.rank, w.number)
	others := slices.DeleteFunc(c.everybody(), func(r int) bool { return r == c.rank })
	says := c.askAll(others, w.number)
	calls := map[int]agreed{}
	if own.Call != nil {
		calls[c.rank] = *own.Call
	}
	h := hearing{why: map[int]string{}}
	var elsewhere []int
	for _, r := range others {
		t := says[r]
		s := h.hears(r, &t)
		if s == nil {
			continue
		}
		tells := !s.Captured && !own.Captured && w.number != 0
		switch {
		case !tells:
		case s.Call != nil:
			calls[r] = *s.Call
		case own.Call != nil && s.Begun < w.number && s.Proxied > own.Proxied:
			elsewhere = append(elsewhere, r)
		}
		switch {
		case len(s.Exchanges) != len(begun):
			h.why[r] = fmt.Sprintf("rank %d's GPU does not say how far it is", r)
		case int32(begun[r]-s.Exchanges[c.rank]) <= 0:
			continue
		case tells && s.Begun < w.number:
			h.why[r] = fmt.Sprintf("rank %d has not called it: its last is %d", r, s.Begun)
			if len(t.state.Busy) > 0 {
				h.why[r] += ", and it is in " + strings.Join(t.state.Busy, " and in ")
			}
		default:
			h.why[r] = fmt.Sprintf("rank %d's stream does not come to it: work before it does not end", r)
		}
		if t.waitsFor(c.rank) {
			h.waiting = append(h.waiting, r)
		}
	}
	if h.dead != nil {
		v.final = h.dead
		return v
	}
	v.blame(others, &h)
	switch differ := distinct(calls); {
	case differ:
		v.final = convict(w.number, calls)
		if len(calls) < c.Size() && 2*most(calls) <= c.Size() { // others may come, and have a vote
			v.after = juryFor
		}
	case len(elsewhere) > 0:
		v.final = unlikeWays(c.rank, elsewhere, own.Call, c.Size())
	case len(h.why) == 0 && len(h.left) > 0: // what they stored for us would be there
		v.final = h.closed("this call, or made another")
		v.after = unmet
	}
	return v
}

func distinct(calls map[int]agreed) bool {
	var first *agreed
	for _, call := range calls {
		if first == nil {
			first = &call
		} else if *first != call {
			return true
		}
	}
	return false
}

// most is how many ranks made the call that most made.
func most(calls map[int]agreed) (n int) {
	votes := map[agreed]int{}
	for _, call := range calls {
		votes[call]++
		n = max(n, votes[call])
	}
	return n
}

// unlikeWays finds against ranks that are in a call by way of host memory which we have not made, while we are in one over links; or, where
// they are the most, against us.
func unlikeWays(me int, they []int, ours *agreed, size int) *cause {
	ranks := they
	if 2*len(they) > size || 2*len(they) == size && me > slices.Min(they) {
		ranks = []int{me}
	}
	return &cause{class: "mismatch", ranks: ranks, text: fmt.Sprintf("rank %d called %v, ranks %v another one, which goes by way of host memory", me, *ours, they), from: -1}
}
