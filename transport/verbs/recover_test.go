//go:build linux && cgo

package verbs

import (
	"context"
	"log/slog"
	"syscall"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// orphan is replayLink, closed by its user: it is freed as soon as it is lost, in the middle of whatever its end is doing.
func orphan(queues int) *conn {
	c := replayLink(queues)
	c.e.ctx, c.e.event, c.e.epoll = context.Background(), -1, -1
	c.e.config.Log = slog.New(slog.DiscardHandler)
	c.e.conns, c.closed = []*conn{c}, true
	return c
}

// TestRecoverOfALostLink: where the last QP fails while the peer is told of others, or failed before, nothing more is said.
func TestRecoverOfALostLink(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			c := orphan(4)
			l := c.link
			for _, q := range l.queues[:3] {
				q.broken = true
			}
			l.live, l.broke = 1, true
			last := &puppet{post: syscall.EIO}
			if l.queues[3].qp = last; before {
				last.post = nil
				l.fail(transport.ErrGone)
			}
			c.hear()
			require.Equal(t, []bool{!before, false, false}, []bool{l.queues[0].told, l.queues[1].told, l.queues[2].told})
			require.False(t, c.ready())
			require.True(t, c.gone)
			if before {
				require.ErrorIs(t, c.lost, transport.ErrGone)
			} else {
				require.ErrorIs(t, c.lost, syscall.EIO)
			}
		})
	}
}

// TestSayOnALostLink: of more credits than are posted at once the first may be the last that is said.
func TestSayOnALostLink(t *testing.T) {
	c := orphan(1)
	l := c.link
	l.queues[0].qp = &puppet{post: syscall.EIO}
	l.lanes = nil
	for range 2 * batchMost {
		n := newLane(8)
		n.consumed, n.noticed.count = 1, 1
		l.lanes = append(l.lanes, n)
	}
	require.False(t, c.say(parkAsk))
	require.ErrorIs(t, c.lost, syscall.EIO)
	require.EqualValues(t, batchMost, l.queues[0].posted)
}
