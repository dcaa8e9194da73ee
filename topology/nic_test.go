package topology

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// pairs is the index of each GPU's port, -1 for none.
func pairs(g *Graph) []int {
	at := map[NodeID]int{NoNode: -1}
	for i, n := range g.Nets() {
		at[n] = i
	}
	var nets []int
	for _, c := range g.PairNICs(g.GPUs()) {
		nets = append(nets, at[c.Net])
	}
	return nets
}

func TestUC58_ClosestNIC(t *testing.T) {
	for file, want := range map[string][]int{
		"h100x8-9nic-reversed.txt":           {8, 7, 6, 5, 4, 3, 2, 1},
		"h20x8-5nic-shared.txt":              {1, 1, 2, 2, 3, 3, 4, 4},
		"pairs4-nv3-4mlx.txt":                {0, 1, 2, 3},
		"rtx4090x8-allsys-nic-near-gpu6.txt": {0, 1, 0, 1, 0, 1, 0, 1},
		"pciex8-allsys-4numa.txt":            {0, 1, 0, 1, 0, 1, 0, 1},
		"v100x4-oldformat-mlx-column.txt":    {0, 0, 0, 0},
		"pciex8-nonic-pairs.txt":             {-1, -1, -1, -1, -1, -1, -1, -1},
	} {
		require.Equal(t, want, pairs(parseMatrix(t, "testdata/topo-matrix/"+file)), file)
	}
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	require.Equal(t, []int{8, 7, 6, 5, 4, 3, 2, 1}, pairs(g))
	for _, c := range g.PairNICs(g.GPUs()) {
		require.Equal(t, PathPIX, c.Path.Type)
		require.Equal(t, 48.0, c.Path.GBs)
		require.NotEmpty(t, c.Reasons)
	}
	_, dropped := g.UsableNets()
	require.Equal(t, []Reason{"mlx5_0: 25000 Mbit/s is less than half of the fastest's 400000"}, dropped)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, pairs(parseXML(t, "testdata/topo-xml/cloud-4-bridges-classes-only.xml")))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, pairs(parseXML(t, "testdata/topo-xml/cloud-8-bridges-one-pair-each.xml")))
}

func TestUC58_DGXA100WithNPS4(t *testing.T) {
	// What the report doesn't show is made up: GPU6 and 7 as the others, NIC4 and 5 the Ethernet card.
	var rows [][]string
	for line := range strings.Lines(string(read(t, "testdata/dgxa100-partial-nps4.tsv"))) {
		if strings.HasPrefix(line, "GPU") {
			rows = append(rows, strings.Split(strings.TrimSpace(line), "\t"))
		}
	}
	require.Len(t, rows, 8)
	rows[6], rows[7] = []string{"GPU6", "NIC8,NIC9", "80-95,208-223", "5"}, []string{"GPU7", "NIC8,NIC9", "80-95,208-223", "5"}
	var b strings.Builder
	for i := range 8 {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	for i := range 10 {
		fmt.Fprintf(&b, "\tNIC%d", i)
	}
	b.WriteString("\tCPU Affinity\tNUMA Affinity\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "GPU%d", i)
		for j := range 8 {
			b.WriteString(map[bool]string{true: "\tX", false: "\tNV12"}[i == j])
		}
		for j := range 10 {
			b.WriteString(map[bool]string{true: "\tPXB", false: "\tSYS"}[strings.Contains(","+r[1]+",", fmt.Sprintf(",NIC%d,", j))])
		}
		fmt.Fprintf(&b, "\t%s\t%s\n", r[2], r[3])
	}
	for i := range 10 {
		fmt.Fprintf(&b, "NIC%d\t\t\t\t\t\t\t\t", i)
		for j := range 10 {
			b.WriteString("\t" + map[bool]string{true: "X", false: map[bool]string{true: "PIX", false: "SYS"}[i/2 == j/2]}[i == j])
		}
		b.WriteString("\n")
	}
	g, err := ParseMatrix(strings.NewReader(b.String()))
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2, 3, 6, 7, 8, 9}, pairs(g))
	cpu := g.Nodes[g.CPUOf(g.GPUs()[0])].CPU
	require.Equal(t, 3, cpu.NUMA)
	require.Equal(t, "48-63,176-191", cpu.CPUs.String())
}

func TestNICsThatDoNotServe(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	f, err := ParseFilter("^=mlx5_8,mlx5_7")
	require.NoError(t, err)
	choices := g.Restrict(f).PairNICs(g.GPUs())
	require.Empty(t, g.Nodes[g.Nets()[8]].Net.Down, "g itself stays as it was")
	for i, c := range choices[:2] {
		require.Equal(t, PathPXN, c.Path.Type, "GPU%d has no port of its own", i)
		require.NotEqual(t, NoNode, c.Via)
		require.NotContains(t, []string{"mlx5_8", "mlx5_7", "mlx5_0"}, g.Name(c.Net))
	}
	require.NotEqual(t, choices[0].Net, choices[1].Net)
	for _, n := range g.Nets() {
		g.Nodes[n].Net.Down = "the port is DOWN"
	}
	for _, c := range g.PairNICs(g.GPUs()) {
		require.Equal(t, NoNode, c.Net)
		require.Contains(t, c.Reasons, Reason("mlx5_3: the port is DOWN"))
	}
}

func TestPortsWithoutRDMA(t *testing.T) {
	sockets := parseXML(t, "testdata/topo-xml/vm-2core-nogpu.xml")
	on := func(host string) Place {
		return Place{Host: host, Graph: sockets, GPU: NoNode, NIC: NICChoice{Net: sockets.Nets()[0]}}
	}
	require.Equal(t, OverTCP, Between(on("a"), on("b"), DefaultLevels()).Kind, "NCCL's port 0 is one of sockets")

	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	dir := tr.Device(0, "0x020000", "0x1d0f", "0000:01:00.0")
	tr.RDMA(dir, "rdmap0", "Unspecified", "4: ACTIVE", "100 Gb/sec")
	iwarp := tr.RDMA(tr.Device(0, "0x020000", "0x8086", "0000:04:00.0"), "irdma0", "Ethernet", "4: ACTIVE", "100 Gb/sec")
	tr.Put(path.Dir(path.Dir(iwarp)), "node_type", "4: RNIC")
	card := tr.Device(0, "0x020000", "0x1d0f", "0000:02:00.0")
	tr.NetDevice(card, "ens5", "up", "100000", "9001")
	tr.NetDevice(tr.Device(0, "0x020000", "0x1d0f", "0000:03:00.0"), "ens6", "down", "-1", "9001")
	h, g := discover(t, tr)
	use, dropped := g.UsableNets()
	require.Len(t, use, 1)
	require.Equal(t, "ens5", g.Name(use[0]))
	require.Equal(t, []Reason{`rdmap0: rdmap0 port 1 has the link layer "Unspecified", which gccl doesn't speak`, `irdma0: irdma0 port 1 has the link layer "iWARP", which gccl doesn't speak`, "ens6: ens6 is down"}, dropped)
	ports, _ := ChoosePorts(h.RDMA.Or(nil), Filter{})
	require.Empty(t, ports)
}

// TestSpread compares the busiest port with the least that any assignment has.
func TestSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		gpus, nets := 1+r.IntN(5), 1+r.IntN(4)
		options := make([][]NICChoice, gpus)
		for i := range options {
			for n := range nets {
				if r.IntN(2) == 0 {
					options[i] = append(options[i], NICChoice{Net: NodeID(n)})
				}
			}
		}
		load := map[NodeID]int{}
		busiest := 0
		for i, o := range spread(options) {
			if len(options[i]) == 0 {
				require.Equal(t, -1, o)
				continue
			}
			net := options[i][o].Net
			load[net]++
			busiest = max(busiest, load[net])
		}
		require.Equal(t, leastBusy(options, map[NodeID]int{}, 0), busiest, "%v", options)
	}
}

func leastBusy(options [][]NICChoice, load map[NodeID]int, worst int) int {
	if len(options) == 0 {
		return worst
	}
	if len(options[0]) == 0 {
		return leastBusy(options[1:], load, worst)
	}
	best := 1 << 30
	for _, o := range options[0] {
		load[o.Net]++
		best = min(best, leastBusy(options[1:], load, max(worst, load[o.Net])))
		load[o.Net]--
	}
	return best
}
