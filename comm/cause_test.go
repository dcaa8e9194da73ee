package comm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
)

// TestPrecedence: an error that is several has the same class on all ranks and each time, and no class is forgotten.
func TestPrecedence(t *testing.T) {
	require.Len(t, precedence, len(classes))
	for class := range classes {
		require.True(t, slices.Contains(precedence, class), class)
	}
	for range 100 {
		require.Equal(t, "no memory", causeOf(fmt.Errorf("%w: %w", transport.ErrGone, transport.ErrSpace)).class)
		require.Equal(t, "mismatch", causeOf(fmt.Errorf("%w: %w", transport.ErrGone, transport.ErrMismatch)).class)
	}
}

// TestReasonToLog: the reason that ranks tell each other is logged as it is, so it holds a class only where it needs one.
func TestReasonToLog(t *testing.T) {
	for _, c := range []struct {
		cause
		tells string
	}{
		{cause{text: "verbs: no device"}, "verbs: no device"},
		{cause{text: "a; b"}, "a; b"},
		{cause{class: "mismatch", text: "words"}, "mismatch; words"},
		{cause{text: "timeout; says a user"}, "; timeout; says a user"},
		{cause{text: "context canceled, says a user"}, "; context canceled, says a user"},
	} {
		require.Equal(t, c.tells, wire{&c.cause}.Error())
		again := parseCause(bootstrap.Notice{Reason: c.tells})
		require.Equal(t, []string{c.class, c.text}, []string{again.class, again.text})
	}
}

// TestOwnFailure: what our own end of a connection lacks is not the peer's fault.
func TestOwnFailure(t *testing.T) {
	k := transport.Key{Self: 2, Peer: 5}
	lacks := &transport.OwnError{Rank: 2, Err: fmt.Errorf("a queue: %w", transport.ErrSpace)}
	c := causeOf(&transport.PeerError{Transport: "verbs", Key: k, Op: "send", Err: lacks})
	require.Equal(t, "no memory", c.class)
	require.Equal(t, []int{2}, culprits(c))
	c = causeOf(&transport.PeerError{Transport: "verbs", Key: k, Op: "send", Err: transport.ErrGone})
	require.Equal(t, []int{5}, culprits(c))
}
