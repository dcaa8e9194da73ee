package bootstrap

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who calls for a session that never comes to be is let go of when no caller waits any more, and when the hub is shut, whether another calls
// or not: most have hung up by then, and only their descriptors are left.
func TestCallersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hub{log: slog.New(slog.DiscardHandler), ln: noListener{}, sessions: map[uint64]*session{}, over: map[uint64]*epitaph{}}
		h.ctx, h.cancel = context.WithCancel(context.Background())
		ended := make([]time.Duration, 3)
		start := time.Now()
		for k := range ended {
			theirs, ours := net.Pipe()
			go func() {
				theirs.Write(hello{session: uint64(k)}.frame())
				_, err := theirs.Read(make([]byte, 1))
				assert.ErrorIs(t, err, io.EOF)
				ended[k] = time.Since(start)
			}()
			h.greet(ours)
			time.Sleep(time.Minute)
		}
		time.Sleep(maxWait - 2*time.Minute + 30*time.Second)
		h.shut()
		synctest.Wait()
		require.Equal(t, []time.Duration{maxWait, maxWait + time.Minute, maxWait + 90*time.Second}, ended)
	})
}

// noListener only closes.
type noListener struct{ net.Listener }

func (noListener) Close() error { return nil }
