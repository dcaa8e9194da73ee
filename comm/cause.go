package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
)

// cause is a reason for which a communicator failed, in a form that ranks tell each other: what it is to errors.Is,
// which ranks are to blame, and the words.
type cause struct {
	class string // a key of classes, or empty
	ranks []int
	text  string
	from  int // the rank that found it, -1: ours

	secondhand bool // seen of a session of other ranks: word of why may come
}

// classes are what errors.Is can tell on all ranks.
var classes = map[string]error{
	"mismatch": ErrMismatch, "timeout": ErrTimeout, "peer gone": transport.ErrGone, "corrupt": transport.ErrCorrupt,
	"out of sequence": transport.ErrSequence, "no memory": transport.ErrSpace, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// causeOf puts what went wrong here into that form.
func causeOf(err error) *cause {
	if c := (*cause)(nil); errors.As(err, &c) {
		return c
	}
	var told *bootstrap.AbortedError
	if errors.As(err, &told) {
		return parseCause(told.Notice)
	}
	c := &cause{text: err.Error(), from: -1}
	for class, sentinel := range classes {
		if errors.Is(err, sentinel) {
			c.class = class
		}
	}
	var peer *transport.PeerError
	if errors.As(err, &peer) {
		c.ranks = []int{int(peer.Key.Peer)}
	}
	var gone *bootstrap.PeerError
	if errors.As(err, &gone) {
		c.class, c.ranks = "peer gone", []int{gone.Rank}
	}
	var late *bootstrap.LateError
	if errors.As(err, &late) && !errors.Is(err, context.Canceled) {
		c.ranks = late.Missing
	}
	var missing *bootstrap.MissingError
	if errors.As(err, &missing) {
		if c.ranks = missing.Missing; len(c.ranks) == 0 { // else who left may only have given up on them before us
			c.ranks = missing.Left
		}
	}
	var refused *bootstrap.RefusedError
	if errors.As(err, &refused) {
		c.ranks = refused.Ranks
	}
	if errors.Is(err, bootstrap.ErrTimeout) && !errors.Is(err, context.Canceled) {
		c.class = "timeout"
	}
	return c
}

// among translates numbers of ranks that are positions in a list.
func (c *cause) among(ranks []int) *cause {
	of := func(r int) int {
		if r < 0 || r >= len(ranks) {
			return r
		}
		return ranks[r]
	}
	d := *c
	d.ranks, d.from = nil, of(c.from)
	for _, r := range c.ranks {
		d.ranks = append(d.ranks, of(r))
	}
	return &d
}

// culprits are the ranks to blame for a failed call. Who aborted a communicator of its own will is one.
func culprits(err error) []int {
	c := causeOf(err)
	if len(c.ranks) == 0 && c.from >= 0 && (c.class == "canceled" || c.class == "deadline" || strings.HasPrefix(c.text, abortedHere)) {
		return []int{c.from}
	}
	return c.ranks
}

// abortedHere begins the text of a failure that Comm.Abort made.
const abortedHere = "aborted by this rank: "

// Error is for people.
func (c *cause) Error() string {
	s := c.text
	if err := classes[c.class]; err != nil && !strings.Contains(s, err.Error()) {
		s += ": " + err.Error()
	}
	if c.from >= 0 {
		s = fmt.Sprintf("rank %d gave up: %s", c.from, s)
	}
	return s
}

// wire is what ranks tell each other: "mismatch; ranks [2]; words".
type wire struct{ *cause }

func (w wire) Error() string { return fmt.Sprintf("%s; ranks %v; %s", w.class, w.ranks, w.text) }

// Unwrap returns the class.
func (c *cause) Unwrap() error { return classes[c.class] }

// parseCause reads what another rank's session was aborted with.
func parseCause(n bootstrap.Notice) *cause {
	c := &cause{text: n.Reason, from: n.From}
	class, rest, ok1 := strings.Cut(n.Reason, "; ranks [")
	ranks, text, ok2 := strings.Cut(rest, "]; ")
	if !ok1 || !ok2 || class != "" && classes[class] == nil {
		if strings.Contains(n.Reason, context.Canceled.Error()) {
			c.class = "canceled"
		}
		return c
	}
	c.class, c.text = class, text
	for _, word := range strings.Fields(ranks) {
		if r, err := strconv.Atoi(word); err == nil {
			c.ranks = append(c.ranks, r)
		}
	}
	slices.Sort(c.ranks)
	return c
}
