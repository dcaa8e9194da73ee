package comm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// verdict is what a look at the other ranks comes to.
type verdict struct {
	final error         // why the communicator fails,
	after time.Duration // if things stand so that long
	ranks []int         // else: those that are waited for, and why
	words string
}

// press warns of a call that has waited so long, now and then, and has the communicator fail when its time is up.
func (v *verdict) press(c *Comm, call func() string, waited time.Duration, now time.Time, warned *time.Time) {
	limits := &c.family.cfg
	switch {
	case waited >= limits.CallTimeout:
		words := fmt.Sprintf("waited %v for ranks %v: %s", waited.Round(time.Millisecond), v.ranks, v.words)
		c.fail(&cause{class: "timeout", ranks: v.ranks, text: fmt.Sprintf("%s of rank %d on %v %s", call(), c.rank, c.family.device, words), from: -1})
	case waited >= limits.WarnAfter && now.Sub(*warned) >= limits.WarnAfter:
		*warned = now
		c.log.Warn("a queued call waits", "call", call(), "for", waited.Round(time.Millisecond), "ranks", v.ranks, "because", v.words)
	}
}

// A hearing is what other ranks' testimonies come to.
type hearing struct {
	why           map[int]string // what there is to say of a rank
	left, waiting []int          // ranks that have left; those that themselves wait for others than us
	dead          *cause         // a rank is
}

// hears takes a testimony down and returns the rank's part; nil: there is none to look at.
func (h *hearing) hears(r int, t *testimony) *partState {
	switch {
	case t.left, t.state != nil && t.state.Part != nil && t.state.Part.Closes:
		h.left = append(h.left, r)
	case t.dead != "":
		h.dead = cmp.Or(h.dead, &cause{class: "peer gone", ranks: []int{r}, text: t.dead, from: -1})
	case t.err != nil:
		h.why[r] = fmt.Sprintf("rank %d does not answer: %v", r, t.err)
	case t.state.Part == nil:
		h.why[r] = fmt.Sprintf("rank %d is about to close", r)
	default:
		return t.state.Part
	}
	return nil
}

// closed is why the communicator fails where only ranks that have left are waited for.
func (h *hearing) closed(before string) *cause {
	slices.Sort(h.left) // a rank may have been heard twice
	h.left = slices.Compact(h.left)
	return &cause{class: "peer gone", ranks: h.left, text: fmt.Sprintf("ranks %v closed the communicator before they made %s", h.left, before), from: -1}
}

// waitsFor reports whether the rank waits for others than us.
func (t *testimony) waitsFor(me int) bool {
	return slices.ContainsFunc(t.state.Waits, func(o int) bool { return o != me })
}

// blame has those of the ranks waited for about whom there is something to say, but for those that only wait themselves, if they are not all.
func (v *verdict) blame(ranks []int, h *hearing) {
	v.ranks, v.words = ranks, "all of them are in a call, too, in this one or in another"
	if len(h.why) == 0 {
		return
	}
	v.ranks = nil
	var texts []string
	for _, r := range ranks {
		if h.why[r] != "" {
			texts = append(texts, h.why[r])
			v.ranks = append(v.ranks, r)
		}
	}
	v.words = strings.Join(texts, "; ")
	if blamed := slices.DeleteFunc(slices.Clone(v.ranks), func(r int) bool { return slices.Contains(h.waiting, r) }); len(blamed) > 0 {
		v.ranks = blamed
	}
}
