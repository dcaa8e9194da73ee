package tune

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
)

// forAll calls f for every algorithm of every kind, and for rooted kinds some roots.
func forAll(t *testing.T, ranks []int, f func(t *testing.T, s collective.Shape, a collective.Algorithm)) {
	for _, k := range collective.Kinds() {
		require.NotEmpty(t, collective.Catalog(k), "%v", k)
		for _, a := range collective.Catalog(k) {
			t.Run(k.String()+"/"+a.Name, func(t *testing.T) {
				for _, n := range ranks {
					f(t, collective.Shape{Kind: k, Ranks: n}, a)
					if k.Rooted() && n > 1 {
						f(t, collective.Shape{Kind: k, Ranks: n, Root: n - 1}, a)
						f(t, collective.Shape{Kind: k, Ranks: n, Root: n / 2}, a)
					}
				}
			})
		}
	}
}

func schedules(s collective.Shape, a collective.Algorithm) []collective.Schedule {
	var all []collective.Schedule
	for r := range s.Ranks {
		all = append(all, a.Build(s, r))
	}
	return all
}

// With nothing but a latency of 1, a round takes as long as the longest row of messages that
// follow one another, whether seen from a few ranks or from all; but that no rank shows
// the step in which it idles, in a tournament of odd ranks.
func TestFirstRoundIsAsLongAsItsHops(t *testing.T) {
	forAll(t, []int{2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24}, func(t *testing.T, s collective.Shape, a collective.Algorithm) {
		hops := float64(collective.Hops(schedules(s, a)))
		p := newProfile(Model{Latency: 1}, s, a)
		if a.Name == "pairwise" && s.Ranks > 6 && s.Ranks%2 == 1 {
			hops--
		}
		require.Equal(t, line{hops, 0}, p.first, "%+v", s)
		require.Zero(t, p.busy)
		require.LessOrEqual(t, p.span.ns, hops)
	})
}

// What a few ranks tell of an algorithm is what playing all of them tells.
func TestPlayAgreesWithCounts(t *testing.T) {
	m := mustDefault(t, "tcp")
	for _, c := range []struct {
		kind collective.Kind
		name string
	}{
		{collective.AllReduce, "ring"}, {collective.AllReduce, "oneshot"}, {collective.AllReduce, "twoshot"},
		{collective.AllGather, "ring"}, {collective.AllGather, "direct"}, {collective.ReduceScatter, "ring"}, {collective.ReduceScatter, "direct"}, {collective.AllToAll, "direct"},
	} {
		for _, n := range []int{8, 16, 20} {
			s := collective.Shape{Kind: c.kind, Ranks: n}
			for _, a := range collective.Catalog(c.kind) {
				if a.Name != c.name {
					continue
				}
				var all []*collective.Schedule
				for _, sch := range schedules(s, a) {
					all = append(all, &sch)
				}
				first, _ := play(m, homes(s), all)
				p := newProfile(m, s, a)
				require.InEpsilon(t, p.first.ns, first.ns, 1e-9, "%v %s %d", c.kind, c.name, n)
				require.InEpsilon(t, p.first.perByte, first.perByte, 1e-9, "%v %s %d", c.kind, c.name, n)
			}
		}
	}
}

// A chain is n-1 messages one after the other, while each rank only receives and sends.
func TestChainIsAPipeline(t *testing.T) {
	m := Model{Latency: 100, Byte: 2, Lanes: 8, Piece: 1 << 20, MaxMessage: 1 << 20}
	for _, root := range []int{0, 3, 9} {
		s := collective.Shape{Kind: collective.Broadcast, Ranks: 10, Root: root}
		for _, a := range collective.Catalog(s.Kind) {
			if a.Name == "chain" {
				p := newProfile(m, s, a)
				require.Equal(t, line{900, 18}, p.first)
				require.Equal(t, line{0, 4}, p.span)
				require.Equal(t, line{0, 2}, p.busy)
				require.Equal(t, 2, p.lanes(1000, 8))
				require.InEpsilon(t, 900+18e3+99*(100+2e3), p.estimate(1000, 100, 2), 1e-9)
				require.InEpsilon(t, 900+18e3+99*(100+4e3), p.estimate(1000, 100, 1), 1e-9)
			}
		}
	}
}

// The defaults give what all-reduces by two ranks took on the host that they come from,
// in its faster state, within a factor of 1.5.
func TestEstimatesAgainstMeasurements(t *testing.T) {
	const ns, us, ms = 1.0, 1e3, 1e6
	for _, c := range []struct {
		transport, algorithm string
		piece, rounds        int
		measured             float64
	}{
		{"shm", "oneshot", 4 << 10, 1, 800 * ns},
		{"shm", "twoshot", 32 << 10, 1, 6.9 * us},
		{"shm", "twoshot", 64 << 10, 1, 11.4 * us},
		{"shm", "twoshot", 64 << 10, 2, 20 * us},
		{"shm", "twoshot", 4 << 10, 32, 38 * us},
		{"shm", "twoshot", 128 << 10, 4, 80 * us},
		{"tcp", "twoshot", 512 << 10, 1, 0.36 * ms},
		{"tcp", "twoshot", 512 << 10, 4, 1.83 * ms},
		{"tcp", "twoshot", 512 << 10, 64, 38.9 * ms},
	} {
		s := collective.Shape{Kind: collective.AllReduce, Ranks: 2}
		for _, a := range collective.Catalog(s.Kind) {
			if a.Name == c.algorithm {
				p := newProfile(mustDefault(t, c.transport), s, a)
				ratio := p.estimate(c.piece, c.rounds, 4) / c.measured
				t.Logf("%s %s, %d rounds, pieces of %d bytes: %.2f of %v ns", c.transport, c.algorithm, c.rounds, c.piece, ratio, c.measured)
				require.InDelta(t, 0, math.Log(ratio), math.Log(1.5), "%+v: %.2f", c, ratio)
			}
		}
	}
}
