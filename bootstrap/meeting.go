package bootstrap

import (
	"bufio"
	"fmt"
	"slices"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// meeting is how a root watches over the ranks that have joined, until they have met.
type meeting struct {
	watch                // of the root's goroutine; every and limit under the root's lock
	done   int           // members that are done, once there is a table
	lost   []bool        // by rank, likewise
	gaveUp *RefusedError // the reason, if a rank said that it gives up
}

// returnGrace is how long a rank whose connection broke may take to come back before it is lost.
const returnGrace = 500 * time.Millisecond

// maxWord bounds what a rank says to the root once it has joined.
const maxWord = maxReason + 4*maxCulprits + 64

// hear listens to a member until its connection ends, and reports whether it said goodbye.
func (r *Root) hear(m *member, in *bufio.Reader) (bye bool, err error) {
	for {
		t, body, err := readFrame(in, maxWord)
		if err != nil {
			return bye, err
		}
		m.heard.Store(int64(r.meeting.own()))
		switch t {
		case frameBeat:
			if len(body) == 1 && beat(body[0]) == beatAsk {
				m.put(makeFrame(frameBeat, []byte{byte(beatAnswer)}))
			}
		case frameMet, frameLeave:
			m.late = len(body) == 1 && body[0] == 1
			if err := r.finish(m, t); err != nil {
				return bye, err
			}
			bye = true
		case frameDead, frameAbort:
			if err := r.passOn(m, t, body); err != nil {
				return bye, err
			}
		default:
			return bye, &protocolError{fmt.Sprintf("a frame of type %d from a rank that has joined", t)}
		}
	}
}

// keepWatch looks after silent members until the world is refused or has met.
func (r *Root) keepWatch() {
	r.mu.Lock()
	timer := time.NewTimer(r.meeting.rest())
	r.mu.Unlock()
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C:
		}
		r.mu.Lock()
		if r.refusal != nil && r.table == nil || r.table != nil && r.meeting.done == r.world {
			r.mu.Unlock()
			return
		}
		var ranks []*awaited
		for _, m := range r.members {
			if !m.done && !m.isGone() {
				m.life.heard = max(m.life.heard, time.Duration(m.heard.Load()))
				ranks = append(ranks, &m.life)
			}
		}
		silent, ask, next := r.meeting.take(ranks)
		for _, a := range ask {
			r.members[a.rank].put(makeFrame(frameBeat, []byte{byte(beatAsk)}))
		}
		own := r.meeting.own()
		if len(silent) > 0 && r.aloneLocked(own) {
			r.refuseLocked(r.cutOffLocked(), false) // once all have met at the root, they look after each other
		} else if len(silent) > 0 {
			slices.SortFunc(silent, func(a, b *awaited) int { return a.rank - b.rank })
			what := map[int]fate{}
			for _, a := range silent {
				what[a.rank] = fate{reason: fmt.Sprintf("silent for %.1fs (frozen or cut off)", (own - a.heard).Seconds())}
			}
			r.loseLocked(what)
		}
		r.mu.Unlock()
		timer.Reset(next)
	}
}

// aloneLocked reports whether the root hears of nobody but the rank in its own process, of two or more others: it was cut off itself.
func (r *Root) aloneLocked(own time.Duration) bool {
	home, others := r.homeLocked(), 0
	for rank, m := range r.members {
		if m.done || rank == home {
			continue
		}
		if others++; !m.isGone() && own-time.Duration(m.heard.Load()) < r.meeting.limit/2 {
			return false
		}
	}
	return others > 1
}

func (r *Root) cutOffLocked() *RefusedError {
	e := &RefusedError{Code: RefusedDead, Text: fmt.Sprintf("the root, on %s, hears of nobody any more: it was cut off", r.addr)}
	if home := r.homeLocked(); home != nobody {
		e.Ranks = []int{home}
		e.Text += fmt.Sprintf(", with rank %d", home)
	}
	return e
}

// finish takes note that a member has met all others, or has given up: at once, for its connection may end much later.
func (r *Root) finish(m *member, t frameType) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rank := int(m.rank)
	switch {
	case m.done || r.members[rank] != m || r.table == nil && r.refusal != nil:
	case r.table == nil && t == frameMet:
		return &protocolError{fmt.Sprintf("a frame of type %d before the world is complete", t)}
	case r.table == nil:
		delete(r.members, rank)
		r.left[rank] = m.late
		r.news = true
		r.patience(m, 2*auth.Timeout)
		r.log.Warn("a rank left before the world was complete", "rank", rank, "host", m.host, "pid", m.pid, "peer", m.conn.RemoteAddr())
	case t == frameMet:
		if r.doneLocked(m); r.meeting.done == r.world && r.refusal == nil {
			close(r.over)
		}
	default:
		r.doneLocked(m)
		if r.meeting.gaveUp == nil {
			text := fmt.Sprintf("rank %d (%s) gave up before all ranks had met", rank, m.who())
			r.meeting.gaveUp = &RefusedError{Code: RefusedAborted, Ranks: []int{rank}, Text: text}
			if r.refusal == nil { // it has not said why: it may have had no session yet when the table came
				r.broadcastLocked(abortFrame(Notice{From: rank, Ranks: []int{rank}, Reason: text}))
			}
		}
		r.failLocked(r.meeting.gaveUp)
	}
	return nil
}

func (r *Root) doneLocked(m *member) {
	m.done = true
	r.meeting.done++
}

// failLocked ends a world that had a table.
func (r *Root) failLocked(e *RefusedError) {
	select {
	case <-r.over:
	default:
		e.Root = r.addr.String()
		r.refusal = e
		close(r.over)
	}
}

// leave takes note of a connection that ended.
func (r *Root) leave(m *member, bye bool, why error) {
	rank := int(m.rank)
	r.mu.Lock()
	mine := r.members[rank] == m && !m.done && (r.refusal == nil || r.table != nil)
	r.mu.Unlock()
	if !mine || bye {
		return
	}
	timer := time.NewTimer(returnGrace)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[rank] != m || m.done {
		return
	}
	what := map[int]fate{rank: {sure: true, reason: fmt.Sprintf("its connection to the root ended without goodbye (%v)", why)}}
	for other, q := range r.members { // gone at the same time, as with their host
		if q != m && !q.done && q.isGone() {
			what[other] = fate{sure: true, reason: "its connection to the root ended without goodbye"}
		}
	}
	r.loseLocked(what)
}

// loseLocked tells everybody that members are lost.
func (r *Root) loseLocked(what map[int]fate) {
	if r.table == nil {
		e := &RefusedError{Code: RefusedDead}
		for rank := range r.world {
			if f, ok := what[rank]; ok {
				if e.Ranks != nil {
					e.Text += "; "
				}
				e.Text += fmt.Sprintf("rank %d (%s) had joined and is dead: %s", rank, r.members[rank].who(), f.reason)
				e.Ranks = append(e.Ranks, rank)
			}
		}
		e.Text = e.Text[:min(len(e.Text), maxReason)]
		r.refuseLocked(e, false)
		return
	}
	for rank := range r.world {
		if f, ok := what[rank]; ok {
			f.by = r.world
			r.lostLocked(rank, f)
		}
	}
}

// lostLocked tells everybody that a rank is lost, once there is a table.
func (r *Root) lostLocked(rank int, f fate) {
	if r.meeting.lost[rank] {
		return
	}
	r.meeting.lost[rank] = true
	m := r.members[rank]
	r.broadcastLocked(deadFrame(rank, f)) // to that rank, too: it may wake
	if !m.done {
		r.doneLocked(m)
		now := time.Now()
		m.lost.Store(&now)
		m.end()
		r.patience(m, 2*auth.Timeout)
	}
	text := fmt.Sprintf("rank %d (%s) is dead: %s", rank, m.who(), f.reason)
	r.failLocked(&RefusedError{Code: RefusedDead, Ranks: []int{rank}, Text: text})
	r.log.Error("a rank was lost before all had met", "reason", text)
}

// passOn tells all ranks what one of them says about others, or that it gave up.
func (r *Root) passOn(m *member, t frameType, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table == nil {
		return &protocolError{fmt.Sprintf("a frame of type %d before the world is complete", t)}
	}
	if m.done || r.members[int(m.rank)] != m {
		return nil // it was given up itself
	}
	if t == frameDead {
		rank, how, err := parseDead(body, r.world)
		if err == nil {
			r.lostLocked(rank, how)
		}
		return err
	}
	n, err := parseAbort(body, r.world)
	if err != nil || r.meeting.gaveUp != nil {
		return err
	}
	// It may have met all others, and they may have too, and only not have said so yet. Else one will say that it leaves.
	r.meeting.gaveUp = &RefusedError{Code: RefusedAborted, Ranks: []int{n.From}, Text: fmt.Sprintf("rank %d gave up before all ranks had met: %s", n.From, n.Reason)}
	r.broadcastLocked(abortFrame(n))
	return nil
}
