package bootstrap_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// subLoss has some ranks of a world make a Sub, and one of them fail before or while they do. It returns what is wrong, and how many
// got the Sub or were told.
func subLoss(t *testing.T, seed uint64) (wrong []string, made, told int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	n := 2 + rng.IntN(7)
	members := rng.Perm(n)[:2+rng.IntN(n-1)]
	victim, kind := members[rng.IntN(len(members))], faultKind(rng.IntN(3))
	aborted, aborter := rng.IntN(3) == 0, rng.IntN(n) // the parent is, before
	at := time.Duration(rng.IntN(6000)-2000) * time.Microsecond
	net := bootstraptest.New()
	var mu sync.Mutex
	net.Delay(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(1+rng.IntN(500)) * time.Microsecond
	})
	id, err := bootstrap.DeriveID(host(0)+":29500", "a secret for subs")
	require.NoError(t, err)
	sessions := joinAll(t, net, id, n)
	if aborted {
		sessions[aborter].Abort(errors.New("enough"))
		time.Sleep(time.Second)
	}
	start := time.Now()
	bound := 1500 * time.Millisecond
	if kind != kill {
		bound += bootstrap.DefaultSilentAfter
	}
	strike := func() {
		switch kind {
		case kill:
			net.Kill(host(victim))
		case cut:
			net.Cut(host(victim))
		case freeze:
			net.Freeze(host(victim))
		}
	}
	begun := start
	if at < 0 {
		strike()
		begun = start.Add(-at)
	} else {
		time.AfterFunc(at, strike)
	}
	subs := make([]bootstrap.Session, n)
	each(len(members), func(i int) {
		r := members[i]
		time.Sleep(time.Until(begun))
		sub, err := sessions[r].Sub(bg, members)
		if r == victim {
			if err == nil {
				subs[r] = sub
			}
			return
		}
		blamed := -1
		var peer *bootstrap.PeerError
		var first bootstrap.Fate
		if err == nil {
			subs[r] = sub
			first = <-sub.Fates()
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			if first.Status == bootstrap.Dead {
				blamed = members[first.Rank]
			}
			made++
		case errors.As(err, &peer) && peer.Status == bootstrap.Dead:
			told++
			blamed = peer.Rank
		}
		if took := time.Since(start) - max(at, 0); blamed != victim || took > bound {
			wrong = append(wrong, fmt.Sprintf("%v of rank %d at %v in a Sub of %v of %d, aborted %v: rank %d after %v: %v", kind, victim, at, members, n, aborted, r, took, err))
		}
	})
	net.Heal(host(victim))
	net.Thaw(host(victim))
	closeAll(sessions)
	for _, sub := range slices.DeleteFunc(subs, func(s bootstrap.Session) bool { return s == nil }) {
		sub.Close()
	}
	return wrong, made, told
}

// TestUC04_LossInSub: a rank that is lost before it has come to a Sub or in it is named, alone, by its number in the session that Sub is called on.
func TestUC04_LossInSub(t *testing.T) {
	from, many := uint64(1), 1000
	if testing.Short() {
		many = 100
	}
	if text := os.Getenv("GCCL_SEED"); text != "" {
		from, _ = strconv.ParseUint(text, 10, 64)
		many = 1
	}
	made, told := 0, 0
	for seed := from; seed < from+uint64(many) && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrong, a, b := subLoss(t, seed)
				made, told = made+a, told+b
				for _, w := range wrong {
					t.Error(w)
				}
			})
		})
	}
	t.Logf("of the survivors %d had the Sub and %d were told", made, told)
}
