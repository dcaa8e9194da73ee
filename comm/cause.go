package comm

import (
	"context"
	"errors"
	"fmt"
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
	"mismatch": ErrMismatch, "configuration": ErrConfig, "timeout": ErrTimeout, "peer gone": transport.ErrGone, "corrupt": transport.ErrCorrupt,
	"out of sequence": transport.ErrSequence, "no memory": transport.ErrSpace, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// precedence is which of them counts where an error is several: what says more. That a peer is gone often follows from the rest.
var precedence = []string{"mismatch", "configuration", "corrupt", "out of sequence", "no memory", "canceled", "timeout", "deadline", "peer gone"}

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
	for _, class := range precedence {
		if errors.Is(err, classes[class]) {
			c.class = class
			break
		}
	}
	var peer *transport.PeerError
	if errors.As(err, &peer) {
		c.ranks = []int{int(peer.Key.Peer)}
	}
	if errors.Is(err, bootstrap.ErrDead) {
		c.class = "peer gone"
	}
	if errors.As(err, new(*bootstrap.PeerError)) {
		c.class = "peer gone"
	}
	var blames interface{ Culprits() []int } // bootstrap's errors do, and transport.OwnError
	if errors.As(err, &blames) {
		c.ranks = blames.Culprits()
	}
	if errors.Is(err, bootstrap.ErrTimeout) && !errors.Is(err, context.Canceled) {
		c.class = "timeout"
	}
	return c
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

// Culprits is for bootstrap, which tells the others.
func (c *cause) Culprits() []int { return c.ranks }

// wire is what ranks tell each other, and log, with the culprits: "mismatch; words", or the words alone where these cannot be taken for more.
type wire struct{ *cause }

func (w wire) Error() string {
	if alone := parseCause(bootstrap.Notice{Reason: w.text}); w.class == "" && alone.class == "" && alone.text == w.text {
		return w.text
	}
	return w.class + "; " + w.text
}

// Unwrap returns the class.
func (c *cause) Unwrap() error { return classes[c.class] }

// parseCause reads what another rank's session was aborted with.
func parseCause(n bootstrap.Notice) *cause {
	c := &cause{ranks: n.Ranks, text: n.Reason, from: n.From}
	class, text, ok := strings.Cut(n.Reason, "; ")
	if ok && (class == "" || classes[class] != nil) {
		c.class, c.text = class, text
	} else if strings.Contains(n.Reason, context.Canceled.Error()) {
		c.class = "canceled"
	}
	return c
}
