package histories

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/transport"
)

// outcome is what came of one call.
type outcome struct {
	rank    int
	step    int
	what    string
	members []int // of the communicator, in the world; of all of a group
	err     error
	struck  bool // the fault had happened when it ended
	took    time.Duration
	limit   time.Duration
	removed bool // the rank is no survivor
	at      time.Time
	number  int  // of the call in its step, from 1; 0: none
	pair    int  // of a message: its two ends
	waited  bool // it was waited for all the time
}

// note records an outcome and returns its error.
func (r *rank) note(o outcome) error {
	j := r.job
	o.rank, o.struck = r.number, j.struck.Load()
	if o.at.IsZero() {
		o.at = time.Now()
	}
	o.removed = j.Fault.removes() && slices.Contains(j.Fault.Ranks, r.number)
	if o.err != nil || j.trace != nil {
		j.tracef("rank %d, step %d: %s on %v took %v: %v", r.number, o.step, o.what, o.members, o.took, o.err)
	}
	j.mu.Lock()
	j.outcomes = append(j.outcomes, o)
	j.mu.Unlock()
	return o.err
}

// errors that may end a call.
var known = []error{
	comm.ErrAborted, comm.ErrTimeout, comm.ErrMismatch, comm.ErrClosed, context.Canceled,
	bootstrap.ErrAborted, bootstrap.ErrClosed, bootstrap.ErrDead, bootstrap.ErrTimeout, bootstrap.ErrRefused,
	transport.ErrGone,
}

// judge looks at all outcomes, now that it is known who may be blamed.
func (j *job) judge() {
	j.judgeHaste()
	for _, o := range j.outcomes {
		if bound := j.Fault.bound(); bound > 0 && o.err != nil && o.struck && o.what != "New" {
			began := o.at.Add(-o.took)
			if struck := time.Unix(0, j.struckAt.Load()); struck.After(began) {
				began = struck
			}
			if late := o.at.Sub(began); late > bound && slices.ContainsFunc(o.members, func(q int) bool { return slices.Contains(j.Fault.Ranks, q) }) {
				j.fault("rank %d, step %d: %s on %v heard of the fault after %v, limit %v: %v", o.rank, o.step, o.what, o.members, late, bound, o.err)
			}
		}
		if o.took > o.limit {
			j.fault("rank %d, step %d: %s on %v took %v, limit %v: %v", o.rank, o.step, o.what, o.members, o.took, o.limit, o.err)
		}
		if o.err == nil || o.removed {
			continue
		}
		if why := j.condemn(o); why != "" {
			j.fault("rank %d, step %d: %s on %v %s: %v", o.rank, o.step, o.what, o.members, why, o.err)
		}
	}
}

// condemn says what is wrong with an error, or nothing.
func (j *job) condemn(o outcome) string {
	switch {
	case !o.struck:
		return "failed before the fault"
	case j.Fault.harmless():
		return "failed, though the fault does no harm"
	case !slices.ContainsFunc(known, func(e error) bool { return errors.Is(o.err, e) }):
		return "failed with an error of no known kind"
	}
	var call *comm.Error
	if errors.As(o.err, &call) && !errors.Is(o.err, comm.ErrAborted) {
		return "failed with an error that is not ErrAborted"
	}
	if strings.Contains(o.err.Error(), errRecovery.Error()) {
		return "" // another one failed before, and ended what was left
	}
	if strings.Contains(o.err.Error(), "bootstrap Sub: aborted by rank") {
		return "" // a communicator that was only half made, as the one it is made of failed; the error says so
	}
	if !slices.ContainsFunc(o.members, func(q int) bool { return slices.Contains(j.culprits, q) }) {
		return "failed, though nobody in it is at fault"
	}
	if j.Fault.Kind == Cancel && o.rank == j.Fault.Ranks[0] && errors.Is(o.err, context.Canceled) {
		return ""
	}
	if errors.Is(o.err, comm.ErrTimeout) && strings.Contains(o.err.Error(), ", and it is in ") {
		return "" // who is stuck in another communicator is late in this one; the error says which
	}
	if m := tieText.FindStringSubmatch(o.err.Error()); m != nil && errors.Is(o.err, comm.ErrMismatch) && o.culpable(j, m[1:]) {
		return "" // one against one: which of the two is odd cannot be known, and both are named
	}
	blamed := o.blamed(j)
	if (j.Fault.Kind == Drop || j.Fault.Kind == Reorder) && errors.Is(o.err, comm.ErrTimeout) {
		return "" // no later message tells of the loss: then nobody can say between whom it was, but that all are in the call
	}
	if o.what == "New" && !j.RootApart && slices.Contains(j.culprits, 0) {
		return "" // the root went with rank 0, perhaps before the others had heard where it lives
	}
	if len(blamed) == 0 {
		return "failed with an error that blames nobody"
	}
	for _, q := range blamed {
		if !slices.Contains(j.culprits, q) {
			return "blames " + strconv.Itoa(q) + " of " + strings.Join(numbers(blamed), ",") + ", but at fault are only " + strings.Join(numbers(j.culprits), ",")
		}
	}
	return ""
}

func numbers(ranks []int) (s []string) {
	for _, r := range ranks {
		s = append(s, strconv.Itoa(r))
	}
	return s
}

var (
	tieText   = regexp.MustCompile(`(?:^|: )rank (\d+) called [^;,]*, but ranks \[(\d+)\] called`)
	leftText  = regexp.MustCompile(`joined and left again: ([0-9, -]+)`)
	otherText = regexp.MustCompile(`rank (\d+) (?:at \S+|\(\S+\)) (?:was not reached|is dead|is closed|did not connect)`)
)

// blamed returns the ranks, in the world, that an error names as the culprits.
func (o outcome) blamed(j *job) (ranks []int) {
	in := func(members []int, local ...int) {
		for _, q := range local {
			if q < 0 || q >= len(members) {
				ranks = append(ranks, -1)
			} else {
				ranks = append(ranks, members[q])
			}
		}
	}
	var call *comm.Error
	if errors.As(o.err, &call) {
		members := o.members
		if id, err := strconv.ParseUint(call.Comm, 16, 64); err == nil && call.Op != "init" {
			j.mu.Lock()
			if m := j.members[id]; m != nil { // else it never came to be
				members = m
			}
			j.mu.Unlock()
		}
		in(members, call.Ranks...)
		if len(ranks) == 0 {
			// An abort by the user names who did it.
			if strings.Contains(o.err.Error(), errStop.Error()) && !strings.Contains(o.err.Error(), "gave up") {
				in(members, call.Rank)
			}
		}
		if len(ranks) > 0 || call.Op != "init" {
			return ranks
		}
	}
	var (
		aborted *bootstrap.AbortedError
		peer    *bootstrap.PeerError
		late    *bootstrap.LateError
		missing *bootstrap.MissingError
		refused *bootstrap.RefusedError
	)
	switch {
	case errors.As(o.err, &aborted):
		if len(aborted.Notice.Ranks) > 0 {
			in(o.members, aborted.Notice.Ranks...)
		} else if strings.Contains(aborted.Notice.Reason, context.Canceled.Error()) {
			in(o.members, aborted.Notice.From)
		} else if m := otherText.FindStringSubmatch(aborted.Notice.Reason); m != nil {
			q, _ := strconv.Atoi(m[1])
			in(o.members, q)
		} else {
			in(o.members, aborted.Notice.From)
		}
	case errors.As(o.err, &peer):
		in(o.members, peer.Rank)
	case errors.As(o.err, &late):
		in(o.members, late.Missing...)
	case errors.As(o.err, &missing):
		in(o.members, missing.Missing...)
		in(o.members, missing.Left...)
	case errors.As(o.err, &refused):
		in(o.members, refused.Ranks...)
	}
	if len(ranks) == 0 { // bootstrap's words, where it gives no facts
		for _, re := range []*regexp.Regexp{leftText, otherText} {
			if m := re.FindStringSubmatch(o.err.Error()); m != nil {
				in(o.members, parseRanks(m[1])...)
				break
			}
		}
	}
	return ranks
}

// parseRanks reads a list such as "0, 2-4".
func parseRanks(list string) (ranks []int) {
	for _, run := range strings.Split(list, ",") {
		low, high, ok := strings.Cut(strings.TrimSpace(run), "-")
		a, _ := strconv.Atoi(low)
		b := a
		if ok {
			b, _ = strconv.Atoi(high)
		}
		for ; a <= b; a++ {
			ranks = append(ranks, a)
		}
	}
	return ranks
}

// haste is how long after the last rank has begun a call it may take, where neither network nor messages are slow. A driver
// that nobody wakes looks every 20 ms.
const haste = 15 * time.Millisecond

// judgeHaste sees that nobody slept while there was something to do, in histories without fault or delay.
func (j *job) judgeHaste() {
	if j.Fault.Kind != None || j.MemDelay > 0 || j.Dwell > 0 {
		return
	}
	type key struct{ step, number, pair int }
	last := map[key]time.Time{}
	for _, o := range j.outcomes {
		k := key{o.step, o.number, o.pair}
		if began := o.at.Add(-o.took); began.After(last[k]) {
			last[k] = began
		}
	}
	for _, o := range j.outcomes {
		if (o.waited || o.what == "group") && o.number > 0 {
			if late := o.at.Sub(last[key{o.step, o.number, o.pair}]); late > haste {
				j.fault("rank %d, step %d: %s on %v ended %v after the last rank had begun it", o.rank, o.step, o.what, o.members, late)
			}
		}
	}
}

// bound is how long after the fault, or after it was begun, a call that needs the lost ranks may take. 0: no limit of its own.
func (f Fault) bound() time.Duration {
	switch f.Kind {
	case Kill, KillTwo:
		return 3 * time.Second // a second to know, and two for who only saw others close their connections
	case Cut:
		return 7 * time.Second // four seconds of silence
	case Freeze:
		if f.Lasts > shortFreeze {
			return 7 * time.Second
		}
	}
	return 0
}

// culpable reports whether one of the ranks, numbers in the communicator of the error, is at fault.
func (o outcome) culpable(j *job, local []string) bool {
	members := o.members
	if call := (*comm.Error)(nil); errors.As(o.err, &call) {
		if id, err := strconv.ParseUint(call.Comm, 16, 64); err == nil {
			if m := j.members[id]; m != nil {
				members = m
			}
		}
	}
	return slices.ContainsFunc(local, func(s string) bool {
		q, err := strconv.Atoi(s)
		return err == nil && q < len(members) && slices.Contains(j.culprits, members[q])
	})
}
