package collective

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireCovered checks that pieces of rounds are exactly the block, in order, aligned.
func requireCovered(t *testing.T, l Layout) {
	t.Helper()
	next := 0
	for j := range l.Rounds() {
		at, n := l.Range(j)
		require.Equal(t, next, at, "%+v, round %d", l, j)
		require.True(t, n >= 0 && n <= l.Round, "%+v, round %d: %d elements", l, j, n)
		longest := l.PieceMax(n)
		sum := 0
		for p := range l.Pieces {
			from, size := l.Piece(j, p)
			require.Equal(t, at+sum, from, "%+v, round %d, piece %d", l, j, p)
			require.True(t, size >= 0 && size <= longest, "%+v, round %d, piece %d: %d of at most %d elements", l, j, p, size, longest)
			if size > 0 {
				require.Zero(t, (from-at)*l.Elem%Align, "%+v, round %d, piece %d begins at %d", l, j, p, from)
			}
			if p == 0 {
				require.Equal(t, longest, size, "%+v, round %d: the first piece is the longest", l, j)
			}
			sum += size
		}
		require.Equal(t, n, sum, "%+v, round %d", l, j)
		next += n
	}
	require.Equal(t, l.Count, next, "%+v", l)
}

func TestLayoutCoversEveryElementOnce(t *testing.T) {
	for _, elem := range []int{1, 2, 3, 4, 8, 12, 16, 64, 100} {
		for _, count := range []int{0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 1000, 4099} {
			for _, round := range []int{1, 3, 16, 64, 100, 5000} {
				for _, pieces := range []int{1, 2, 3, 5, 7, 8, 64} {
					l := Layout{Count: count, Elem: elem, Round: round, Pieces: pieces}
					require.NoError(t, l.Check(pieces))
					if l.Rounds() <= 200 {
						requireCovered(t, l)
					}
				}
			}
		}
	}
}

func TestLayoutOfRandomMessages(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		l := Layout{Count: rnd.IntN(1 << rnd.IntN(30)), Elem: 1 << rnd.IntN(5), Pieces: 1 + rnd.IntN(40)}
		l.Round = 1 + l.Count/(1+rnd.IntN(20))
		requireCovered(t, l)
	}
}

// TestUC83_LayoutOfEverySize: 4 B…256 MiB, chunk sizes, ranks 2…8: no size is cut wrongly.
func TestUC83_LayoutOfEverySize(t *testing.T) {
	for bytes := 4; bytes <= 256<<20; bytes *= 2 {
		for _, count := range []int{bytes/4 - 1, bytes / 4, bytes/4 + 1} {
			for _, round := range []int{64 << 10, 480 << 10, 1 << 20, 4 << 20} {
				for ranks := 2; ranks <= 8; ranks++ {
					requireCovered(t, Layout{Count: count, Elem: 4, Round: round / 4, Pieces: ranks})
				}
			}
		}
	}
}

func TestLayoutOfHugeMessages(t *testing.T) {
	most := math.MaxInt/2 + 1 // 2^62
	for _, l := range []Layout{
		{Count: most - 1, Elem: 1, Round: most / 2, Pieces: 7},
		{Count: most, Elem: 1, Round: math.MaxInt, Pieces: 1<<10 - 1},
		{Count: most, Elem: 1, Round: most / 4, Pieces: 64},
		{Count: most / 8, Elem: 8, Round: most/8 - 1, Pieces: 3},
	} {
		require.NoError(t, l.Check(1), "%+v", l)
		requireCovered(t, l)
	}
}

func TestLayoutCheckNamesTheField(t *testing.T) {
	ok := Layout{Count: 10, Elem: 4, Round: 10, Pieces: 2}
	require.NoError(t, ok.Check(3))
	for want, l := range map[string]Layout{
		"-1 elements":          {Count: -1, Elem: 4, Round: 10, Pieces: 2},
		"elements of 0 bytes":  {Count: 1, Elem: 0, Round: 10, Pieces: 2},
		"rounds of 0 elements": {Count: 1, Elem: 4, Round: 0, Pieces: 2},
		"0 pieces":             {Count: 1, Elem: 4, Round: 10, Pieces: 0},
		"3 blocks of 1":        {Count: math.MaxInt/8 + 1, Elem: 4, Round: 10, Pieces: 2},
	} {
		require.ErrorContains(t, l.Check(3), want)
	}
	require.ErrorContains(t, Layout{Count: math.MaxInt, Elem: 1, Round: 1, Pieces: 1}.Check(1), "more than")
}
