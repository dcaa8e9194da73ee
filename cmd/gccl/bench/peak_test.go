package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowPeak is what peak promises, pair by pair.
func slowPeak(posted, done []time.Duration, all pace) pace {
	best := all
	for i := range posted {
		for j := i + linkWindow; j < len(done); j++ {
			if p := (pace{done[j] - posted[i], j - i + 1}); p.faster(best) {
				best = p
			}
		}
	}
	if best.took == 0 {
		return all
	}
	return best
}

// history is when so many messages were posted and completed, with no more than depth of them on their way, each of up to step nanoseconds, and
// now and then a pause, from an hour on: the products of times and numbers must not be too long for what holds them.
func history(r *rand.Rand, messages, depth, step, pause int) (posted, done []time.Duration) {
	now := time.Hour
	for len(done) < messages {
		if len(posted) < messages && len(posted)-len(done) < depth && (len(posted) == len(done) || r.IntN(2) == 0) {
			posted = append(posted, now)
		} else {
			for n := 1 + r.IntN(len(posted)-len(done)); n > 0; n-- {
				done = append(done, now) // several are often seen at once
			}
		}
		now += time.Duration(r.IntN(step + 1))
		if pause > 0 && r.IntN(40) == 0 {
			now += time.Duration(r.IntN(pause))
		}
	}
	return posted, done
}

// TestPeakIsThatOfAllPairs holds the walk along the hull to the plain definition, whatever the times.
func TestPeakIsThatOfAllPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 2000 {
		messages := 1 + r.IntN(400)
		posted, done := history(r, messages, 1+r.IntN(linkWindow), []int{0, 1, 3, 1000, 1e12}[r.IntN(5)], []int{0, 50, 1e6}[r.IntN(3)])
		all := pace{done[messages-1] - time.Hour + time.Duration(1+r.IntN(1000)), messages}
		want := slowPeak(posted, done, all)
		got, err := peak(t.Context(), posted, done, all)
		require.NoError(t, err)
		require.False(t, want.faster(got) || got.faster(want), "case %d: got %v, want %v\nposted %v\ndone %v", n, got, want, posted, done)
		require.False(t, math.IsInf(got.rate(8), 0))
	}
}

// TestPeakOfAMillion takes minutes where every pair is looked at.
func TestPeakOfAMillion(t *testing.T) {
	posted, done := history(rand.New(rand.NewPCG(3, 4)), 1e6, linkWindow, 1000, 1e6)
	all := pace{done[len(done)-1], len(done)}
	began := time.Now()
	best, err := peak(t.Context(), posted, done, all)
	require.NoError(t, err)
	require.True(t, best.faster(all))
	require.Less(t, time.Since(began), 20*time.Second)

	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	_, err = peak(ctx, posted, done, all)
	require.ErrorIs(t, err, enough)
}

// TestLinkEndsWithItsContext: messages that never have to be waited for are no reason to go on with them.
func TestLinkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	begun := 0
	x := &linkEnd{ctx: ctx, first: true}
	_, err := x.flow(1e6, 8, func() (bool, error) {
		if begun++; begun == 10 {
			cancel(enough)
		}
		return true, nil
	}, func() (uint64, error) { return uint64(begun), nil }, func() error { return nil })
	require.ErrorIs(t, err, enough)
	require.LessOrEqual(t, begun, linkLook+1)
}

// TestRatesAreNotOfWholeNanoseconds: a message of less than a nanosecond has a rate, and the columns of a line agree.
func TestRatesAreNotOfWholeNanoseconds(t *testing.T) {
	require.Equal(t, "1525.88", fmt.Sprintf("%.2f", pace{time.Second, 2e8}.rate(8)))
	require.InEpsilon(t, pace{time.Second, 1e9 - 1}.rate(8), pace{time.Second, 1e9 + 1}.rate(8), 1e-8)
	require.False(t, math.IsInf(pace{time.Second, 2e9}.rate(8), 0))
}

func TestLinkSaysWhatMemoryItLacks(t *testing.T) {
	require.NoError(t, Link{Iters: 1e6, Warmup: 100}.checkMemory(1<<30))
	require.ErrorContains(t, Link{Iters: 1<<31 - 1}.checkMemory(1<<30), "-n 2147483647 needs 96.0 GiB")
	require.ErrorContains(t, Link{Iters: 1, Warmup: 1<<31 - 1}.checkMemory(1<<30), "-w 2147483647 needs 96.0 GiB")
}
