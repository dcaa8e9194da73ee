package ibv

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLocal: whose failure each status is that there is, by chapter 11 of the InfiniBand specification ("completion return status").
func TestLocal(t *testing.T) {
	const peers, ours = false, true
	table := []struct{ send, receive bool }{
		{peers, peers}, // success
		{ours, peers},  // local length: longer than a port's messages, or than the receive
		{ours, ours},   // local QP operation
		{ours, ours},   // local EE context operation
		{ours, ours},   // local protection: what we posted is not registered
		{peers, peers}, // flushed, which says nothing of why
		{ours, ours},   // memory window bind
		{peers, peers}, // bad response
		{peers, peers}, // local access: a write with immediate of the peer's went where it may not
		{peers, peers}, // remote invalid request
		{peers, peers}, // remote access
		{peers, peers}, // remote operation
		{peers, peers}, // transport retries
		{peers, peers}, // receiver not ready
		{ours, ours},   // local RDD violation
		{peers, peers}, // remote invalid RD request
		{peers, peers}, // remote abort
		{ours, ours},   // invalid EE context number
		{ours, ours},   // invalid EE context state
		{ours, ours},   // fatal
		{peers, peers}, // response timeout
		{ours, ours},   // general
		{ours, ours},   // tag matching: an operation on our own list
		{peers, peers}, // tag matching rendezvous
	}
	require.Len(t, statuses, len(table))
	for i, want := range table {
		s := Status(i)
		require.Equal(t, want.send, s.Local(false), "a request's %v", s.Error())
		require.Equal(t, want.receive, s.Local(true), "a receive's %v", s.Error())
	}
	require.False(t, Status(len(table)).Local(false), "one that we do not know")
}
