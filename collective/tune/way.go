package tune

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/gccl-project/gccl/collective"
)

// way is the best choice for one algorithm.
type way struct {
	Choice
	ns      float64 // Cost, not rounded
	inOrder bool    // sums follow the order of the ranks
	fan     int     // most messages that a rank sends or receives in one step
}

// beats reports whether w is to be taken before v, which comes before it in the catalog.
func (w way) beats(v way) bool {
	return w.ns < v.ns || w.ns == v.ns && w.inOrder && !v.inOrder
}

// whyNot says why b is taken before w, which it is.
func (w way) whyNot(b way) string {
	switch {
	case w.ns > b.ns:
		return fmt.Sprintf("%.2f times as long", w.ns/b.ns)
	case w.inOrder == b.inOrder:
		return fmt.Sprintf("as fast, but after %s in the catalog", b.Algorithm)
	}
	return "as fast, but sums do not follow the order of the ranks"
}

// Long pieces are whole pages where memory is shared: such a piece can be made right where its receiver wants it.
const (
	pageBytes = 4 << 10
	pagesFrom = 256 << 10 // bytes of a block
)

// find returns the best rounds and lanes for an algorithm with that profile. The cost never falls as count grows:
// in a given number of rounds it cannot, and to be longer rules numbers of rounds out
// but never in.
func find(m Model, s collective.Shape, count, elem int, a collective.Algorithm, p profile) way {
	w := way{Choice: Choice{Algorithm: a.Name}, ns: math.Inf(1), inOrder: a.RankOrder, fan: p.fan}
	// Rounds begin on whole cache lines, if a message can hold one of such elements.
	grain := max(1, collective.Align>>bits.TrailingZeros(uint(elem)))
	if grain*elem > m.longest() {
		grain = 1
	}
	if m.Shared && pageBytes%elem == 0 && pageBytes <= m.longest() && count*elem >= pagesFrom {
		grain = p.pieces * pageBytes / elem
	}
	for k := 0; ; k++ {
		l := collective.Layout{Count: count, Elem: elem, Pieces: p.pieces, Round: 1}
		rounds := grid(k)
		if count > 0 {
			l.Round = min(count, ((count-1)/rounds/grain+1)*grain)
		}
		bytes := l.PieceMax(min(l.Round, count)) * elem
		if bytes <= m.longest() || s.Ranks == 1 {
			lanes := min(rounds, m.Lanes)
			if ns := p.estimate(bytes, rounds, lanes); ns < w.ns {
				w.ns, w.Cost, w.Round = ns, duration(ns), l.Round
				w.Lanes = min(p.lanes(bytes, lanes), l.Rounds())
			}
		}
		if l.Round <= grain || s.Ranks == 1 {
			return w
		}
	}
}

// grid returns the k-th number of rounds to try: 1, 2, 3, 4, 6, 8, 12, 16, …
func grid(k int) int {
	switch {
	case k == 0:
		return 1
	case k%2 == 1:
		return 2 << (k / 2)
	}
	return 3 << (k/2 - 1)
}

// duration rounds up, to the longest there is.
func duration(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(math.Ceil(ns))
}
