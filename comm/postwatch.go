package comm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// postState is what a rank says of messages to the rank that asks, or from it: the number of the last that its GPU has begun, and what the last ones are.
type postState struct {
	Begun uint32
	What  []uint64 // message k is at (k-1) modulo its length
}

func stateOf(m cuda.MessageReport) postState { return postState{m.Begun, m.What[:]} }

// find returns what message k is, if it is not forgotten.
func (s *postState) find(k uint32) (a agreed, known bool) {
	n := uint32(len(s.What))
	if n == 0 || int32(s.Begun-k) < 0 || s.Begun-k >= n {
		return a, false
	}
	w := s.What[(k-1)%n]
	return agreed{Kind: KindSend, DType: kernels.DType(w >> 56), Count: int(w << 8 >> 8)}, true
}

// A postWatch looks after messages that our GPU has begun and is not through with.
type postWatch struct {
	c      *Comm
	pulses pulses
	seen   [2][]cuda.MessageReport
	since  time.Time // when they were first seen so; zero: none stands
	look   time.Time // when it is worth a look again
	warned time.Time
}

// standing is a message that is not through.
type standing struct {
	peer, lane int
	number     uint32
	call       agreed
}

func (w *postWatch) tick(now time.Time) {
	c := w.c
	if _, err := c.part.Posting(); err != nil {
		c.fail(fmt.Errorf("messages that are queued on %v: %w", c.family.device, err))
		return
	}
	reports, err := w.reports(now)
	if errors.Is(err, gpu.ErrClosed) {
		return
	}
	var list []standing
	for lane := range reports {
		for r, m := range reports[lane] {
			if number := m.Over + 1; m.Begun != m.Over || w.pulses.beats(lane, r, now) {
				if m.Begun == m.Over {
					number = m.Over // a part of the GPU is through with it, another is not
				}
				s := stateOf(m)
				call, _ := s.find(number)
				list = append(list, standing{r, lane, number, call})
			}
		}
	}
	if len(list) == 0 {
		*w = postWatch{c: c, pulses: w.pulses}
		c.part.posts.Store(nil)
		return
	}
	if w.since.IsZero() || !w.saw(reports) {
		*w = postWatch{c: c, pulses: w.pulses, seen: reports, since: now, look: now.Add(firstLook)}
		c.part.posts.Store(nil)
		return
	}
	if now.Before(w.look) {
		return
	}
	limits, waited := &c.family.cfg, now.Sub(w.since)
	w.look = now.Add(min(max(firstLook, waited/2), max(min(limits.WarnAfter, limits.CallTimeout)/2, time.Millisecond), time.Second))
	v := w.ask(list)
	if v.final != nil {
		if v.after > waited {
			w.look = now.Add(v.after - waited)
			return
		}
		if reports, err := w.reports(now); err == nil && w.saw(reports) { // what came meanwhile counts
			c.fail(v.final)
		}
		return
	}
	c.part.posts.Store(&v.ranks)
	v.press(c, list[0].name, waited, now, &w.warned)
}

// reports is what the GPU says, by lane and rank, without what is always something else.
func (w *postWatch) reports(now time.Time) (all [2][]cuda.MessageReport, err error) {
	if all[sending], all[receiving], err = w.c.part.Messages(); err != nil {
		return all, err
	}
	for lane := range all {
		w.pulses.take(lane, all[lane], now)
		for r := range all[lane] {
			all[lane][r].Waits = 0
		}
	}
	return all, nil
}

// saw reports whether the GPU has said nothing new.
func (w *postWatch) saw(reports [2][]cuda.MessageReport) bool {
	return slices.Equal(reports[sending], w.seen[sending]) && slices.Equal(reports[receiving], w.seen[receiving])
}

// pulses are when the GPU's Waits last changed, by lane and rank.
type pulses [2][]pulse

type pulse struct {
	word uint32
	at   time.Time
}

// pulseMost is how long after it changed it is taken to change again: far longer than it takes a GPU.
const pulseMost = 500 * time.Millisecond

func (p *pulses) take(lane int, reports []cuda.MessageReport, now time.Time) {
	for r, m := range reports {
		if r == len(p[lane]) {
			p[lane] = append(p[lane], pulse{word: m.Waits})
		}
		if x := &p[lane][r]; x.word != m.Waits {
			x.word, x.at = m.Waits, now
		}
	}
}

func (p *pulses) beats(lane, rank int, now time.Time) bool {
	return now.Sub(p[lane][rank].at) < pulseMost
}

// name says which message it is.
func (s *standing) name() string {
	return fmt.Sprintf("%s of %d %v (peer %d, message %d between them over links)", [2]string{sending: "send", receiving: "recv"}[s.lane], s.call.Count, s.call.DType, s.peer, s.number)
}

// ask has the peers of messages that stand say where they are.
func (w *postWatch) ask(list []standing) (v verdict) {
	c := w.c
	var peers []int
	for _, s := range list {
		if !slices.Contains(peers, s.peer) {
			peers = append(peers, s.peer)
		}
	}
	says := c.askAll(peers, 0)
	h := hearing{why: map[int]string{}}
	for _, s := range list {
		r, t := s.peer, says[s.peer]
		p := h.hears(r, &t)
		if p == nil {
			continue
		}
		theirs := &p.Posts[1-s.lane]
		if other, known := theirs.find(s.number); known && other != s.call {
			v.final = &cause{class: "mismatch", ranks: []int{r}, text: pairWords(r, other, c.rank, s.call, s.lane, uint64(s.number)), from: -1}
			return v
		}
		if int32(theirs.Begun-s.number) >= 0 {
			continue
		}
		h.why[r] = fmt.Sprintf("rank %d's GPU has not begun %s number %d with us, its last is %d: it was not called, or its stream does not come to it", r, [2]string{"send", "recv"}[1-s.lane], s.number, theirs.Begun)
		if len(t.state.Busy) > 0 {
			h.why[r] += "; it is in " + strings.Join(t.state.Busy, " and in ")
		}
		if t.waitsFor(c.rank) {
			h.waiting = append(h.waiting, r)
		}
	}
	if h.dead != nil {
		v.final = h.dead
		return v
	}
	v.blame(peers, &h)
	if len(h.why) == 0 && len(h.left) > 0 {
		v.final = h.closed("their end of a message")
		v.after = unmet
	}
	return v
}
