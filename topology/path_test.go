package topology

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPathTypes(t *testing.T) {
	h100 := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	g, nics := h100.GPUs(), h100.Nets()
	rocm := parseXML(t, "testdata/topo-xml/rocm-nps-xgmi-lonely-nic.xml")
	r := rocm.GPUs()
	grace := parseXML(t, "testdata/topo-xml/grace-c2c.xml")
	cube := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	c := cube.GPUs()
	pairs := parseMatrix(t, "testdata/topo-matrix/pciex8-nonic-pairs.txt")
	p := pairs.GPUs()
	tests := []struct {
		name string
		g    *Graph
		a, b NodeID
		want PathType
		gbs  float64
		hops int
	}{
		{"itself", h100, g[0], g[0], PathLOC, 5000, 0},
		{"NVSwitch", h100, g[0], g[7], PathNVL, 18 * 20.6, 2},
		{"own card", h100, g[0], nics[8], PathPIX, 48, 3},
		{"card of the same socket", h100, g[0], nics[7], PathPHB, 48, 5},
		{"card of the other socket", h100, g[0], nics[1], PathSYS, 22, 6},
		{"the slow card's port", h100, g[7], nics[0], PathPHB, 25.0 / 8, 4},
		{"xGMI", rocm, r[0], r[1], PathNVL, 24, 1},
		{"xGMI through another GPU", rocm, r[0], r[3], PathNVB, 24, 2},
		{"AMD sockets, PCIe of unknown speed", rocm, r[0], rocm.Nets()[0], PathSYS, 12, 5},
		{"two ports of a card", rocm, rocm.Nets()[0], rocm.Nets()[1], PathLOC, 25, 2},
		{"C2C", grace, grace.GPUs()[0], grace.CPUs()[0], PathC2C, 447.12, 1},
		{"C2C then PCIe", grace, grace.GPUs()[0], grace.Nets()[0], PathP2C, 48, 3},
		{"C2C from the card", grace, grace.Nets()[0], grace.GPUs()[0], PathP2C, 48, 3},
		{"NV2", cube, c[0], c[6], PathNVL, 40, 1},
		{"NV1, NV1", cube, c[0], c[4], PathNVB, 20, 2},
		{"PIX", pairs, p[0], p[1], PathPIX, 12, 2},
		{"NODE is PHB", pairs, p[0], p[2], PathPHB, 12, 4},
		{"SYS", pairs, p[0], p[7], PathSYS, 6, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.g.Path(tt.a, tt.b)
			require.Equal(t, tt.want, got.Type, "%v", got)
			require.InDelta(t, tt.gbs, got.GBs, 1e-9)
			require.Len(t, got.Nodes, tt.hops+1)
			require.Equal(t, tt.a, got.Nodes[0])
			require.Equal(t, tt.b, got.Nodes[tt.hops])
			back := tt.g.Path(tt.b, tt.a)
			require.Equal(t, tt.want, back.Type)
			require.InDelta(t, tt.gbs, back.GBs, 1e-9)
		})
	}
	require.Equal(t, PathSYS, h100.PCIePath(g[0], g[7]).Type)
	require.InDelta(t, 22/1.2, h100.PCIePath(g[0], g[7]).GBs, 1e-9, "between GPUs over an Intel CPU")
	require.Equal(t, Path{Type: PathDIS}, h100.Path(g[0], NodeID(len(h100.Nodes))))
	require.Equal(t, Path{Type: PathDIS}, h100.Path(NoNode, g[0]))
}

func TestNVLinkToACPU(t *testing.T) {
	g, err := ParseXML(strings.NewReader(`<system><cpu numaid="8" arch="ppc64"><pci busid="0035:03:00.0" class="0x030200">
		<gpu dev="0" sm="70"><nvlink target="0006:00:00.0" count="3" tclass="0x068001"/></gpu></pci></cpu></system>`))
	require.NoError(t, err)
	p := g.Path(g.GPUs()[0], g.CPUs()[0])
	require.Equal(t, PathNVL, p.Type)
	require.Equal(t, 60.0, p.GBs)
	require.Equal(t, PathPHB, g.PCIePath(g.GPUs()[0], g.CPUs()[0]).Type)
}

// TestPathsAreTheSameBothWays over every pair of every graph: type, bandwidth and length.
func TestPathsAreTheSameBothWays(t *testing.T) {
	var graphs []*Graph
	for _, f := range xmlFiles(t) {
		graphs = append(graphs, parseXML(t, f))
	}
	for _, f := range matrixFiles(t) {
		graphs = append(graphs, parseMatrix(t, f))
	}
	for _, g := range graphs {
		all := make([][]Path, len(g.Nodes))
		for a := range g.Nodes {
			all[a] = g.Paths(NodeID(a))
		}
		for a := range all {
			for b := range all {
				there, back := all[a][b], all[b][a]
				require.Equal(t, there.Type, back.Type, "%s %s", g.Name(NodeID(a)), g.Name(NodeID(b)))
				require.InDelta(t, there.GBs, back.GBs, 1e-9)
				require.Len(t, back.Nodes, len(there.Nodes))
			}
		}
	}
}

func TestUC63_Masks(t *testing.T) {
	set, err := ParseCPUMask("5555,55555555,55555555")
	require.NoError(t, err)
	require.Equal(t, 40, set.Len())
	require.True(t, set.Has(0) && !set.Has(1) && set.Has(78) && !set.Has(80))
	set, err = ParseCPUMask("c0c0")
	require.NoError(t, err)
	require.Equal(t, "6-7,14-15", set.String())

	tests := []struct{ mask, list string }{
		{"0000c0c0", "6-7,14-15"},
		{"00000001,00000000", "32"},
		{"0000ffff,ffffffff", "0-47"},
		{"00000001,00000000,00000001", "0,64"},
		{"00000000", ""},
	}
	for _, tt := range tests {
		a, err := ParseCPUMask(tt.mask)
		require.NoError(t, err)
		b, err := ParseCPUList(tt.list)
		require.NoError(t, err)
		require.Equal(t, a, b, tt.mask)
		require.Equal(t, tt.list, a.String())
		require.Equal(t, tt.mask, a.Mask())
	}
	for _, bad := range []string{"", "g", "100000000", "1,,1", "-1"} {
		_, err := ParseCPUMask(bad)
		require.ErrorContains(t, err, "CPU mask", bad)
	}
	for _, bad := range []string{"x", "3-1", "0-8192", "1,,2", "-1", "99999999999999999999"} {
		_, err := ParseCPUList(bad)
		require.ErrorContains(t, err, "CPU list", bad)
	}
}

func TestUC63_RomeNPS4(t *testing.T) {
	like := parseXML(t, "testdata/topo-xml/rocm-nps-xgmi-lonely-nic.xml")
	cpus := map[int]string{}
	for _, id := range like.CPUs() {
		cpus[like.Nodes[id].CPU.NUMA] = like.Nodes[id].CPU.CPUs.String()
	}
	require.Equal(t, map[int]string{0: "0-15", 2: "32-47", 3: "48-63", 4: "64-79", 6: "96-111"}, cpus)
	require.Equal(t, 4, like.Nodes[like.CPUOf(like.Nets()[0])].CPU.NUMA, "a node without GPU")
	for _, gpu := range like.GPUs() {
		require.Equal(t, PathSYS, like.Path(gpu, like.Nets()[0]).Type)
	}

	g := parseXML(t, recorded(t, "topo-xml/amd-epyc-rome-nps4-8gpu-xgmi.xml"))
	nodes := map[int]string{}
	for _, id := range g.CPUs() {
		nodes[g.Nodes[id].CPU.NUMA] = g.Nodes[id].CPU.CPUs.String()
	}
	require.Equal(t, "16-31", nodes[1])
	net := g.Nets()[0]
	require.Equal(t, 4, g.Nodes[g.CPUOf(net)].CPU.NUMA)
	for _, gpu := range g.GPUs() {
		require.Equal(t, PathSYS, g.Path(gpu, net).Type)
	}
}

func TestBusIDs(t *testing.T) {
	for in, want := range map[string]string{
		"0000:17:00.0": "0000:17:00.0", "00000000:3B:00.0": "0000:3b:00.0", "17:00.1": "0000:17:00.1", "FFFF:FF:01.0": "ffff:ff:01.0",
		"10000:e1:00.0": "10000:e1:00.0", " d2a8:00:00.0 ": "d2a8:00:00.0",
	} {
		got, err := ParseBusID(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"", "17", "17:00", "0:0:0", "0:0:0:0.0", "x:00:00.0", "0000:100:00.0", "0000:17:00.", "1ffffffff:00:00.0", "+1:00:00.0"} {
		_, err := ParseBusID(bad)
		require.ErrorContains(t, err, "want one like", bad)
	}
}

func TestPCIBandwidth(t *testing.T) {
	for _, tt := range []struct {
		gts   float64
		width int
		gbs   float64
	}{{8, 16, 12}, {16, 16, 24}, {32, 16, 48}, {64, 16, 96}, {2.5, 16, 3}, {5, 8, 3}, {0, 0, 12}, {16, 0, 24}, {8, 1, 0.75}} {
		require.InDelta(t, tt.gbs, pciGBs(&Bus{GTs: tt.gts, Width: tt.width}), 1e-9, "%v x%d", tt.gts, tt.width)
	}
}
