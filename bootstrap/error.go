package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors to decide by. Each comes wrapped in one of the types below, which carry the facts.
var (
	ErrClosed  = errors.New("the session is closed")            // by this rank, or by a peer that the call needs
	ErrAborted = errors.New("the session is aborted")           // [*AbortedError]
	ErrDead    = errors.New("a rank is dead")                   // [*PeerError]
	ErrRefused = errors.New("the root refused this world")      // [*RefusedError]
	ErrTimeout = errors.New("ranks are missing at the timeout") // [*MissingError], [*LateError]

	ErrNoAnswer = errors.New("the rank does not answer questions") // it has not called [Session.Answer], or cannot now
)

// MissingError says which ranks had not joined when the time to join was over. It is the context's error, and
// [ErrTimeout] unless the context was cancelled.
type MissingError struct {
	Root    string // address, or addresses that were tried
	World   int
	Joined  int   // ranks that were seen, of World; 0 with Missing nil when the root was never reached
	Missing []int // ranks never seen
	Left    []int // ranks that joined and went away again
	Elapsed time.Duration
	Err     error  // the last failure on the way to the root, or nil
	others  string // whom the root turned away
	cause   error  // the context's error
}

func (e *MissingError) Error() string {
	var b strings.Builder
	end := "timed out"
	if errors.Is(e.cause, context.Canceled) {
		end = "was cancelled"
	}
	fmt.Fprintf(&b, "bootstrap with the root at %s %s after %v: ", e.Root, end, e.Elapsed.Round(time.Millisecond))
	if e.Joined == 0 {
		b.WriteString("the root was not reached; is rank 0 up, and does a firewall let the port through?")
	} else {
		b.WriteString(progressText(e.World, e.Joined, e.Missing, e.Left))
	}
	b.WriteString(e.others)
	if e.Err != nil {
		fmt.Fprintf(&b, " (last error: %v)", e.Err)
	}
	return b.String()
}

// Unwrap returns ErrTimeout, the context's error and the last failure.
func (e *MissingError) Unwrap() []error {
	return nonNil(timeoutUnlessCancelled(e.cause), e.cause, e.Err)
}

// Culprits returns the ranks that are missing, or else those that left again: they may only have given up before us.
func (e *MissingError) Culprits() []int {
	if len(e.Missing) > 0 {
		return e.Missing
	}
	return e.Left
}

func progressText(world, joined int, missing, left []int) string {
	s := fmt.Sprintf("%d of %d joined", joined, world)
	if len(missing) > 0 {
		s += ", missing: " + formatRanks(missing)
	}
	if len(left) > 0 {
		s += ", joined and left again: " + formatRanks(left)
	}
	return s
}

// Refusal is why a root refused a world.
type Refusal uint8

// The refusals. All ranks that had joined get the same one; Used goes to the latecomer alone.
const (
	RefusedDuplicate   Refusal = iota + 1 // two processes claim one rank
	RefusedWorld                          // world sizes differ
	RefusedVersion                        // protocol or release differ
	RefusedRank                           // a rank outside the world
	RefusedUsed                           // the id already made a world
	RefusedUnreachable                    // a rank listens at an address that others cannot reach
	RefusedMissing                        // ranks are missing at the root's deadline
	RefusedClosed                         // the root was closed, or rank 0, who serves it, failed
	RefusedDead                           // ranks that had joined are dead
	RefusedAborted                        // a rank gave up after all had joined
)

// RefusedError is a root's refusal. It is [ErrRefused]; with Code RefusedMissing also [ErrTimeout], with RefusedDead [ErrDead].
type RefusedError struct {
	Code  Refusal
	Root  string
	Ranks []int  // the culprits, where they are known
	Text  string // names ranks, values and addresses
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the root at %s refused this world: %s", e.Root, e.Text)
}

// Culprits returns Ranks.
func (e *RefusedError) Culprits() []int { return e.Ranks }

// Unwrap returns the sentinels.
func (e *RefusedError) Unwrap() []error {
	switch e.Code {
	case RefusedMissing:
		return []error{ErrRefused, ErrTimeout, context.DeadlineExceeded}
	case RefusedDead:
		return []error{ErrRefused, ErrDead}
	}
	return []error{ErrRefused}
}

// AbortedError is returned by every call on an aborted session. It is [ErrAborted].
type AbortedError struct {
	Op     string
	Notice Notice
}

func (e *AbortedError) Error() string {
	return fmt.Sprintf("bootstrap %s: aborted by rank %d: %s", e.Op, e.Notice.From, e.Notice.Reason)
}

// Culprits returns whom the reason blames.
func (e *AbortedError) Culprits() []int { return e.Notice.Ranks }

// Unwrap returns ErrAborted.
func (e *AbortedError) Unwrap() error { return ErrAborted }

// PeerError is returned by a call that needs a rank which is gone. It is [ErrDead], or [ErrClosed] when that rank closed its
// session in good order.
type PeerError struct {
	Op     string
	Rank   int
	Addr   string
	Status Status
	Reason string // what was seen, and by whom
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("bootstrap %s: rank %d (%s) is %s: %s", e.Op, e.Rank, e.Addr, e.Status, e.Reason)
}

// Culprits returns the rank.
func (e *PeerError) Culprits() []int { return []int{e.Rank} }

// Unwrap returns ErrDead or ErrClosed.
func (e *PeerError) Unwrap() error {
	if e.Status == Closed {
		return ErrClosed
	}
	return ErrDead
}

// LateError is returned when a call's context ended while ranks were still to come. It is the context's error, and
// [ErrTimeout] unless the context was cancelled.
type LateError struct {
	Op      string
	Seq     uint64 // of the collective on this session, from 1; 0 for point-to-point
	Missing []int  // ranks from which nothing had arrived
	What    string // what they had not done, if more than that is known
	Elapsed time.Duration
	Err     error // the context's error
	Last    error // the last failure on the way to them, or nil
}

func (e *LateError) Error() string {
	s := "bootstrap " + e.Op
	if e.Seq > 0 {
		s += fmt.Sprintf(" %d", e.Seq)
	}
	what := e.What
	if what == "" {
		what = "nothing from ranks " + formatRanks(e.Missing)
	}
	s = fmt.Sprintf("%s: %s after %v: %v", s, what, e.Elapsed.Round(time.Millisecond), e.Err)
	if e.Last != nil {
		s += fmt.Sprintf(" (last error: %v)", e.Last)
	}
	return s
}

// Culprits returns the ranks that are missing, unless this rank's own context was cancelled.
func (e *LateError) Culprits() []int {
	if errors.Is(e.Err, context.Canceled) {
		return nil
	}
	return e.Missing
}

// Unwrap returns ErrTimeout, the context's error and the last failure.
func (e *LateError) Unwrap() []error { return nonNil(timeoutUnlessCancelled(e.Err), e.Err, e.Last) }

// culprits are the ranks that an error blames.
func culprits(err error) []int {
	var blames interface{ Culprits() []int }
	if errors.As(err, &blames) {
		return blames.Culprits()
	}
	return nil
}

func timeoutUnlessCancelled(cause error) error {
	if errors.Is(cause, context.Canceled) {
		return nil
	}
	return ErrTimeout
}

func nonNil(errs ...error) []error {
	return slices.DeleteFunc(errs, func(e error) bool { return e == nil })
}

// maxRuns bounds how many runs of ranks an error lists.
const maxRuns = 16

// formatRanks writes sorted ranks as "0-3, 7, 9-11", and how many more there are when the list gets long.
func formatRanks(ranks []int) string {
	var runs []string
	i := 0
	for i < len(ranks) && len(runs) < maxRuns {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			runs = append(runs, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		case j == i+1:
			runs = append(runs, fmt.Sprint(ranks[i]), fmt.Sprint(ranks[j]))
		default:
			runs = append(runs, fmt.Sprint(ranks[i]))
		}
		i = j + 1
	}
	s := strings.Join(runs, ", ")
	if more := len(ranks) - i; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}
