package collective

import (
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the comments of the algorithms say, for rank v counted from the root: steps with a
// message, and pieces sent.
type said struct {
	pieces func(n int) int
	steps  func(n, v int) int
	sends  func(n, v int) int
	atMost bool            // steps and sends are bounds
	hops   func(n int) int // of doubling, a bound if n is no power of two
}

func one(int) int         { return 1 }
func same(n int) int      { return n }
func others(n, _ int) int { return n - 1 }
func ceilLog2(n int) int  { return bits.Len(uint(n - 1)) }
func floorLog2(n int) int { return bits.Len(uint(n)) - 1 }
func powerOf2(n int) bool { return n&(n-1) == 0 }
func rootHas(at, rest int) func(int, int) int {
	return func(_, v int) int {
		if v == 0 {
			return at
		}
		return rest
	}
}

// binomialSends is the sends of rank v in a binomial tree, counted tree by tree.
func binomialSends(n, v int) int {
	sends := 0
	for k := 0; 1<<k < n && v>>k&1 == 0; k++ {
		if v+1<<k < n {
			sends++
		}
	}
	return sends
}

var comments = map[string]said{
	"all_reduce_ring":       {pieces: same, steps: func(n, _ int) int { return 2 * (n - 1) }, sends: func(n, _ int) int { return 2 * (n - 1) }, hops: func(n int) int { return 2 * (n - 1) }},
	"all_reduce_oneshot":    {pieces: one, steps: rootHas(1, 1), sends: others, hops: one},
	"all_reduce_twoshot":    {pieces: same, steps: rootHas(2, 2), sends: func(n, _ int) int { return 2 * (n - 1) }, hops: func(int) int { return 2 }},
	"all_gather_ring":       {pieces: one, steps: others, sends: others, hops: func(n int) int { return n - 1 }},
	"all_gather_direct":     {pieces: one, steps: rootHas(1, 1), sends: others, hops: one},
	"reduce_scatter_ring":   {pieces: one, steps: others, sends: others, hops: func(n int) int { return n - 1 }},
	"reduce_scatter_direct": {pieces: one, steps: rootHas(1, 1), sends: others, hops: one},
	"broadcast_chain":       {pieces: one, steps: rootHas(1, 2), sends: rootHas(1, 1), atMost: true, hops: func(n int) int { return n - 1 }},
	"reduce_chain":          {pieces: one, steps: rootHas(1, 2), sends: rootHas(0, 1), atMost: true, hops: func(n int) int { return n - 1 }},
	"broadcast_direct":      {pieces: one, steps: rootHas(1, 1), sends: func(n, v int) int { return rootHas(n-1, 0)(n, v) }, hops: one},
	"reduce_direct":         {pieces: one, steps: rootHas(1, 1), sends: rootHas(0, 1), hops: one},
	"alltoall_direct":       {pieces: one, steps: rootHas(1, 1), sends: others, hops: one},
	"alltoall_pairwise":     {pieces: one, steps: others, sends: others},
	"broadcast_tree": {pieces: one, hops: floorLog2, sends: binomialSends, steps: func(n, v int) int {
		if v == 0 {
			return ceilLog2(n)
		}
		return binomialSends(n, v) + 1
	}},
	"reduce_tree": {pieces: one, hops: floorLog2, sends: rootHas(0, 1), steps: func(n, v int) int {
		if v == 0 {
			return ceilLog2(n)
		}
		return binomialSends(n, v) + 1
	}},
	"all_reduce_hierarchical": {pieces: same, steps: rootHas(2, 2), sends: func(n, _ int) int { return 2 * (n - 1) }, hops: func(int) int { return 2 }},
	"broadcast_doubletree":    {pieces: func(int) int { return 2 }, atMost: true, sends: func(int, int) int { return 4 }, steps: func(int, int) int { return 5 }},
	"reduce_doubletree":       {pieces: func(int) int { return 2 }, atMost: true, sends: rootHas(0, 2), steps: func(int, int) int { return 6 }},
	"all_reduce_doubling": {pieces: one, atMost: true,
		steps: func(n, _ int) int {
			if powerOf2(n) {
				return floorLog2(n)
			}
			return 2 + floorLog2(n)
		},
		sends: func(n, _ int) int {
			if powerOf2(n) {
				return floorLog2(n)
			}
			return 1 + floorLog2(n)
		},
		hops: func(n int) int {
			if powerOf2(n) {
				return floorLog2(n)
			}
			return 2 + floorLog2(n)
		}},
	"all_reduce_tree": {pieces: func(int) int { return 2 }, atMost: true, sends: func(int, int) int { return 4 },
		steps: func(int, int) int { return 8 }},
}

func TestCostIsWhatTheCommentsSay(t *testing.T) {
	comments["all_reduce_hierarchical_ring"] = comments["all_reduce_ring"]
	comments["all_reduce_hierarchical_doubling"] = comments["all_reduce_doubling"]
	comments["barrier_hierarchical_doubling"] = comments["all_reduce_doubling"]
	comments["barrier_doubling"] = comments["all_reduce_doubling"]
	comments["barrier_direct"] = comments["all_reduce_oneshot"]
	comments["barrier_tree"] = comments["all_reduce_tree"]
	for _, a := range catalog {
		c, ok := comments[a.title()]
		require.True(t, ok, "no figures for %s", a.title())
		for n := 2; n <= 40; n++ {
			for _, root := range rootsOf(a.Kind, n) {
				all := schedulesOf(a, n, root)
				for r := range all {
					got, v := all[r].Cost(), mod(r-root, n)
					where := []any{"%s, %d ranks, rank %d, root %d: %+v", a.title(), n, r, root, got}
					require.Equal(t, c.pieces(n), all[r].Pieces, where...)
					if c.atMost {
						require.LessOrEqual(t, got.Steps, c.steps(n, v), where...)
						require.LessOrEqual(t, got.Sends, c.sends(n, v), where...)
					} else {
						require.Equal(t, c.steps(n, v), got.Steps, where...)
						require.Equal(t, c.sends(n, v), got.Sends, where...)
					}
				}
				if hops := Hops(all); c.hops == nil || strings.HasSuffix(a.Name, "doubling") && !powerOf2(n) {
					require.Greater(t, hops, 0)
					require.True(t, c.hops == nil || hops <= c.hops(n), "%s, %d ranks: %d hops", a.title(), n, hops)
				} else {
					require.Equal(t, c.hops(n), hops, "%s, %d ranks, root %d", a.title(), n, root)
				}
			}
		}
	}
}

// With m ranks on each of several hosts the comments speak of what crosses between hosts, in blocks over all ranks, and of messages
// that follow one another.
func TestCostOnHosts(t *testing.T) {
	doubling := func(h int) float64 { // every host sends its block on each level; each of the first odd ones one more, and is sent one
		levels := floorLog2(h)
		return float64(levels<<levels + 2*(h-1<<levels))
	}
	for _, c := range []struct {
		kind    Kind
		name    string
		between func(h int) float64
		hops    func(m, h int) int
	}{
		{AllReduce, "hierarchical", func(h int) float64 { return 2 * float64(h-1) }, func(m, h int) int { return 2 + 2*h*min(1, m-1) }},
		{AllReduce, "hierarchical_ring", func(h int) float64 { return 2 * float64(h-1) }, func(m, h int) int { return 2*(h-1) + 2*h*min(1, m-1) }},
		{AllReduce, "hierarchical_doubling", doubling, func(m, h int) int { return ceilLog2(h) + 1 + 2*min(1, m-1) }},
		{AllReduce, "tree", func(h int) float64 { return 2 * float64(h-1) }, func(m, h int) int { return 2 * (ceilLog2(h) + m - 1) }},
		{Broadcast, "doubletree", func(h int) float64 { return float64(h - 1) }, func(m, h int) int { return ceilLog2(h) + m }},
		{Reduce, "doubletree", func(h int) float64 { return float64(h - 1) }, func(m, h int) int { return ceilLog2(h) + m }},
	} {
		for _, a := range Catalog(c.kind) {
			if a.Name != c.name {
				continue
			}
			for m := 1; m <= 4; m++ {
				for h := 2; h <= 9; h++ {
					hosts, err := NewHosts(slices.Repeat([]int{m}, h)...)
					require.NoError(t, err)
					for _, root := range rootsOf(a.Kind, m*h) {
						shape := Shape{Kind: a.Kind, Ranks: m * h, Root: root, Hosts: hosts}
						all, crossing := hosted(a, root, hosts), 0
						for r, s := range all {
							for _, step := range s.Steps {
								for _, in := range step {
									if in.Code == Send && shape.HostOf(r) != shape.HostOf(int(in.Peer)) {
										crossing++
									}
								}
							}
						}
						require.InDelta(t, c.between(h), float64(crossing)/float64(all[0].Pieces), 1e-9, "%s, %d hosts of %d, root %d", a.title(), h, m, root)
						require.LessOrEqual(t, Hops(all), c.hops(m, h), "%s, %d hosts of %d, root %d", a.title(), h, m, root)
					}
				}
			}
		}
	}
}

func TestHostsAreChecked(t *testing.T) {
	_, err := NewHosts(2, 0, 3)
	require.ErrorContains(t, err, "host 1 of 3 has 0 ranks")
	hosts, err := NewHosts(2, 3)
	require.NoError(t, err)
	_, err = Build(Shape{Kind: AllReduce, Ranks: 4, Hosts: hosts}, 0, "tree")
	require.ErrorContains(t, err, "hosts of 5 ranks, want 4")
	_, err = Build(Shape{Kind: AllReduce, Ranks: 4, Hosts: &Hosts{}}, 0, "tree")
	require.ErrorContains(t, err, "hosts of 0 ranks, want 4")
	s := Shape{Kind: AllReduce, Ranks: 5, Hosts: hosts}
	require.NoError(t, s.Check())
	require.Equal(t, []int{0, 0, 1, 1, 1}, []int{s.HostOf(0), s.HostOf(1), s.HostOf(2), s.HostOf(3), s.HostOf(4)})
	require.NotEqual(t, Shape{Ranks: 5}.HostOf(0), Shape{Ranks: 5}.HostOf(1), "nothing is known of hosts")
	for want, sizes := range map[string][]int{"2 3": {2, 3}, "8×2 4": {8, 8, 4}, "1×3": {1, 1, 1}, "1 2 1": {1, 2, 1}, "5": {5}, "11": {11}, "1×11": slices.Repeat([]int{1}, 11)} {
		hosts, err := NewHosts(sizes...)
		require.NoError(t, err)
		require.Equal(t, want, hosts.String())
	}
}

func TestCostOfTree(t *testing.T) {
	for n := 2; n <= 300; n++ {
		h := bits.Len(uint(n - 1))
		all := schedulesOf(Algorithm{Kind: AllReduce, Build: treeAllReduce}, n, 0)
		sends, twice := 0, 0
		for r := range all {
			sends += all[r].Cost().Sends
			inside := 0
			for number := range 2 {
				tree := doubleTree{n: n, number: number}
				p := tree.position(r)
				require.Equal(t, r, tree.rank(p))
				if len(tree.children(p)) > 0 {
					inside++
				}
			}
			if inside != 1 {
				twice++
			}
		}
		require.Equal(t, 4*(n-1), sends, "two trees of n-1 links, both ways")
		require.LessOrEqual(t, twice, n%2*2, "%d ranks: ranks inside both trees or none", n)
		hops := Hops(all)
		require.LessOrEqual(t, hops, 2*h, "%d ranks", n)
		require.Greater(t, hops, h, "%d ranks", n)
	}
}

func TestCostFields(t *testing.T) {
	s := Schedule{Shape: Shape{Kind: AllReduce, Ranks: 4}, Pieces: 1, Temps: 2, Steps: [][]Instr{
		{send(1, Slot{In, 0}), send(2, Slot{In, 0}), recv(3, Slot{Temp, 0})},
		{},
		{fold(Slot{Temp, 1}, Slot{In, 0}, Slot{Temp, 0}), copySlot(Slot{Out, 0}, Slot{In, 0})},
		{recvReduce(1, Slot{Temp, 1}, Slot{Out, 0}), recv(2, Slot{Temp, 0})},
	}}
	require.NoError(t, s.Check())
	require.Equal(t, Cost{Steps: 2, Sends: 2, Receives: 3, Duplex: 4, MaxFanout: 2, MaxFanin: 2, Folds: 2, Folded: 4, Copied: 1}, s.Cost())
	far, near := s.CostBy(func(peer int32) bool { return peer == 1 })
	require.Equal(t, Cost{Steps: 2, Sends: 1, Receives: 2, Duplex: 2, MaxFanout: 1, MaxFanin: 1, Folds: 1, Folded: 2, Copied: 1}, far)
	require.Equal(t, Cost{Steps: 2, Sends: 1, Receives: 1, Duplex: 2, MaxFanout: 1, MaxFanin: 1, Folds: 1, Folded: 2}, near)
}

func TestHopsOfSchedulesThatWait(t *testing.T) {
	wait := func(r int) Schedule {
		return Schedule{Shape: Shape{Kind: AllReduce, Ranks: 2}, Rank: r, Pieces: 1, Steps: [][]Instr{{recv(1-r, Slot{Out, 0})}, {send(1-r, Slot{Out, 0})}}}
	}
	require.Equal(t, -1, Hops([]Schedule{wait(0), wait(1)}))
}
