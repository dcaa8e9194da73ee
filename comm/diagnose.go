package comm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// stuck is a call of ours that does not move.
type stuck struct {
	run   *run
	seq   uint64
	call  agreed
	lane  int // of point-to-point: sending or receiving; -1: a collective
	peers []int
	since time.Duration // how long it has not been done
}

func (k *stuck) String() string {
	peer := -1
	if k.lane >= 0 {
		peer = k.peers[0]
	}
	return k.call.with(k.lane, peer)
}

// testimony is what came of asking a rank.
type testimony struct {
	state *rankState
	err   error // no answer
	dead  string
	left  bool   // it is not dead, but has closed the communicator
	begun uint64 // if it left, and said so: the last collective that it began
	said  bool
}

// finding is what a look at other ranks' states comes to.
type finding struct {
	class string // "mismatch", "peer gone": fails at once; "left": after a while; "late", "silent": only when time is up
	ranks []int
	text  string
}

// final reports whether there is no point in waiting any longer.
func (f finding) final() bool { return f.class == "mismatch" || f.class == "peer gone" }

// diagnose says why the call k of rank me stands still. It asks ranks, beginning with those that k waits for, and goes on to
// those that they wait for in turn, until it finds whose fault it is. A rank that is itself only waiting is never blamed.
func diagnose(me int, k stuck, ask func(rank int) testimony) finding {
	asked := map[int]bool{me: true}
	queue := slices.Clone(k.peers)
	var dead, left, late, silent, waiting []int
	behind := map[int]bool{} // ranks that a message does not concern, but the call that its other end is in
	var words []string
	for len(queue) > 0 {
		r := queue[0]
		queue = queue[1:]
		if asked[r] {
			continue
		}
		asked[r] = true
		t := ask(r)
		switch {
		case t.left && k.lane < 0 && t.said && t.begun < k.seq:
			dead = append(dead, r) // nothing can be on its way
			words = append(words, fmt.Sprintf("%s; the last that it had begun is sequence %d", t.dead, t.begun))
			continue
		case t.left:
			left = append(left, r)
			words = append(words, t.dead)
			continue
		case t.dead != "":
			dead = append(dead, r)
			words = append(words, t.dead)
			continue
		case t.err != nil:
			silent = append(silent, r)
			words = append(words, fmt.Sprintf("rank %d does not answer: %v", r, t.err))
			continue
		}
		s := t.state
		if behind[r] {
			if len(s.Waits) > 0 {
				queue = append(queue, s.Waits...)
				for _, w := range s.Waits {
					behind[w] = true
				}
			} else {
				late = append(late, r)
				words = append(words, fmt.Sprintf("rank %d, for which others wait, waits for nobody: it began sequence %d and finished %d", r, s.Begun, s.finished()))
			}
			continue
		}
		theirs, begun := s.find(k.seq), s.Begun
		if k.lane >= 0 {
			theirs, begun = s.findPair(1-k.lane, k.seq), s.Pair[1-k.lane]
		}
		switch {
		case theirs != nil && differs(k, theirs.Call):
			if k.lane >= 0 {
				return finding{"mismatch", []int{r}, pairWords(r, theirs.Call, me, k.call, k.lane, k.seq)}
			}
			return finding{"mismatch", []int{r}, fmt.Sprintf("rank %d called %v, rank %d %v (sequence %d)", r, theirs.Call, me, k.call, k.seq)}
		case begun < k.seq:
			words = append(words, s.lateness(r, k, begun))
			if len(s.Waits) == 0 {
				late = append(late, r)
				continue
			}
			waiting = append(waiting, r) // in an earlier call, for whoever is late there
			queue = append(queue, s.Waits...)
			for _, w := range s.Waits {
				behind[w] = k.lane >= 0
			}
		case k.lane < 0:
			queue = append(queue, s.Waits...)
		}
	}
	if len(late) == 0 {
		late = waiting
	}
	slices.Sort(late)
	slices.Sort(silent)
	slices.Sort(dead)
	text := strings.Join(words, "; ")
	switch {
	case len(dead) > 0:
		return finding{"peer gone", dead, text}
	case len(left) > 0:
		slices.Sort(left)
		return finding{"left", left, text}
	case len(silent) > 0:
		return finding{"silent", silent, text}
	case len(late) > 0:
		return finding{"late", late, text}
	}
	return finding{"late", slices.Clone(k.peers), "all of them are in the call, too"}
}

// pairWords says how two ranks called the two ends of a message; ours is the lane's.
func pairWords(peer int, theirs agreed, me int, ours agreed, lane int, seq uint64) string {
	verbs := [2]string{sending: "sent", receiving: "received"}
	return fmt.Sprintf("rank %d %s %d %v, rank %d %s %d %v (message %d between them)", peer, verbs[1-lane], theirs.Count, theirs.DType, me, verbs[lane], ours.Count, ours.DType, seq)
}

// differs reports whether two ranks' calls of one number are not the same. A send's and its receive's kinds differ as
// they should.
func differs(k stuck, theirs agreed) bool {
	if k.lane >= 0 {
		theirs.Kind = k.call.Kind
	}
	return theirs != k.call
}

// lateness says how far a late rank got.
func (s *rankState) lateness(r int, k stuck, begun uint64) string {
	var b strings.Builder
	if k.lane >= 0 {
		fmt.Fprintf(&b, "rank %d has not called %v number %d with us, its last is %d", r, []string{"send", "recv"}[1-k.lane], k.seq, begun)
	} else {
		fmt.Fprintf(&b, "rank %d has not called sequence %d: it began %d and finished %d", r, k.seq, begun, s.finished())
		if begun == s.finished()+1 {
			if c := s.find(begun); c != nil {
				fmt.Fprintf(&b, ", it is in %v", c.Call)
			}
		}
	}
	if len(s.Busy) > 0 {
		fmt.Fprintf(&b, ", and it is in %s", strings.Join(s.Busy, " and in "))
	}
	if s.Failed != "" {
		fmt.Fprintf(&b, ", and it gave up: %s", s.Failed)
	}
	return b.String()
}

// convict finds against the ranks whose call number seq is not what most called; where two calls are as frequent, against
// those that differ from the lowest rank's.
func convict(seq uint64, calls map[int]agreed) *cause {
	votes := map[agreed]int{}
	for _, call := range calls {
		votes[call]++
	}
	ranks := slices.Sorted(maps.Keys(calls))
	var right agreed
	for _, r := range ranks {
		if votes[calls[r]] > votes[right] {
			right = calls[r]
		}
	}
	c := &cause{class: "mismatch", from: -1}
	var most []int
	var words []string
	for _, r := range ranks {
		if calls[r] == right {
			most = append(most, r)
			continue
		}
		c.ranks = append(c.ranks, r)
		words = append(words, fmt.Sprintf("rank %d called %v", r, calls[r]))
	}
	c.text = fmt.Sprintf("%s, but ranks %v called %v", strings.Join(words, ", "), most, right)
	if seq != 0 {
		c.text += fmt.Sprintf(" (sequence %d)", seq)
	}
	return c
}
