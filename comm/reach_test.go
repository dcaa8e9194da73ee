package comm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
)

func TestReach(t *testing.T) {
	for _, r := range []reach{{1<<60 | 9, []byte{1, 0}, []byte("an address")}, {3, []byte{0, 1}, []byte{}}} {
		got, err := parseReach(r.bytes(), 2)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
}

// FuzzReach: what a rank tells of whom it reaches is an error or says so of each rank.
func FuzzReach(f *testing.F) {
	f.Add(make([]byte, 10), 3)
	f.Add(reach{7, []byte{1, 0}, []byte("an address")}.bytes(), 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		r, err := parseReach(b, size)
		if len(b) < size+8 {
			require.ErrorContains(t, err, "want at least")
			return
		}
		require.NoError(t, err)
		require.Len(t, r.shm, size)
		require.Equal(t, b, r.bytes())
	})
}

// stopped is an endpoint whose peer is there and answers only in time.
type stopped struct {
	transport.Endpoint
	answers time.Time
}

func (e *stopped) Reach(ctx context.Context, _ []byte) error {
	answer := time.NewTimer(time.Until(e.answers))
	defer answer.Stop()
	select {
	case <-answer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dying is a session whose rank 2 is found to be dead after a while.
type dying struct {
	bootstrap.Session
	dead time.Time
}

func (s *dying) Status(rank int) bootstrap.Status {
	if rank == 2 && time.Now().After(s.dead) {
		return bootstrap.Dead
	}
	return bootstrap.Alive
}

// TestReachWhileAlive: a peer that is slow is waited for, one that the session gives up not, and nobody for ever.
func TestReachWhileAlive(t *testing.T) {
	for _, test := range []struct {
		name          string
		answers, dead time.Duration
		least, most   time.Duration
		reached       bool
	}{
		{"at once", 0, time.Hour, 0, 0, true},
		{"slow", 5500 * time.Millisecond, time.Hour, 5500 * time.Millisecond, 5500 * time.Millisecond, true},
		{"dead", time.Hour, 4 * time.Second, 4 * time.Second, 5 * time.Second, false},
		{"silent", time.Hour, 2 * time.Hour, 10 * time.Second, 11 * time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := reachWhileAlive(context.Background(), &dying{dead: start.Add(test.dead)}, 2, &stopped{answers: start.Add(test.answers)}, nil)
				require.Equal(t, test.reached, err == nil, "%v", err)
				require.GreaterOrEqual(t, time.Since(start), test.least)
				require.LessOrEqual(t, time.Since(start), test.most)
			})
		})
	}
}
