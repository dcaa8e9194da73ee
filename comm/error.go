package comm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// What to decide on, with errors.Is.
var (
	// ErrUnsupported: gccl, or this machine, cannot do that.
	ErrUnsupported = errors.ErrUnsupported
	// ErrAborted: the communicator failed, here or on another rank, and can only be shrunk and closed; or it did not come to be.
	ErrAborted = errors.New("communicator aborted")
	// ErrMismatch: the ranks called different collectives, or the same with different arguments.
	ErrMismatch = transport.ErrMismatch
	// ErrClosed: the communicator was closed on this rank.
	ErrClosed = errors.New("communicator closed")
	// ErrTimeout: ranks were waited for too long.
	ErrTimeout = errors.New("timeout")
	// ErrArgument: the call makes no sense; nothing was sent, and the communicator is as before.
	ErrArgument = errors.New("bad argument")
	// ErrConfig: the configuration, a variable or a file that one of them names makes no sense, here or on another rank. Trying again does not help.
	ErrConfig = errors.New("bad configuration")
)

// Error is what befell a call. It wraps its cause, and ErrAborted if the communicator can not be used any more.
type Error struct {
	Comm    string        // the communicator: its id; none of one whose ranks have not met, which has no id yet
	Rank    int           // ours
	Op      string        // "init", "split", "shrink", "grow", or "failed" of Comm.Err: then there is no Call
	Call    Call          // what was asked for
	Seq     uint64        // number of the call: of collectives from 1, or of messages with that peer in that direction
	Ranks   []int         // the ranks that are to blame, if known: of ErrTimeout those that it waited for
	Peer    string        // where they are
	Elapsed time.Duration // since the call began, as far as it was waited for
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("comm")
	if e.Comm != "" {
		b.WriteString(" " + e.Comm)
	}
	fmt.Fprintf(&b, ": rank %d: ", e.Rank)
	if e.Op != "" {
		b.WriteString(e.Op)
	} else {
		fmt.Fprintf(&b, "%v, sequence %d", &e.Call, e.Seq)
	}
	if e.Elapsed > 0 {
		fmt.Fprintf(&b, ", after %v", e.Elapsed.Round(time.Millisecond))
	}
	if len(e.Ranks) > 0 {
		why := "because of"
		if errors.Is(e.Err, ErrTimeout) {
			why = "waiting for"
		}
		fmt.Fprintf(&b, ", %s ranks %v", why, e.Ranks)
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, " (%s)", e.Peer)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// initError is the error of a communicator that did not come to be.
func initError(cfg Config, name string, start time.Time, err error) error {
	c := causeOf(err)
	if e := classes[c.class]; e != nil && !errors.Is(err, e) {
		err = fmt.Errorf("%w: %w", err, e)
	}
	if c.class != "" && c.class != "configuration" || c.from >= 0 || len(c.ranks) > 0 {
		err = &aborted{err} // it is not about our own configuration or machine
	}
	return &Error{Comm: name, Rank: cfg.Rank, Op: "init", Ranks: culprits(err), Elapsed: time.Since(start), Err: err}
}

// aborted is an error that is ErrAborted, too.
type aborted struct{ cause error }

func (e *aborted) Error() string   { return e.cause.Error() }
func (e *aborted) Unwrap() []error { return []error{ErrAborted, e.cause} }

// misconfigured is an error that is ErrConfig, too.
type misconfigured struct{ cause error }

func (e *misconfigured) Error() string   { return e.cause.Error() }
func (e *misconfigured) Unwrap() []error { return []error{ErrConfig, e.cause} }

// argument returns an error that is ErrArgument.
func argument(format string, args ...any) error {
	return fmt.Errorf("comm: %w: %w", ErrArgument, fmt.Errorf(format, args...))
}
