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
}

// classes are what errors.Is can tell on all ranks.
var classes = map[string]error{
	"mismatch": ErrMismatch, "timeout": ErrTimeout, "peer gone": transport.ErrGone, "corrupt": transport.ErrCorrupt,
	"out of sequence": transport.ErrSequence, "no memory": transport.ErrSpace, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// causeOf puts what went wrong here into that form.
func causeOf(err error) *cause {
	c := &cause{text: err.Error(), from: -1}
	for class, sentinel := range classes {
		if errors.Is(err, sentinel) {
			c.class = class
		}
	}
	var peer *transport.PeerError
	var late *lateError
	switch {
	case errors.As(err, &peer):
		c.ranks = []int{int(peer.Key.Peer)}
	case errors.As(err, &late):
		c.ranks = late.ranks
	}
	return c
}

// Error is what goes over the wire, too: "mismatch; ranks [2]; words".
func (c *cause) Error() string {
	if c.from >= 0 {
		return fmt.Sprintf("rank %d gave up: %s", c.from, c.text)
	}
	return fmt.Sprintf("%s; ranks %v; %s", c.class, c.ranks, c.text)
}

// Unwrap returns the class.
func (c *cause) Unwrap() error { return classes[c.class] }

// parseCause reads what another rank's session was aborted with.
func parseCause(n bootstrap.Notice) *cause {
	c := &cause{text: n.Reason, from: n.From}
	class, rest, ok1 := strings.Cut(n.Reason, "; ranks [")
	ranks, text, ok2 := strings.Cut(rest, "]; ")
	if !ok1 || !ok2 || class != "" && classes[class] == nil {
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

// lateError says that a call waited too long.
type lateError struct {
	what  string
	ranks []int
}

func (e *lateError) Error() string { return e.what }
func (e *lateError) Unwrap() error { return ErrTimeout }
