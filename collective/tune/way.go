package tune

import (
	"math/bits"

	"github.com/gccl-project/gccl/collective"
)

// way is the best way for one algorithm.
type way struct {
	algorithm string
	inOrder   bool // RankOrder
	fan       int  // most messages that a rank sends or receives at once
	round     int
	lanes     int
	ns        float64
	whyNot    string
}

// beats reports whether w is to be taken before v, which comes before it in the catalog.
func (w way) beats(v way) bool {
	return w.ns < v.ns || w.ns == v.ns && w.inOrder && !v.inOrder
}

// find returns the best rounds and lanes for an algorithm. What it takes never falls as count
// grows: in a given number of rounds it cannot, and of those, more elements
// can only rule some out.
func find(m Model, s collective.Shape, count, elem int, a collective.Algorithm) way {
	p := newProfile(m, s, a)
	w := way{algorithm: a.Name, inOrder: a.RankOrder, fan: p.fan, lanes: 1}
	longest := m.longest()
	// Rounds begin on whole cache lines, if a message can hold one of such elements.
	grain := max(1, collective.Align>>bits.TrailingZeros(uint(elem)))
	if grain*elem > longest {
		grain = 1
	}
	for k := 0; ; k++ {
		l := collective.Layout{Count: count, Elem: elem, Pieces: p.pieces, Round: max(1, count)}
		rounds := grid(k)
		if count > 0 {
			l.Round = min(count, ((count-1)/rounds/grain+1)*grain)
		}
		bytes := l.PieceMax(min(l.Round, count)) * elem
		if bytes <= longest || s.Ranks == 1 {
			lanes := min(rounds, m.Lanes)
			if ns := p.estimate(bytes, rounds, lanes); w.round == 0 || ns < w.ns {
				w.ns, w.round = ns, l.Round
				w.lanes = min(p.lanes(bytes, lanes), l.Rounds())
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
