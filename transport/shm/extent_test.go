package shm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExtents compares the set with an array of booleans.
func TestExtents(t *testing.T) {
	const size = 200
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var s extents
		var have [size]bool
		type piece struct{ lo, n int64 }
		var taken []piece
		s.add(0, size)
		for i := range have {
			have[i] = true
		}
		for range 200 {
			if len(taken) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(taken))
				p := taken[i]
				taken = append(taken[:i], taken[i+1:]...)
				s.add(p.lo, p.lo+p.n)
				for k := p.lo; k < p.lo+p.n; k++ {
					require.False(t, have[k])
					have[k] = true
				}
			} else {
				n, align := 1+rng.Int64N(40), int64(1)<<rng.IntN(4)
				lo, ok := s.take(n, align)
				want, room := firstFit(have[:], n, align)
				require.Equal(t, room, ok, "seed %d", seed)
				if ok {
					require.Equal(t, want, lo)
					taken = append(taken, piece{lo, n})
					for k := lo; k < lo+n; k++ {
						require.True(t, have[k])
						have[k] = false
					}
				}
			}
			for i, e := range s {
				require.Less(t, e.lo, e.hi)
				require.True(t, i == 0 || s[i-1].hi < e.lo, "extents touch")
			}
			lo := rng.Int64N(size)
			hi := lo + 1 + rng.Int64N(size-lo)
			all, any := true, false
			for k := lo; k < hi; k++ {
				all, any = all && have[k], any || have[k]
			}
			require.Equal(t, any, s.touch(lo, hi))
			e, ok := s.around(lo, hi)
			require.Equal(t, all, ok)
			require.True(t, !ok || e.lo <= lo && hi <= e.hi)
		}
	}
}

// TestExtentsOverlap adds what is partly there already.
func TestExtentsOverlap(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var s extents
		var have [100]bool
		for range 20 {
			lo := rng.Int64N(100)
			hi := lo + 1 + rng.Int64N(100-lo)
			s.add(lo, hi)
			for k := lo; k < hi; k++ {
				have[k] = true
			}
		}
		var got [100]bool
		for i, e := range s {
			require.True(t, i == 0 || s[i-1].hi < e.lo)
			for k := e.lo; k < e.hi; k++ {
				got[k] = true
			}
		}
		require.Equal(t, have, got)
	}
}

func firstFit(have []bool, n, align int64) (int64, bool) {
	for lo := int64(0); lo+n <= int64(len(have)); lo += align {
		fits := true
		for k := lo; k < lo+n; k++ {
			fits = fits && have[k]
		}
		if fits {
			return lo, true
		}
	}
	return 0, false
}
