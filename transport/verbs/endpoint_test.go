//go:build linux && cgo

package verbs

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestEnlistedMeanwhile: a connection for which something comes while Progress looks at one that has ended is looked after, too. Were it left
// out of the list it would be for good, since it says that it is there.
func TestEnlistedMeanwhile(t *testing.T) {
	dying, other := replayLink(1), replayLink(1)
	e := dying.e
	e.event, e.epoll = -1, -1
	e.config.Log = slog.New(slog.DiscardHandler)
	other.e, other.link.e = e, e
	e.conns, other.place = []*conn{dying, other}, 1
	gone := errors.New("gone")
	dying.link.dead.Store(&gone)
	dying.link.queues = nil
	dying.enlist()
	e.post(func() error { // the second time that the jobs are done is in the middle of that look, as when a frame comes then
		e.post(func() error { other.enlist(); return nil })
		return nil
	})
	e.Progress()
	require.ErrorIs(t, dying.lost, gone)
	require.True(t, other.busy)
	require.True(t, slices.Contains(e.busy, other))
	e.Progress()
	require.False(t, other.busy, "it was looked after")
	require.Empty(t, e.busy)
}

// TestProgressAllocatesNothing, however many connections wait, nor does any of them come to be in the list twice.
func TestProgressAllocatesNothing(t *testing.T) {
	e := &endpoint{options: transport.Options{Streams: 1}}
	for range 3 {
		c := newConn(e, transport.Key{Peer: 1}, address{})
		c.closed = true // and waits for a link
		c.enlist()
	}
	e.Progress()
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Progress() }))
	require.Len(t, e.busy, 3)
}
