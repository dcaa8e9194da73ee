package bootstrap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// beats runs a pulse over one rank, which is heard at some times, in a process that is held up at some of its beats, and returns when
// the rank was found silent, or 0.
func silentAt(heard func(time.Duration) bool, late func(beat int) time.Duration, until time.Duration) time.Duration {
	p := pulse{every: DefaultHeartbeat, limit: DefaultSilentAfter}
	a := &awaited{}
	now := time.Duration(0)
	for beat := 0; now < until; beat++ {
		if heard(now) {
			a.heard = now - p.lag
		}
		silent, _, next := p.beat(now, []*awaited{a})
		if len(silent) > 0 {
			return now
		}
		now += next + late(beat)
	}
	return 0
}

func TestPulseFindsSilence(t *testing.T) {
	never := func(time.Duration) bool { return false }
	onTime := func(int) time.Duration { return 0 }
	at := silentAt(never, onTime, time.Minute)
	require.GreaterOrEqual(t, at, DefaultSilentAfter)
	require.LessOrEqual(t, at, DefaultSilentAfter+10*time.Millisecond)

	at = silentAt(func(now time.Duration) bool { return now <= 20*time.Second }, onTime, time.Minute)
	require.GreaterOrEqual(t, at, 24*time.Second)
	require.LessOrEqual(t, at, 25*time.Second+10*time.Millisecond)
	require.Zero(t, silentAt(func(time.Duration) bool { return true }, onTime, time.Hour))
}

// A process that was itself frozen for a minute, and so heard nothing, blames nobody as it wakes; nor does one that runs late at each
// beat blame others before they were silent for the limit of its own time.
func TestPulseSubtractsOwnLag(t *testing.T) {
	frozenAt4 := func(beat int) time.Duration {
		if beat == 4 {
			return time.Minute
		}
		return 0
	}
	quietWhileFrozen := func(now time.Duration) bool { return now < 3*time.Second || now > 62*time.Second+600*time.Millisecond }
	require.Zero(t, silentAt(quietWhileFrozen, frozenAt4, 10*time.Minute))

	never := func(time.Duration) bool { return false }
	at := silentAt(never, frozenAt4, 10*time.Minute)
	require.GreaterOrEqual(t, at, time.Minute+DefaultSilentAfter)
	require.LessOrEqual(t, at, time.Minute+DefaultSilentAfter+time.Second)

	slow := silentAt(never, func(int) time.Duration { return 250 * time.Millisecond }, 10*time.Minute)
	require.Greater(t, slow, DefaultSilentAfter+time.Second)
	require.Less(t, slow, 2*DefaultSilentAfter)
}

// What a reader noted before the lag became known must not lie in the future, which would be patience that nobody earned.
func TestPulseTakesLateNotesAsNow(t *testing.T) {
	p := pulse{every: time.Second, limit: 10 * time.Second, due: time.Second}
	a := &awaited{heard: 60 * time.Second} // noted right after the process woke
	silent, ask, next := p.beat(61*time.Second, []*awaited{a})
	require.Empty(t, silent)
	require.Empty(t, ask)
	require.Equal(t, time.Second, a.heard)
	require.Equal(t, time.Second, next)
	for now := 62 * time.Second; now < 71*time.Second; now += time.Second {
		silent, ask, _ = p.beat(now, []*awaited{a})
		require.Empty(t, silent)
		require.Len(t, ask, 1)
	}
	silent, _, _ = p.beat(71*time.Second, []*awaited{a})
	require.Len(t, silent, 1)
}
