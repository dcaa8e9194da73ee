package collective

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain trades memory for time: the proofs make much garbage and keep little.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

var allOptions = []Options{{}, {InPlace: true}, {Scale: true}, {InPlace: true, Scale: true}}

// optionsOf are the options that make different plans of a kind.
func optionsOf(k Kind) []Options {
	switch {
	case k == Barrier:
		return allOptions[:1]
	case !k.Reduces():
		return allOptions[:2]
	}
	return allOptions
}

// schedulesOf returns all ranks' schedules of an algorithm.
func schedulesOf(a Algorithm, n, root int) []Schedule {
	all := make([]Schedule, n)
	for r := range all {
		all[r] = a.Build(Shape{Kind: a.Kind, Ranks: n, Root: root}, r)
	}
	return all
}

// hosted returns all ranks' schedules of an algorithm on hosts.
func hosted(a Algorithm, root int, hosts *Hosts) []Schedule {
	all := make([]Schedule, hosts.ranks())
	for r := range all {
		all[r] = a.Build(Shape{Kind: a.Kind, Ranks: len(all), Root: root, Hosts: hosts}, r)
	}
	return all
}

// hostsOf returns ways in which n ranks may be on hosts: on one, as many on each, and unevenly.
func hostsOf(t *testing.T, n int) (all []*Hosts) {
	add := func(sizes []int) {
		h, err := NewHosts(sizes...)
		require.NoError(t, err)
		all = append(all, h)
	}
	add([]int{n})
	for m := 2; m < n; m++ {
		if n%m == 0 {
			add(slices.Repeat([]int{m}, n/m))
		}
	}
	if n > 2 {
		add([]int{1, n - 1})
		add([]int{n - 1, 1})
	}
	if n > 5 {
		add([]int{2, n - 5, 3})
	}
	if n > 8 {
		add([]int{2, 1, n - 8, 4, 1})
	}
	return all
}

// asksForHosts reports whether an algorithm does otherwise where ranks share hosts.
func (a Algorithm) asksForHosts() bool {
	return a.Hosts || a.Name == "tree" && (a.Kind == AllReduce || a.Kind == Barrier)
}

// rootsOf returns the roots worth a test: all of few ranks, else some.
func rootsOf(k Kind, n int) []int {
	switch {
	case !k.Rooted():
		return []int{0}
	case n <= 8:
		roots := make([]int, n)
		for i := range roots {
			roots[i] = i
		}
		return roots
	}
	return []int{0, 1, n / 2, n - 1}
}

func (a Algorithm) title() string { return a.Kind.String() + "_" + a.Name }

// forCatalog runs a test for every algorithm of the catalog, in parallel.
func forCatalog(t *testing.T, f func(t *testing.T, a Algorithm)) {
	for _, a := range catalog {
		t.Run(a.title(), func(t *testing.T) {
			t.Parallel()
			f(t, a)
		})
	}
}

func TestCatalogIsProven(t *testing.T) {
	most := 64
	if testing.Short() {
		most = 17
	}
	forCatalog(t, func(t *testing.T, a Algorithm) {
		for n := 2; n <= most; n++ {
			for _, root := range rootsOf(a.Kind, n) {
				all := schedulesOf(a, n, root)
				for _, opt := range optionsOf(a.Kind) {
					require.NoError(t, Verify(all, opt), "%d ranks, root %d, %+v", n, root, opt)
				}
			}
		}
	})
}

func TestCatalogIsProvenOnHosts(t *testing.T) {
	most := 24
	if testing.Short() {
		most = 13
	}
	forCatalog(t, func(t *testing.T, a Algorithm) {
		for n := 2; n <= most; n++ {
			for _, hosts := range hostsOf(t, n) {
				for _, root := range rootsOf(a.Kind, n) {
					all := hosted(a, root, hosts)
					if !a.asksForHosts() {
						require.Equal(t, schedulesOf(a, n, root), all)
						continue
					}
					for _, opt := range optionsOf(a.Kind) {
						require.NoError(t, Verify(all, opt), "hosts %v, root %d, %+v", hosts.first, root, opt)
					}
				}
			}
		}
	})
}

func TestCatalogIsProvenAtLargeSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds, not with -short")
	}
	forCatalog(t, func(t *testing.T, a Algorithm) {
		if !slices.Contains([]string{"ring", "tree", "doubling", "chain", "doubletree", "hierarchical_ring", "hierarchical_doubling"}, a.Name) {
			t.Skip("n² messages in one step; proven up to 64 ranks")
		}
		for _, n := range []int{96, 128, 257} {
			root := 0
			if a.Kind.Rooted() {
				root = n / 2
			}
			for _, all := range [][]Schedule{schedulesOf(a, n, root), hosted(a, root, eights(t, n))} {
				for _, opt := range []Options{{}, {InPlace: true, Scale: true}} {
					require.NoError(t, Verify(all, opt), "%d ranks, %+v", n, opt)
				}
			}
		}
	})
}

// eights are hosts of eight ranks, and one of what is left.
func eights(t *testing.T, n int) *Hosts {
	sizes := slices.Repeat([]int{8}, n/8)
	if n%8 > 0 {
		sizes = append(sizes, n%8)
	}
	h, err := NewHosts(sizes...)
	require.NoError(t, err)
	return h
}

func TestOneRankCopies(t *testing.T) {
	for _, a := range catalog {
		for _, opt := range allOptions {
			s, err := Build(Shape{Kind: a.Kind, Ranks: 1}, 0, a.Name)
			require.NoError(t, err)
			require.NoError(t, Verify([]Schedule{s}, opt), "%s %+v", a.title(), opt)
		}
	}
}

// Ranks may differ in what is theirs to choose.
func TestCatalogIsProvenWithSomeRanksInPlace(t *testing.T) {
	forCatalog(t, func(t *testing.T, a Algorithm) {
		for n := 2; n <= 9; n++ {
			for pattern := range 1 << min(n, 5) {
				plans := make([]*Plan, n)
				for r, s := range schedulesOf(a, n, 0) {
					p, err := Compile(s, Options{InPlace: pattern>>(r%5)&1 != 0})
					require.NoError(t, err)
					plans[r] = p
				}
				require.NoError(t, verifyPlans(plans), "%d ranks, pattern %b", n, pattern)
			}
		}
	})
}

// What Compile's comment says makes deadlock impossible holds for the whole catalog, but for
// the chain, which writes nothing twice.
func TestCatalogIsAligned(t *testing.T) {
	type message struct{ from, to, step int }
	forCatalog(t, func(t *testing.T, a Algorithm) {
		if a.Name == "chain" {
			t.Skip("its steps are not aligned")
		}
		var worlds [][]Schedule
		for n := 2; n <= 40; n++ {
			for _, root := range rootsOf(a.Kind, n) {
				worlds = append(worlds, schedulesOf(a, n, root))
				for _, hosts := range hostsOf(t, n) {
					if a.asksForHosts() && n < 25 {
						worlds = append(worlds, hosted(a, root, hosts))
					}
				}
			}
		}
		for _, all := range worlds {
			n, sent, received := len(all), map[message]int{}, map[message]int{}
			for r, s := range all {
				for k, step := range s.Steps {
					for _, in := range step {
						switch in.Code {
						case Send:
							sent[message{r, int(in.Peer), k}]++
						case Recv, RecvReduce:
							received[message{int(in.Peer), r, k}]++
						}
					}
				}
			}
			require.Equal(t, sent, received)
			for m, times := range sent {
				require.Equal(t, 1, times, "%d ranks: %+v", n, m)
			}
		}
	})
}

// RankOrder is what the values say, no more and no less.
func TestRankOrder(t *testing.T) {
	forCatalog(t, func(t *testing.T, a Algorithm) {
		always := true
		for n := 2; n <= 20; n++ {
			for _, root := range rootsOf(a.Kind, n) {
				all := schedulesOf(a, n, root)
				if n > 3 && a.asksForHosts() {
					all = hosted(a, root, hostsOf(t, n)[1])
				}
				w := worldOf(t, all, Options{})
				out, err := w.runLinear()
				require.NoError(t, err)
				for r := range out {
					for _, x := range out[r] {
						always = always && inRankOrder(w.values, x, n)
					}
				}
			}
		}
		require.Equal(t, always, a.RankOrder)
	})
}

// inRankOrder reports whether x is a leaf or one fold of the leaves of n ranks in order.
func inRankOrder(v *values, x int32, n int) bool {
	sum := v.nodes[x].sum
	for r, y := range sum {
		if v.nodes[y].sum != nil || int(v.nodes[y].rank) != r {
			return false
		}
	}
	return sum == nil || len(sum) == n
}

func worldOf(t *testing.T, all []Schedule, opt Options) *world {
	plans := make([]*Plan, len(all))
	for r, s := range all {
		p, err := Compile(s, opt)
		require.NoError(t, err)
		plans[r] = p
	}
	return newWorld(plans)
}

func TestCatalogListsEveryKind(t *testing.T) {
	for _, k := range Kinds() {
		names := map[string]bool{}
		for _, a := range Catalog(k) {
			require.False(t, names[a.Name], "%v %s is there twice", k, a.Name)
			require.Equal(t, k, a.Kind)
			names[a.Name] = true
		}
		require.NotEmpty(t, names, "%v", k)
		parsed, err := ParseKind(k.String())
		require.NoError(t, err)
		require.Equal(t, k, parsed)
	}
	_, err := ParseKind("allreduce")
	require.ErrorContains(t, err, "all_reduce")
}

func TestBuildNamesWhatIsWrong(t *testing.T) {
	ok := Shape{Kind: AllReduce, Ranks: 4}
	for _, c := range []struct {
		shape Shape
		rank  int
		name  string
		want  string
	}{
		{ok, 0, "rign", `no algorithm "rign" for all_reduce; have ring, tree, doubling, oneshot, twoshot`},
		{ok, 4, "ring", "rank 4"},
		{ok, -1, "ring", "rank -1"},
		{Shape{Kind: AllReduce}, 0, "ring", "0 ranks"},
		{Shape{Kind: AllReduce, Ranks: 1 << 30}, 0, "ring", "1073741824 ranks"},
		{Shape{Kind: AllReduce, Ranks: 4, Root: 1}, 0, "ring", "root 1, but all_reduce has no root"},
		{Shape{Kind: Broadcast, Ranks: 4, Root: 4}, 0, "tree", "root 4"},
		{Shape{Kind: 99, Ranks: 4}, 0, "tree", "kind(99)"},
		{Shape{Kind: Broadcast, Ranks: 1}, 0, "ring", `no algorithm "ring" for broadcast`},
	} {
		_, err := Build(c.shape, c.rank, c.name)
		require.ErrorContains(t, err, c.want, fmt.Sprintf("%+v", c))
	}
}
