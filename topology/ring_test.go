package topology

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func ringsOf(t testing.TB, channels int, hosts ...*Graph) []Ring {
	t.Helper()
	rings, err := Rings(locals(hosts...), channels)
	require.NoError(t, err)
	for _, r := range rings {
		sorted := slices.Sorted(slices.Values(r.Ranks))
		for i, rank := range sorted {
			require.Equal(t, i, rank, "every rank once")
		}
	}
	return rings
}

func locals(hosts ...*Graph) (all []Local) {
	for _, g := range hosts {
		all = append(all, AllOf(g))
	}
	return all
}

// edges counts a ring's edges by type on one host.
func edges(g *Graph, ring []int, path func(a, b NodeID) PathType) map[PathType]int {
	gpus := g.GPUs()
	n := map[PathType]int{}
	for k, i := range ring {
		n[path(gpus[i], gpus[ring[(k+1)%len(ring)]])]++
	}
	return n
}

// sameCycle compares up to where it begins and which way it goes.
func sameCycle(a, b []int) bool {
	for range a {
		a = append(a[1:], a[0])
		back := slices.Clone(a)
		slices.Reverse(back)
		if slices.Equal(a, b) || slices.Equal(back, b) {
			return true
		}
	}
	return false
}

func TestUC60_FewFarEdges(t *testing.T) {
	for file, want := range map[string]int{
		"pciex8-nonic-pairs.txt": 2, "mixed5-uneven-1plus4.txt": 2, "pciex8-allsys-4numa.txt": 8, "rtx4090x8-allsys-nic-near-gpu6.txt": 8,
		"pairs4-nv3-4mlx.txt": 2, "v100x4-oldformat-mlx-column.txt": 0, "v100x8-dgx1v-hybrid-cube-mesh.txt": 0, "rtx5090x2-phb.txt": 0,
	} {
		g := parseMatrix(t, "testdata/topo-matrix/"+file)
		r := ringsOf(t, 1, g)[0]
		got := edges(g, r.Ranks, func(a, b NodeID) PathType { return g.Path(a, b).Type })
		require.Equal(t, want, got[PathSYS], "%s: %v", file, r.Ranks)
		require.Equal(t, []NodeID{NoNode}, r.Nets)
	}
	g := parseMatrix(t, "testdata/topo-matrix/pciex8-nonic-pairs.txt")
	r := ringsOf(t, 1, g)[0]
	require.Equal(t, map[PathType]int{PathSYS: 2, PathPHB: 2, PathPIX: 4}, edges(g, r.Ranks, func(a, b NodeID) PathType { return g.Path(a, b).Type }))
	require.Equal(t, PathSYS, r.Worst)
	require.Equal(t, 6.0, r.GBs)
}

func TestUC60_CubeMesh(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	links := g.counts()
	gpus := g.GPUs()
	all := 0
	permute([]int{1, 2, 3, 4, 5, 6, 7}, func(p []int) {
		ring := append([]int{0}, p...)
		for k, i := range ring {
			if links[[2]NodeID{gpus[i], gpus[ring[(k+1)%8]]}] == 0 {
				return
			}
		}
		all++
	})
	require.Equal(t, 60, all, "rings over NVLink alone, both ways round counted")

	rings := ringsOf(t, 6, g)
	require.True(t, sameCycle(rings[0].Ranks, []int{0, 6, 5, 4, 7, 1, 2, 3}), "%v", rings[0].Ranks)
	for k, i := range rings[0].Ranks {
		require.Equal(t, 2, links[[2]NodeID{gpus[i], gpus[rings[0].Ranks[(k+1)%8]]}], "the best one is over double links alone")
	}
	used := map[[2]int]int{}
	for _, r := range rings {
		require.Equal(t, PathNVL, r.Worst, "%v", r.Ranks)
		require.Equal(t, 20.0, r.GBs)
		for k, i := range r.Ranks {
			used[[2]int{i, r.Ranks[(k+1)%8]}]++
		}
	}
	for p, n := range used {
		require.Equal(t, links[[2]NodeID{gpus[p[0]], gpus[p[1]]}], n, "six rings use every link each way once: %v", p)
	}
	require.Len(t, used, 32)
	for _, r := range ringsOf(t, 32, g) {
		require.Equal(t, PathNVL, r.Worst, "when all links are taken channels share them")
	}
}

func permute(p []int, visit func([]int)) {
	var at func(k int)
	at = func(k int) {
		if k == len(p) {
			visit(p)
			return
		}
		for i := k; i < len(p); i++ {
			p[k], p[i] = p[i], p[k]
			at(k + 1)
			p[k], p[i] = p[i], p[k]
		}
	}
	at(0)
}

func TestNVSwitchHost(t *testing.T) {
	begin := time.Now()
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	rings := ringsOf(t, 0, g)
	require.Equal(t, []int{8, 7, 6, 5, 4, 3, 2, 1}, pairs(g))
	took := time.Since(begin)
	require.Len(t, rings, 16)
	for _, r := range rings {
		require.Equal(t, PathNVL, r.Worst)
		require.Equal(t, 20.6, r.GBs)
	}
	require.Less(t, took, time.Second)
}

func TestRailAlignedRings(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	hosts := []*Graph{g, g, g, g}
	rings := ringsOf(t, 0, hosts...)
	require.Len(t, rings, 16)
	nics := g.PairNICs(g.GPUs())
	for c, r := range rings {
		require.Equal(t, c%8, r.Rail)
		require.Equal(t, PathNVL, r.Worst)
		for h, net := range r.Nets {
			require.Equal(t, r.Nets[0], net, "the same port on all hosts")
			entry := r.Ranks[8*h]
			require.Equal(t, h, entry/8, "host by host")
			require.Equal(t, net, nics[entry%8].Net, "a host is entered at a GPU of the port")
		}
	}
	seen := map[NodeID]bool{}
	for _, r := range rings {
		seen[r.Nets[0]] = true
	}
	require.Len(t, seen, 8)

	// Fewer ports on one host make fewer rails.
	h20 := parseMatrix(t, "testdata/topo-matrix/h20x8-5nic-shared.txt")
	for c, r := range ringsOf(t, 8, h20, g) {
		require.Equal(t, c%4, r.Rail)
	}
	// A host without ports still gets a ring.
	for _, r := range ringsOf(t, 2, parseMatrix(t, "testdata/topo-matrix/pciex8-nonic-pairs.txt"), g) {
		require.Equal(t, []NodeID{NoNode, NoNode}, r.Nets)
	}
}

// TestEntryAndExitAreNearThePort: of the GPUs that share a port the nearest one enters, and the ring leaves at the nearest of the others.
func TestEntryAndExitAreNearThePort(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/rtx4090x8-allsys-nic-near-gpu6.txt")
	rings := ringsOf(t, 2, g, g)
	require.Equal(t, 6, rings[0].Ranks[0], "GPU6 is near port 0, which it was paired with")
	require.Equal(t, 6, rings[1].Ranks[7], "and near port 1, which it was not paired with")
	require.Equal(t, 8+6, rings[1].Ranks[15])
}

func TestRingsAreTheSameOnEveryRank(t *testing.T) {
	for _, f := range matrixFiles(t) {
		g := parseMatrix(t, f)
		again := parseMatrix(t, f)
		a, err := Rings(locals(g, g), 4)
		require.NoError(t, err)
		b, err := Rings(locals(again, again), 4)
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
}

func TestPairsKeepTheirNVLinks(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/pairs4-nv3-4mlx.txt")
	for _, r := range ringsOf(t, 8, g) {
		require.Equal(t, 2, edges(g, r.Ranks, func(a, b NodeID) PathType { return g.Path(a, b).Type })[PathNVL])
		require.Equal(t, 6.0, r.GBs)
	}
}

// TestRingsOfSomeGPUs: a job with a part of a host's GPUs, in its own order, and with two ranks on one of them.
func TestRingsOfSomeGPUs(t *testing.T) {
	cube := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	gpus := cube.GPUs()
	some := Local{cube, []NodeID{gpus[5], gpus[0], gpus[3], gpus[6]}} // 5-6-0-3-5 is a ring of NVLinks
	rings, err := Rings([]Local{some}, 2)
	require.NoError(t, err)
	require.Equal(t, PathNVL, rings[0].Worst)
	require.True(t, sameCycle(slices.Clone(rings[0].Ranks), []int{0, 3, 1, 2}), "%v", rings[0].Ranks)

	shared := Local{cube, []NodeID{gpus[0], gpus[3], gpus[0]}}
	rings, err = Rings([]Local{shared}, 1)
	require.NoError(t, err)
	require.ElementsMatch(t, []int{0, 1, 2}, rings[0].Ranks)
	require.Equal(t, PathNVL, rings[0].Worst)

	h100 := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	half := Local{h100, h100.GPUs()[:4]}
	rings, err = Rings([]Local{half, half}, 0)
	require.NoError(t, err)
	require.Len(t, rings, 8, "4 rails of 2 × 25 GB/s")
	for _, r := range rings {
		require.Less(t, r.Rail, 4)
	}
	_, err = Rings([]Local{{h100, []NodeID{h100.CPUs()[0]}}}, 1)
	require.ErrorContains(t, err, "node 0 is no GPU")
}

func TestRingsOfOddHosts(t *testing.T) {
	_, err := Rings(nil, 1)
	require.ErrorContains(t, err, "no hosts")
	_, err = Rings(locals(parseXML(t, "testdata/topo-xml/vm-2core-nogpu.xml")), 1)
	require.ErrorIs(t, err, ErrNoGPU)
	_, err = Trees(locals(parseXML(t, "testdata/topo-xml/vm-2core-nogpu.xml")), 1)
	require.ErrorIs(t, err, ErrNoGPU)
	_, err = Rings(locals(&Graph{}), 65)
	require.ErrorContains(t, err, "65 channels")
	one := parseXML(t, "testdata/topo-xml/grace-c2c.xml")
	require.Equal(t, []int{0}, ringsOf(t, 1, one)[0].Ranks)
	require.Equal(t, []int{0, 1, 2}, ringsOf(t, 1, one, one, one)[0].Ranks)
}

// TestBestTour against every order.
func TestBestTour(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := 1; n <= 7; n++ {
		for range 40 {
			cost := make([][]float64, n)
			for i := range cost {
				cost[i] = make([]float64, n)
				for j := range cost[i] {
					cost[i][j] = float64(r.IntN(4))
				}
			}
			total := func(o []int) (sum float64) {
				for k, i := range o {
					sum += cost[i][o[(k+1)%n]]
				}
				return sum
			}
			start := r.IntN(n)
			got := tour(cost, start)
			require.Len(t, got, n)
			require.Equal(t, start, got[0])
			rest := []int{}
			for i := range n {
				if i != start {
					rest = append(rest, i)
				}
			}
			best := total(got)
			permute(rest, func(p []int) {
				require.LessOrEqual(t, best, total(append([]int{start}, p...))+1e-9*float64(btoi(n == 1)))
			})
			improved := improve(cost, nearestTour(cost, start))
			require.ElementsMatch(t, got, improved)
		}
	}
}

func TestGoodTourOfManyGPUs(t *testing.T) {
	// 4 groups of 10, far from each other, in mixed order: 4 far edges are enough.
	const n = 40
	cost := make([][]float64, n)
	for i := range cost {
		cost[i] = make([]float64, n)
		for j := range cost[i] {
			cost[i][j] = map[bool]float64{true: 1, false: 50}[i%4 == j%4]
		}
	}
	far := 0
	o := tour(cost, 0)
	for k, i := range o {
		far += btoi(i%4 != o[(k+1)%n]%4)
	}
	require.Equal(t, 4, far)
}

func TestTrees(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	for n := 1; n <= 17; n++ {
		hosts := slices.Repeat([]*Graph{g}, n)
		trees, err := Trees(locals(hosts...), 4)
		require.NoError(t, err)
		nics := g.PairNICs(g.GPUs())
		for c, tree := range trees {
			name := fmt.Sprintf("%d hosts, channel %d", n, c)
			roots := 0
			for r, up := range tree.Up {
				if up < 0 {
					roots++
				} else if up/8 != r/8 && n > 1 {
					require.Equal(t, tree.Nets[r/8], nics[r%8].Net, "%s: only heads speak to other hosts", name)
					require.Equal(t, tree.Nets[up/8], nics[up%8].Net, name)
				}
				depth := 0
				for at := r; at >= 0; at = tree.Up[at] {
					depth++
					require.LessOrEqual(t, depth, 8+bits.Len(uint(n))+1, "%s: no cycle, and not deep", name)
				}
				require.LessOrEqual(t, len(tree.Down(r)), 3, name)
			}
			require.Equal(t, 1, roots, name)
		}
	}
}

func TestDoubleTreeOfFewHosts(t *testing.T) {
	for n, want := range map[int][2][]int{
		2: {{-1, 0}, {1, -1}},
		3: {{-1, 2, 0}, {1, -1, 0}},
		4: {{-1, 2, 0, 2}, {1, 3, 1, -1}},
		5: {{-1, 2, 4, 2, 0}, {1, -1, 3, 0, 3}},
		8: {{-1, 2, 4, 2, 0, 6, 4, 6}, {1, 3, 1, 7, 5, 3, 5, -1}},
	} {
		for k, up := range want {
			for i := range n {
				require.Equal(t, up[i], doubleTree(i, n, k == 1), "%d of %d, tree %d", i, n, k)
			}
		}
	}
}

func TestDoubleTreeLoads(t *testing.T) {
	for n := 2; n <= 130; n++ {
		inner := make([][2]int, n)
		for k, second := range []bool{false, true} {
			roots := 0
			for i := range n {
				up := doubleTree(i, n, second)
				if up < 0 {
					roots++
					continue
				}
				require.Less(t, up, n)
				inner[up][k]++
				depth := 0
				for at := i; at >= 0; at = doubleTree(at, n, second) {
					depth++
					require.LessOrEqual(t, depth, bits.Len(uint(n))+1)
				}
			}
			require.Equal(t, 1, roots)
		}
		both := 0
		for _, c := range inner {
			require.LessOrEqual(t, max(c[0], c[1]), 2)
			both += btoi(c[0] > 0 && c[1] > 0)
		}
		require.LessOrEqual(t, both, n%2, "n = %d: one that forwards in one tree is a leaf of the other", n)
	}
}

func TestManyHosts(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	hosts := slices.Repeat([]*Graph{g}, 128)
	begin := time.Now()
	rings := ringsOf(t, 0, hosts...)
	trees, err := Trees(locals(hosts...), 0)
	require.NoError(t, err)
	require.Less(t, time.Since(begin), 5*time.Second)
	require.Len(t, rings[0].Ranks, 1024)
	require.Len(t, trees, len(rings))
}

func BenchmarkPlan128Hosts(b *testing.B) {
	g := parseXML(b, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	hosts := slices.Repeat([]*Graph{g}, 128)
	for b.Loop() {
		_, err := Trees(locals(hosts...), 0)
		require.NoError(b, err)
	}
}

func TestChannels(t *testing.T) {
	h100 := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	cube := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	plain := parseMatrix(t, "testdata/topo-matrix/pciex8-nonic-pairs.txt")
	for _, tt := range []struct {
		hosts []*Graph
		want  int
	}{{[]*Graph{h100}, 16}, {[]*Graph{h100, h100}, 16}, {[]*Graph{cube}, 6}, {[]*Graph{plain}, 2}, {[]*Graph{plain, h100}, 2}, {nil, 2}} {
		n, why := Channels(locals(tt.hosts...))
		require.Equal(t, tt.want, n)
		require.NotEmpty(t, why)
	}
}
