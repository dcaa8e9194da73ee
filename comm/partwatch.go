package comm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A partWatch looks after calls that are queued on our GPU and wait for other ranks: for those who have not called, or call something else, or
// whose streams do not come to it.
type partWatch struct {
	c      *Comm
	number uint64    // of the oldest call that is not done
	since  time.Time // it has been
	look   time.Time // when it is worth a look again
	late   time.Time // since when somebody is late to it; zero: nobody is
	warned time.Time
}

// watchPart returns when the communicator is broken or closed. When it is broken it ends the kernels that wait.
func (c *Comm) watchPart() {
	limits := &c.family.cfg
	every := time.NewTicker(max(min(limits.WarnAfter, limits.CallTimeout, firstLook)/4, time.Millisecond))
	defer every.Stop()
	w := partWatch{c: c}
	for {
		select {
		case <-c.broken:
			if err := c.part.Abort(c.reason()); err != nil {
				c.family.log.Warn("kernels that wait for other ranks may go on waiting", "comm", c.name(), "reason", err)
			}
			return
		case <-c.life.Done():
			return
		case now := <-every.C:
			w.tick(now)
		}
	}
}

func (w *partWatch) tick(now time.Time) {
	c := w.c
	number := c.part.Behind()
	if number != w.number || number == 0 {
		*w = partWatch{c: c, number: number, since: now, look: now.Add(firstLook)}
		c.part.waits.Store(nil)
		return
	}
	if now.Before(w.look) {
		return
	}
	limits := &c.family.cfg
	waited := now.Sub(w.since)
	w.look = now.Add(min(max(firstLook, waited/2), max(min(limits.WarnAfter, limits.CallTimeout)/2, time.Millisecond)))
	ranks, words, err := w.lateRanks()
	switch {
	case err != nil:
		c.fail(err)
		return
	case ranks == nil:
		w.late = time.Time{}
		c.part.waits.Store(nil)
		return
	case w.late.IsZero():
		w.late = now
	}
	c.part.waits.Store(&ranks)
	c.mu.Lock()
	call := c.part.calls[w.number%partCalls].call.agreed()
	c.mu.Unlock()
	switch waited = time.Since(w.late); {
	case waited >= limits.CallTimeout:
		c.fail(&cause{class: "timeout", ranks: ranks, text: fmt.Sprintf("%v (sequence %d) of rank %d on %v waited %v for ranks %v: %s", call, w.number, c.rank, c.family.device, waited.Round(time.Millisecond), ranks, words), from: -1})
	case waited >= limits.WarnAfter && now.Sub(w.warned) >= limits.WarnAfter:
		w.warned = now
		c.family.log.Warn("a queued call waits", "comm", c.name(), "call", call.String(), "seq", w.number, "for", waited.Round(time.Millisecond), "ranks", ranks, "because", words)
	}
}

// lateRanks are those whose GPUs have not begun an exchange that ours has, and why; nil: nobody is, we are ourselves or have not begun. An error
// is final: a rank that called something else, or has left.
func (w *partWatch) lateRanks() (ranks []int, words string, err error) {
	c := w.c
	begun, err := c.part.Begun()
	if err != nil {
		return nil, "", fmt.Errorf("a look at %v: %w", c.family.device, err)
	}
	own := c.stateAbout(c.rank, w.number)
	mine := own.find(w.number)
	if mine == nil {
		return nil, "", nil // forgotten: it is done by now
	}
	others := slices.DeleteFunc(c.everybody(), func(r int) bool { return r == c.rank })
	says := c.askAll(others, w.number)
	k := stuck{seq: w.number, call: mine.Call, lane: -1}
	var waiting []int // late for others, who are
	why := map[int]string{}
	for _, r := range others {
		t := says[r]
		switch {
		case t.dead != "" && t.left && t.said && t.begun >= w.number:
			continue // it was through with it, or what it stored is there
		case t.left && !t.said:
			why[r] = t.dead // it may say more
			continue
		case t.dead != "":
			return nil, "", &cause{class: "peer gone", ranks: []int{r}, text: t.dead, from: -1}
		case t.err != nil:
			why[r] = fmt.Sprintf("rank %d does not answer: %v", r, t.err)
			continue
		}
		s := t.state
		if theirs := s.find(w.number); theirs != nil && theirs.Call != mine.Call {
			return nil, "", c.jury(w.number, &cause{class: "mismatch", ranks: []int{r}, text: fmt.Sprintf("rank %d called %v, rank %d %v (sequence %d)", r, theirs.Call, c.rank, mine.Call, w.number), from: -1})
		}
		if len(s.Exchanges) != len(begun) || int32(begun[r]-s.Exchanges[c.rank]) <= 0 {
			continue
		}
		if s.Begun < w.number {
			why[r] = s.lateness(r, k, s.Begun)
		} else {
			why[r] = fmt.Sprintf("rank %d has called it, but its stream does not come to it: work before it does not end", r)
		}
		if slices.ContainsFunc(s.Waits, func(o int) bool { return o != c.rank }) {
			waiting = append(waiting, r)
		}
	}
	var texts []string
	for _, r := range others {
		if why[r] != "" {
			ranks, texts = append(ranks, r), append(texts, why[r])
		}
	}
	if blamed := slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return slices.Contains(waiting, r) }); len(blamed) > 0 {
		ranks = blamed
	}
	return ranks, strings.Join(texts, "; "), nil
}
