package comm

import (
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
		c.family.log.Warn("a queued call waits", "comm", c.name(), "call", call(), "for", waited.Round(time.Millisecond), "ranks", v.ranks, "because", v.words)
	}
}

// absent says why there is no state of rank r's part to look at, if there is none: it has left, it is dead, or words tell.
func (t *testimony) absent(r int) (left bool, dead *cause, words string) {
	switch {
	case t.left, t.state != nil && t.state.Part != nil && t.state.Part.Closes:
		return true, nil, ""
	case t.dead != "":
		return false, &cause{class: "peer gone", ranks: []int{r}, text: t.dead, from: -1}, ""
	case t.err != nil:
		return false, nil, fmt.Sprintf("rank %d does not answer: %v", r, t.err)
	case t.state.Part == nil:
		return false, nil, fmt.Sprintf("rank %d is about to close", r)
	}
	return false, nil, ""
}

// waitsFor reports whether the rank waits for others than us.
func (t *testimony) waitsFor(me int) bool {
	return slices.ContainsFunc(t.state.Waits, func(o int) bool { return o != me })
}

// blame has those of the ranks waited for about whom there is something to say, but for those that only wait themselves, if they are not all.
func (v *verdict) blame(ranks []int, why map[int]string, waiting []int) {
	v.ranks, v.words = ranks, "all of them are in a call, too, in this one or in another"
	if len(why) == 0 {
		return
	}
	v.ranks = nil
	var texts []string
	for _, r := range ranks {
		if why[r] != "" {
			texts = append(texts, why[r])
			v.ranks = append(v.ranks, r)
		}
	}
	v.words = strings.Join(texts, "; ")
	if blamed := slices.DeleteFunc(slices.Clone(v.ranks), func(r int) bool { return slices.Contains(waiting, r) }); len(blamed) > 0 {
		v.ranks = blamed
	}
}
