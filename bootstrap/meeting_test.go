package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// loss is one rank's fault while the ranks meet.
type loss struct {
	seed   uint64
	n      int
	victim int
	kind   faultKind // kill, cut or freeze
	apart  bool      // the root is on a host of its own; else rank 0 serves it
	late   int       // a rank that comes much later, or n
	at     time.Duration
}

func newLoss(seed uint64) loss {
	rng := rand.New(rand.NewPCG(seed, 4))
	l := loss{seed: seed, n: 2 + rng.IntN(7), kind: faultKind(rng.IntN(3)), apart: rng.IntN(2) == 0}
	l.victim, l.late = rng.IntN(l.n), l.n
	l.at = time.Duration(rng.IntN(12_000)) * time.Microsecond
	if rng.IntN(3) == 0 {
		l.late = rng.IntN(l.n)
	}
	return l
}

// run has the ranks meet, and returns what is wrong with what they get, and how many joined, were told, and waited.
func (l loss) run(t *testing.T) (wrong []string, joined, told, waited int) {
	const timeout = 30 * time.Second
	id, err := bootstrap.DeriveID(host(0)+":29500", "a secret for losses")
	require.NoError(t, err)
	n := bootstraptest.New()
	rng := rand.New(rand.NewPCG(l.seed, 5))
	var mu sync.Mutex
	n.Delay(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(1+rng.IntN(500)) * time.Microsecond
	})
	if l.apart {
		root, err := bootstrap.ListenRoot(bg, bootstrap.RootConfig{Address: host(99) + ":0", Timeout: timeout, Network: n.Host(host(99))})
		require.NoError(t, err)
		defer root.Close()
		id = root.ID()
	}
	start := time.Now()
	bound := 1500 * time.Millisecond
	if l.kind != kill {
		bound += bootstrap.DefaultSilentAfter
	}
	time.AfterFunc(l.at, func() {
		switch l.kind {
		case kill:
			n.Kill(host(l.victim))
		case cut:
			n.Cut(host(l.victim))
		case freeze:
			n.Freeze(host(l.victim))
		}
	})
	sessions := make([]bootstrap.Session, l.n)
	each(l.n, func(r int) {
		c := config(n, id, r, l.n)
		c.Serve, c.Timeout = !l.apart, timeout
		if r == l.late {
			time.Sleep(3 * time.Second)
			c.Timeout -= 3 * time.Second
		}
		s, err := bootstrap.Join(bg, c)
		took := time.Since(start) - l.at
		sessions[r] = s
		if r == l.victim {
			return
		}
		var dead *bootstrap.PeerError
		var refused *bootstrap.RefusedError
		var missing *bootstrap.MissingError
		blamed := -1
		var first bootstrap.Fate
		if err == nil {
			first = <-s.Fates()
			took = time.Since(start) - l.at
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			if first.Status == bootstrap.Dead {
				blamed = first.Rank
			}
			joined++
		case errors.As(err, &missing):
			waited++
			if len(missing.Missing) == 1 && missing.Left == nil {
				blamed = missing.Missing[0]
			}
			// Whom nobody has seen is waited for to the end; and so is the root.
			took = 0
			if missing.Joined == 0 && !l.apart && (l.victim == 0 || r == l.late) {
				blamed = l.victim // there is no root, or no more
			}
		case errors.As(err, &refused) && refused.Code == bootstrap.RefusedMissing:
			waited++
			took = 0
			if len(refused.Ranks) == 1 && !strings.Contains(err.Error(), "left again") {
				blamed = refused.Ranks[0]
			}
		case errors.As(err, &refused) && refused.Code == bootstrap.RefusedDead:
			told++
			if len(refused.Ranks) == 1 {
				blamed = refused.Ranks[0]
			}
		case errors.As(err, &dead) && dead.Status == bootstrap.Dead:
			told++
			blamed = dead.Rank
		}
		if r == l.late {
			took = 0 // it may have come long after
		}
		if blamed != l.victim || took > bound {
			wrong = append(wrong, fmt.Sprintf("rank %d, %v after the fault: %v", r, took, err))
		}
	})
	if l.kind == cut {
		n.Heal(host(l.victim))
	}
	if l.kind == freeze {
		n.Thaw(host(l.victim))
	}
	each(l.n, func(r int) {
		if sessions[r] != nil {
			sessions[r].Close()
		}
	})
	return wrong, joined, told, waited
}

// TestUC04_LossWhileMeeting: a rank that is killed, cut off or frozen at any moment after it has joined the root is named, alone, by all
// others, and soon.
func TestUC04_LossWhileMeeting(t *testing.T) {
	from, many := uint64(1), 1500
	if testing.Short() {
		many = 150
	}
	if text := os.Getenv("GCCL_SEED"); text != "" {
		from, _ = strconv.ParseUint(text, 10, 64)
		many = 1
	}
	joined, told, waited := 0, 0, 0
	for seed := from; seed < from+uint64(many) && !t.Failed(); seed++ {
		l := newLoss(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrong, a, b, c := l.run(t)
				joined, told, waited = joined+a, told+b, waited+c
				for _, w := range wrong {
					t.Errorf("%+v: %s", l, w)
				}
			})
		})
	}
	t.Logf("of the survivors %d had joined, %d were told in Join, %d waited for one that nobody had seen", joined, told, waited)
	if many >= 1000 && !t.Failed() {
		require.Greater(t, told, joined/10)
	}
}

// A root that is closed at any moment either refuses the world or leaves the ranks to themselves, which then meet.
func TestRootClosedWhileRanksMeet(t *testing.T) {
	met, refused := 0, 0
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 6))
			n := bootstraptest.New()
			var mu sync.Mutex
			n.Delay(func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(1+rng.IntN(500)) * time.Microsecond
			})
			root, err := bootstrap.ListenRoot(bg, bootstrap.RootConfig{Address: host(99) + ":0", Network: n.Host(host(99))})
			require.NoError(t, err)
			time.AfterFunc(time.Duration(rng.IntN(8000))*time.Microsecond, func() { root.Close() })
			sessions, errs := make([]bootstrap.Session, 4), make([]error, 4)
			each(4, func(r int) {
				c := config(n, root.ID(), r, 4)
				c.Serve, c.Timeout = false, 5*time.Second
				sessions[r], errs[r] = bootstrap.Join(bg, c)
			})
			good := 0
			for r, err := range errs {
				if err == nil {
					good++
					continue
				}
				assert.True(t, errors.Is(err, bootstrap.ErrRefused) || errors.Is(err, bootstrap.ErrTimeout), "seed %d, rank %d: %v", seed, r, err)
			}
			if good > 0 {
				assert.Equal(t, 4, good, "seed %d: %v", seed, errs)
				met++
				closeAll(sessions)
			} else {
				refused++
			}
			root.Close()
			assert.Zero(t, n.Conns())
		})
	}
	require.Greater(t, met, 10)
	require.Greater(t, refused, 10)
}

// A rank that gives up at any moment around that at which the last one comes is nowhere taken for dead: the others are told that it gave up,
// or wait for it to come again.
func TestGiveUpAtAnyMoment(t *testing.T) {
	const n, timeout = 3, 10 * time.Second
	met, told, waited := 0, 0, 0
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			net := bootstraptest.New()
			var mu sync.Mutex
			net.Delay(func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(1+rng.IntN(500)) * time.Microsecond
			})
			root, err := bootstrap.ListenRoot(bg, bootstrap.RootConfig{Address: host(99) + ":0", Network: net.Host(host(99)), Timeout: timeout})
			require.NoError(t, err)
			at := time.Second + time.Duration(rng.IntN(5000))*time.Microsecond
			each(n, func(r int) {
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				switch r {
				case 1:
					defer time.AfterFunc(at, cancel).Stop()
				case 2:
					time.Sleep(time.Second)
				}
				c := config(net, root.ID(), r, n)
				c.Serve, c.Timeout = false, timeout
				s, err := bootstrap.Join(ctx, c)
				if s != nil {
					defer s.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case r == 1:
				case err == nil:
					met++
				case errors.Is(err, bootstrap.ErrAborted):
					told++
				case errors.Is(err, bootstrap.ErrTimeout):
					waited++
				default:
					t.Errorf("seed %d, rank %d: %v", seed, r, err)
				}
			})
			root.Close()
			assert.Zero(t, net.Conns())
		})
	}
	t.Logf("of those who stayed %d met, %d were told, %d waited", met, told, waited)
	require.Greater(t, min(met, told, waited), 20)
}
