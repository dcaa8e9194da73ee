package bootstrap

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rank that gives up waiting for what a closed one had sent ends its own collective alone: another, to which it is still on its way, and which hears
// the first one's news, goes on waiting.
func TestGivingUpIsNotNews(t *testing.T) {
	var ranks [2]*session
	for i := range ranks {
		s := newSession(i, 7, make([]netip.AddrPort, 3), nil, &Config{Log: slog.New(slog.DiscardHandler), Heartbeat: time.Second, SilentAfter: 4 * time.Second})
		s.formed = true
		s.rankClosed(2, farewell{last: [2]uint64{5, unknownLast}[i]}, nil)
		s.gathers.called, s.gathers.completed = 5, 4
		ranks[i] = s
	}
	for _, s := range ranks {
		require.NoError(t, s.collectiveErrorLocked("AllGather", 5))
	}
	ranks[0].settleLocked(time.Hour)
	require.ErrorIs(t, ranks[0].collectiveErrorLocked("AllGather", 5), ErrClosed)
	require.ErrorContains(t, ranks[0].collectiveErrorLocked("AllGather", 5), "did not arrive within")

	rank, w, err := parseClosed(closedFrame(2, ranks[0].fate[2].farewell)[frameHeader:], 3)
	require.NoError(t, err)
	ranks[1].rankClosed(rank, w, nil)
	require.NoError(t, ranks[1].collectiveErrorLocked("AllGather", 5))
	require.ErrorIs(t, ranks[1].collectiveErrorLocked("AllGather", 6), ErrClosed)
	ranks[1].settleLocked(time.Hour)
	require.ErrorIs(t, ranks[1].collectiveErrorLocked("AllGather", 5), ErrClosed)
}
