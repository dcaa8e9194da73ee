package bootstrap

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// However many sessions end, and with however much to say, a hub keeps the last ones within its bounds.
func TestEpitaphsAreBounded(t *testing.T) {
	other, _ := still()
	h := &hub{sessions: map[uint64]*session{0: other}, over: map[uint64]*epitaph{}}
	end := func(id uint64, reason string) {
		s, _ := still()
		s.id, s.aborted = id, &Notice{From: 1, Reason: reason}
		for _, r := range []int{0, 3, 4} {
			s.fate[r] = fate{status: Dead, by: 1, reason: reason}
		}
		h.sessions[id] = s
		h.leave(s, s.epitaphLocked(farewell{last: 9}))
	}
	check := func(last uint64) {
		sum := 0
		for _, id := range h.overs {
			require.LessOrEqual(t, len(h.over[id].news), maxEpitaph)
			sum += h.over[id].bytes()
		}
		require.Equal(t, sum, h.kept)
		require.LessOrEqual(t, h.kept, maxEpitaphs)
		require.LessOrEqual(t, len(h.overs), maxOver)
		require.Len(t, h.over, len(h.overs))
		require.Contains(t, h.over, last)
	}
	for id := uint64(1); id <= 2*maxOver; id++ {
		end(id, "")
	}
	check(2 * maxOver)
	for id := uint64(1); id <= 2000; id++ {
		end(1<<20+id, strings.Repeat("x", maxReason))
	}
	check(1<<20 + 2000)
	require.Greater(t, h.kept, maxEpitaphs-2*maxEpitaph)

	s, _ := still() // what has no room does not cost what has: why it was aborted, and that it closed
	require.NoError(t, s.heardEpitaph(2, h.over[1<<20+2000].news))
	require.Equal(t, &Notice{From: 1, Reason: strings.Repeat("x", maxReason)}, s.aborted)
}

// Where one died and others closed because of that, all blame the dead one, whoever comes first in the ranks.
func TestTheDeadIsBlamedAndNotWhoClosed(t *testing.T) {
	s, _ := still()
	s.rankDied(4, fate{by: 1, sure: true, reason: "gone"}, nil)
	s.rankClosed(0, farewell{}, nil)
	var gone *PeerError
	require.True(t, errors.As(s.collectiveErrorLocked("AllGather", 1), &gone))
	require.Equal(t, 4, gone.Rank)
	require.Equal(t, Dead, gone.Status)
}
