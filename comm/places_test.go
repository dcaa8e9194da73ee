package comm

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

func graphOf(t *testing.T, name string) *topology.Graph {
	f, err := os.Open("../topology/testdata/" + name)
	require.NoError(t, err)
	defer f.Close()
	g, err := topology.Parse(f)
	require.NoError(t, err)
	return g
}

// withUUIDs gives every GPU one: a, b, c, …
func withUUIDs(g *topology.Graph) *topology.Graph {
	for i, id := range g.GPUs() {
		if g.Nodes[id].GPU == nil {
			g.Nodes[id].GPU = &topology.GPUDetails{Dev: -1, Rank: -1}
		}
		g.Nodes[id].GPU.UUID = string(rune('a' + i))
	}
	return g
}

// on are ranks on the GPUs of a host with these UUIDs.
func on(t *testing.T, host string, g *topology.Graph, uuids ...string) (all []hello) {
	b, err := pack(g)
	require.NoError(t, err)
	for _, id := range uuids {
		all = append(all, hello{Boot: host, Host: host, seat: seat{Graph: b, GPU: id}})
	}
	return all
}

var eight = []string{"a", "b", "c", "d", "e", "f", "g", "h"}

func TestUC58_EveryRankHasTheNICOfItsGPU(t *testing.T) {
	g := withUUIDs(graphOf(t, "topo-xml/h100x8-9nic-nvswitch.xml"))
	all := append(on(t, "x", g, eight...), on(t, "y", g, eight...)...)
	p, err := newPlaces(all)
	require.NoError(t, err)
	for r, at := range p.of {
		want := []string{"mlx5_8", "mlx5_7", "mlx5_6", "mlx5_5", "mlx5_4", "mlx5_3", "mlx5_2", "mlx5_1"}[r%8]
		require.Equal(t, want, at.Graph.Name(at.NIC.Net), "rank %d", r)
	}
	require.Equal(t, topology.OverNVLink, p.way(0, 7).Kind)
	require.Equal(t, topology.OverGDR, p.way(0, 8).Kind)
	all[8].GDR = "loc"
	p, err = newPlaces(all)
	require.NoError(t, err)
	require.Equal(t, topology.OverRDMA, p.way(0, 8).Kind, "the level of either is the limit")
	require.Equal(t, topology.OverRDMA, p.way(8, 0).Kind)
	require.Equal(t, topology.OverGDR, p.way(0, 9).Kind)

	all[3].Ports = "=mlx5_0"
	p, err = newPlaces(all)
	require.NoError(t, err)
	require.Equal(t, "mlx5_0", p.of[3].Graph.Name(p.of[3].NIC.Net), "a rank's filter goes before")
	all[3].Ports = "^"
	_, err = newPlaces(all)
	require.ErrorContains(t, err, "rank 3 (x pid 0): device filter")
	all[3].Ports, all[5].P2P = "", "close"
	_, err = newPlaces(all)
	require.ErrorContains(t, err, `rank 5 (x pid 0): path type "close"`)
}

// TestNUMANodesOfRanks: ranks without a GPU take the port that is near where they are bound.
func TestNUMANodesOfRanks(t *testing.T) {
	g := topology.Discover(topologytest.TwoSockets(), topology.Unknown[[]topology.GPUFacts]("none")).Graph()
	all := on(t, "x", g, "", "", "", "")
	for r := range all {
		all[r].Processors = []int{r % 2 * 8, r%2*8 + 1}
	}
	all[3].Processors = nil
	p, err := newPlaces(all)
	require.NoError(t, err)
	for r, want := range []string{"mlx5_0", "mlx5_1", "mlx5_0", "mlx5_0"} {
		require.Equal(t, want, g.Name(p.of[r].NIC.Net), "rank %d", r)
	}
	require.Equal(t, [][]int{{3, 0, 2, 1}}, p.orders)
}

// TestPortsOfRanksWithoutGPU: the transport opens the port that the topology chooses for the rank's processors, as others know, unless the
// configuration names one; where the topology has none the choice is the transport's.
func TestPortsOfRanksWithoutGPU(t *testing.T) {
	two := topology.Discover(topologytest.TwoSockets(), topology.Unknown[[]topology.GPUFacts]("none")).Graph()
	open := func(g *topology.Graph, filter string, processors ...int) string {
		mine := on(t, "x", g, "")[0]
		mine.Processors, mine.Ports = processors, filter
		f := &family{cfg: Config{RDMADevice: filter}, log: slog.New(slog.DiscardHandler)}
		take, err := f.rdmaDevices(mine)
		require.NoError(t, err)
		if take == nil {
			return "the transport's"
		}
		var ports []string
		for _, name := range []string{"mlx5_0", "mlx5_1", "mlx5_10"} {
			for port := 1; port <= 2; port++ {
				if take(name, port) {
					ports = append(ports, fmt.Sprint(name, ":", port))
				}
			}
		}
		return strings.Join(ports, " ")
	}
	require.Equal(t, "mlx5_0:1", open(two, "", 0, 1))
	require.Equal(t, "mlx5_1:1", open(two, "", 8, 9))
	require.Equal(t, "mlx5_1:1", open(two, "", 7, 8, 9))
	require.Equal(t, "mlx5_0:1", open(two, "", 0, 8))
	require.Equal(t, "mlx5_1:1 mlx5_1:2", open(two, "=mlx5_1", 0, 1))
	require.Equal(t, "the transport's", open(graphOf(t, "topo-xml/vm-2core-nogpu.xml"), "", 0))
	soft := topologytest.NewTree()
	soft.CPUs(2, 1)
	for _, name := range []string{"mlx5_0", "mlx5_1"} {
		soft.GID(soft.RDMA("sys/devices/virtual", name, "Ethernet", "4: ACTIVE", "10 Gb/sec"), 0, "::ffff:192.0.2.1", "RoCE v2", "eth0")
	}
	require.Equal(t, "the transport's", open(topology.Discover(soft, topology.Unknown[[]topology.GPUFacts]("none")).Graph(), "", 0))
}

// TestTreesAreTheTopologys: between ranks with GPUs the first tree's sums go up along the edges that topology.Trees plans, and on every
// channel a ring's along those of topology.Rings.
func TestTreesAreTheTopologys(t *testing.T) {
	g := withUUIDs(graphOf(t, "topo-xml/h100x8-9nic-nvswitch.xml"))
	var all []hello
	var locals []topology.Local
	for h := range 5 {
		all = append(all, on(t, fmt.Sprint(h), g, "a", "b", "c", "d", "e", "f", "g", "h")...)
		locals = append(locals, topology.AllOf(g))
	}
	for r := range all {
		all[r].Lanes = 4
	}
	p, err := newPlaces(all)
	require.NoError(t, err)
	require.Len(t, p.orders, 4)
	world := make([]int, len(all))
	for r := range world {
		world[r] = r
	}
	fam := &family{places: p}
	trees, err := topology.Trees(locals, 4)
	require.NoError(t, err)
	rings, err := topology.Rings(locals, 4)
	require.NoError(t, err)
	for r := range all {
		c := &Comm{rank: r, world: world, lineup: fam.lineupOf(world)}
		up := -1
		s, err := c.schedule(collective.AllReduce, 0, "tree", 0)
		require.NoError(t, err)
		for _, step := range s.Steps {
			for _, in := range step {
				if in.Code == collective.Send && in.Srcs[0].Space != collective.Out && in.Srcs[0].Chunk%2 == 0 {
					up = int(in.Peer)
				}
			}
		}
		require.Equal(t, trees[0].Up[r], up, "rank %d", r)
		for channel, ring := range rings {
			s, err := c.schedule(collective.AllGather, 0, "ring", channel)
			require.NoError(t, err)
			at := slices.Index(ring.Ranks, r)
			require.EqualValues(t, ring.Ranks[(at+1)%len(all)], s.Steps[0][0].Peer, "rank %d, channel %d", r, channel)
		}
	}
}

// TestProcessorsNearPort: who is to run near its RDMA port gets the processors of its NUMA node that it may use, or stays where it is.
func TestProcessorsNearPort(t *testing.T) {
	g := topology.Discover(topologytest.TwoSockets(), topology.Unknown[[]topology.GPUFacts]("none")).Graph()
	var all []int
	for n := range 16 {
		all = append(all, n)
	}
	require.Equal(t, all[:8], nearPort(g, "mlx5_0", 1, all))
	require.Equal(t, all[8:], nearPort(g, "mlx5_1", 1, all))
	require.Equal(t, []int{9}, nearPort(g, "mlx5_1", 1, []int{0, 9}))
	require.Equal(t, []int{0, 3}, nearPort(g, "mlx5_1", 1, []int{0, 3}))
	require.Empty(t, nearPort(g, "mlx5_1", 2, all))
	require.Empty(t, nearPort(g, "mlx5_10", 1, all))
}

func TestGPUsThatMustNotUseEachOther(t *testing.T) {
	g := withUUIDs(topology.Discover(topologytest.TwoSockets(), topology.Unknown[[]topology.GPUFacts]("none")).Graph())
	all := on(t, "x", g, "a", "b", "c", "d", "nosuch")
	refuse := func(world ...int) string {
		p, err := newPlaces(all)
		require.NoError(t, err)
		return (&family{places: p}).refuse(world)
	}
	require.Empty(t, refuse(0, 1))
	require.Empty(t, refuse(0, 2), "nobody said how far, and there is no other way")
	require.Empty(t, refuse(2, 3), "ACS makes it slow; the proof tells whether it works")
	require.Empty(t, refuse(0, 4), "not known: the driver tells")
	require.Empty(t, (&family{}).refuse([]int{0, 1}))
	require.Empty(t, refuse(0, 1, 2, 3, 4, 0))
	all[2].P2P = "pxb"
	require.Contains(t, refuse(0, 1, 2, 3, 4), "the GPUs of ranks 0 and 2")
	require.Empty(t, refuse(0, 1, 3))
	require.Equal(t, "the GPUs of ranks 0 and 2 must not use each other's memory: the GPUs are at SYS, and P2P reaches to PXB", refuse(0, 2))
	require.Contains(t, refuse(2, 3), "clear ACSCtl")
	require.Empty(t, refuse(0, 1))
	all[2].P2P = ""
	g.P2P = []topology.P2P{{A: g.GPUs()[0], B: g.GPUs()[1], Status: topology.P2PGPUNotSupported}}
	all = on(t, "x", g, "a", "b", "c", "d")
	require.Contains(t, refuse(0, 1), "GNS")
}

func TestGraphsTravel(t *testing.T) {
	for _, name := range []string{"topo-xml/h100x8-9nic-nvswitch.xml", "topo-xml/grace-c2c.xml", "topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt"} {
		g := graphOf(t, name)
		b, err := pack(g)
		require.NoError(t, err)
		require.Less(t, len(b), 4096)
		again, err := unpack(b)
		require.NoError(t, err)
		require.Equal(t, g.Digest(), again.Digest())
		twice, err := pack(again)
		require.NoError(t, err)
		require.Equal(t, b, twice)
		for cut := 0; cut < len(b); cut += 1 + len(b)/50 {
			if g, err := unpack(b[:cut]); err == nil {
				require.Nil(t, g)
				require.Zero(t, cut)
			}
		}
	}
	all := on(t, "x", graphOf(t, "topo-xml/grace-c2c.xml"), "", "")
	all[1].Graph = []byte("no such thing")
	_, err := newPlaces(all)
	require.ErrorContains(t, err, "rank 1 (x pid 0)")
}

func TestRanksThatChooseOtherwiseAreNamed(t *testing.T) {
	require.NoError(t, sameDigests([]uint64{5, 5, 5}))
	err := sameDigests([]uint64{5, 7, 5, 8})
	require.Equal(t, []int{1, 3}, culprits(err))
	require.ErrorContains(t, err, "ranks [1 3] choose otherwise than rank 0 by the same topologies")
	require.Equal(t, []int{1}, culprits(sameDigests([]uint64{5, 7})))

	// Whatever differs in a place shows.
	g := withUUIDs(graphOf(t, "topo-xml/h100x8-9nic-nvswitch.xml"))
	digest := func(all []hello) uint64 {
		p, err := newPlaces(all)
		require.NoError(t, err)
		return p.digest()
	}
	all := append(on(t, "x", g, "a", "b"), on(t, "y", g, "a", "b")...)
	want := digest(all)
	require.Equal(t, want, digest(slices.Clone(all)))
	for i, edit := range []func(h *hello){
		func(h *hello) { h.Boot = "z" }, func(h *hello) { h.GPU = "c" }, func(h *hello) { h.Ports = "=mlx5_0" }, func(h *hello) { h.Graph = nil }, func(h *hello) { h.GDR = "loc" },
	} {
		other := slices.Clone(all)
		edit(&other[1])
		require.NotEqual(t, want, digest(other), "%d", i)
	}
}

// FuzzHello: what a rank tells of itself is an error or something to choose by.
func FuzzHello(f *testing.F) {
	for _, name := range []string{"topo-xml/grace-c2c.xml", "topo-matrix/pairs4-nv3-4mlx.txt"} {
		file, err := os.Open("../topology/testdata/" + name)
		require.NoError(f, err)
		g, err := topology.Parse(file)
		require.NoError(f, err)
		require.NoError(f, file.Close())
		var b bytes.Buffer
		require.NoError(f, withUUIDs(g).WriteJSON(&b))
		f.Add([]byte(`{"Boot":"x","GPU":"b","Ports":"=mlx5_1","P2P":"sys","Processors":[0,1]}`), b.Bytes())
		f.Add([]byte(`{"Boot":"x"}`), append(bytes.Clone(b.Bytes()), strings.Repeat(" more", 4096)...))
		f.Add([]byte(`{"P2P":"far"}`), b.Bytes())
		f.Add([]byte(`{"Ports":"mlx5_1:x"}`), b.Bytes())
	}
	f.Fuzz(func(t *testing.T, text, graph []byte) {
		var h hello
		if json.Unmarshal(text, &h) != nil {
			return
		}
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.BestSpeed)
		require.NoError(t, err)
		_, err = w.Write(graph)
		require.NoError(t, errors.Join(err, w.Close()))
		for _, packed := range [][]byte{h.Graph, b.Bytes(), graph} {
			h.Graph = packed
			other := hello{Boot: "y", seat: seat{Graph: packed, GPU: "a"}}
			p, err := newPlaces([]hello{h, other, h})
			if err != nil {
				require.NotEmpty(t, err.Error())
				continue
			}
			again, err := newPlaces([]hello{h, other, h})
			require.NoError(t, err)
			require.Equal(t, p.digest(), again.digest())
			fam := &family{places: p}
			fam.refuse([]int{0, 1, 2})
			fam.lineupOf([]int{2, 0})
		}
	})
}
