package topology

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestUC66_ACSOfThePortsAbove(t *testing.T) {
	_, g := discover(t, topologytest.TwoSockets())
	gpus := g.GPUs()
	c := g.Transport(gpus[0], gpus[1], DefaultLevels())
	require.Equal(t, OverP2P, c.Kind)
	require.Contains(t, c.Reasons[2], "the IOMMU translates")
	c = g.Transport(gpus[2], gpus[3], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind)
	require.Contains(t, c.Reasons[0], "[0000:a2:00.0 0000:a2:01.0]", "the ports above the GPUs, and no other")
	require.Contains(t, c.Reasons[0], "clear ACSCtl")
	c = g.Transport(gpus[0], gpus[2], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind)
	require.Equal(t, []Reason{"the GPUs are at SYS, and P2P reaches to PXB"}, c.Reasons)
	require.Equal(t, OverP2P, g.Transport(gpus[0], gpus[2], Levels{P2P: PathSYS}).Kind)
	tr := topologytest.TwoSockets()
	tr.Bridge(0, 0x1d, "0000:10:01.0")
	_, above := discover(t, tr)
	require.Equal(t, OverP2P, above.Transport(above.GPUs()[0], above.GPUs()[1], DefaultLevels()).Kind, "the root port above the switch is not on the way")

	tr = topologytest.TwoSockets() // a GPU that says of itself what a port would be blamed for
	for _, gpu := range gpus[:2] {
		dir, _ := tr.ReadLink("sys/bus/pci/devices/" + g.Nodes[gpu].Bus.ID)
		require.NotEmpty(t, dir)
		tr.MapFS[path.Join("sys/bus/pci/devices", dir, "config")] = &fstest.MapFile{Data: topologytest.ConfigSpace(0x1d, 4096)}
	}
	_, own := discover(t, tr)
	require.Equal(t, OverP2P, own.Transport(own.GPUs()[0], own.GPUs()[1], DefaultLevels()).Kind, "no port above the GPUs redirects")

	unreadable := parseMatrix(t, "testdata/topo-matrix/pciex8-nonic-pairs.txt")
	c = unreadable.Transport(unreadable.GPUs()[0], unreadable.GPUs()[1], DefaultLevels())
	require.Equal(t, OverP2P, c.Kind)
	require.Contains(t, c.Reasons[2], "caution: ACS of the ports above")
}

func TestUC68_NoTrialWhereTheDriverSaysNo(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/rtx5090x2-phb.txt")
	gpus := g.GPUs()
	require.Equal(t, OverP2P, g.Transport(gpus[0], gpus[1], Levels{P2P: PathSYS}).Kind)
	require.NoError(t, g.ReadP2P(bytes.NewReader(read(t, "testdata/topo-matrix/rtx5090x2-p2p-rw-GNS.txt"))))
	c := g.Transport(gpus[0], gpus[1], Levels{P2P: PathSYS})
	require.Equal(t, OverSHM, c.Kind)
	require.Contains(t, c.Reasons[0], "GNS")
}

func TestTransportOverNVLink(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	require.Equal(t, OverNVLink, g.Transport(g.GPUs()[0], g.GPUs()[7], DefaultLevels()).Kind)
	cube := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	c := cube.Transport(cube.GPUs()[0], cube.GPUs()[4], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind, "NVLink through another GPU is no memory of one's own")
	require.Equal(t, PathSYS, c.Path.Type)
}

func TestTransportBetweenHosts(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	nics := g.PairNICs(g.GPUs())
	place := func(i int) Place { return Place{Host: strconv.Itoa(i), Graph: g, GPU: nics[i].GPU, NIC: nics[i]} }
	twin := place(0)
	twin.Host = "another"
	c := Between(place(0), twin, DefaultLevels())
	require.Equal(t, OverGDR, c.Kind)
	require.Equal(t, []Reason{"mlx5_8 is at PIX, mlx5_8 at PIX"}, c.Reasons)

	far := place(1)
	far.NIC.Net = g.Nets()[1]
	far.NIC.Path = g.Path(far.GPU, far.NIC.Net)
	c = Between(place(0), far, DefaultLevels())
	require.Equal(t, OverRDMA, c.Kind)
	require.Contains(t, c.Reasons[0], "mlx5_1 is at SYS from GPU1")
	require.Equal(t, OverGDR, Between(place(0), far, Levels{GDR: PathSYS}).Kind)

	onHost := place(0)
	onHost.GPU = NoNode
	require.Equal(t, OverRDMA, Between(onHost, twin, DefaultLevels()).Kind)

	other := parseXML(t, "testdata/topo-xml/vm-2core-nogpu.xml")
	other.Nodes[other.Nets()[0]].Net.Kind = Ethernet
	c = Between(place(0), Place{Host: "other", Graph: other, GPU: NoNode, NIC: NICChoice{Net: other.Nets()[0]}}, DefaultLevels())
	require.Equal(t, OverTCP, c.Kind)
	require.Equal(t, []Reason{"eth0 has no RDMA"}, c.Reasons)
	c = Between(place(0), Place{Host: "other", Graph: other, GPU: NoNode, NIC: NICChoice{Net: NoNode}}, DefaultLevels())
	require.Equal(t, OverTCP, c.Kind)
}

// Between ports of different subnets RDMA may work, through a router; where it does not, the reasons say what to look at.
func TestTransportBetweenSubnets(t *testing.T) {
	place := func(host, subnet string) Place {
		g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
		n := g.PairNICs(g.GPUs())[0]
		g.Nodes[n.Net].Net.Subnet = subnet
		return Place{Host: host, Graph: g, GPU: n.GPU, NIC: n}
	}
	const want = Reason("caution: mlx5_8 of the one is in the subnet 10.0.0.0/24, mlx5_8 of the other in 10.0.1.0/24: without a router between them RDMA fails, and TCP takes its place")
	c := Between(place("a", "10.0.0.0/24"), place("b", "10.0.1.0/24"), DefaultLevels())
	require.Equal(t, OverGDR, c.Kind)
	require.Equal(t, want, c.Reasons[len(c.Reasons)-1])
	onHost := place("a", "10.0.0.0/24")
	onHost.GPU = NoNode
	c = Between(onHost, place("b", "10.0.1.0/24"), DefaultLevels())
	require.Equal(t, OverRDMA, c.Kind)
	require.Equal(t, want, c.Reasons[len(c.Reasons)-1])
	for _, other := range []string{"10.0.0.0/24", ""} {
		require.NotContains(t, fmt.Sprint(Between(place("a", "10.0.0.0/24"), place("b", other), DefaultLevels()).Reasons), "subnet")
	}
}

func TestUC72_FabricBetweenHosts(t *testing.T) {
	a, b := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml"), parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	fabric := func(cluster string) {
		for _, g := range []*Graph{a, b} {
			g.Nodes[g.GPUs()[0]].GPU.Fabric = Fabric{State: "completed", Status: "success", Cluster: cluster}
		}
	}
	place := func(host string, g *Graph) Place {
		n := g.PairNICs(g.GPUs())[0]
		return Place{Host: host, Graph: g, GPU: n.GPU, NIC: n}
	}
	fabric("5f1f4be2-5a0e-4a3c-9c5f-0a0b0c0d0e0f")
	require.Equal(t, OverNVLink, Between(place("a", a), place("b", b), DefaultLevels()).Kind)
	fabric("00000000-0000-0000-0000-000000000000")
	require.Equal(t, OverGDR, Between(place("a", a), place("b", b), DefaultLevels()).Kind, "a zero UUID is no multi-node NVLink")
}

func TestUC72_FabricOfOneHost(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	gpus := g.GPUs()
	g.Nodes[gpus[3]].GPU.Fabric = Fabric{State: "in progress"}
	c := g.Transport(gpus[0], gpus[3], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind)
	require.Contains(t, c.Reasons[0], "start nvidia-fabricmanager")
	require.Equal(t, OverNVLink, g.Transport(gpus[0], gpus[1], DefaultLevels()).Kind)
}

func TestUC69_HowNICsReachGPUMemory(t *testing.T) {
	no := Unknown[bool]("there is no libcuda.so.1")
	for _, tt := range []struct {
		dmabuf Fact[bool]
		peer   Fact[string]
		want   GDRWay
		why    string
	}{
		{Known(true), Known("nvidia_peermem"), GDRByDMABuf, "DMA-BUF"},
		{Known(true), Known(""), GDRByDMABuf, "DMA-BUF"},
		{Known(false), Known("nvidia_peermem"), GDRByPeerMem, "nvidia_peermem is loaded"},
		{no, Known("nv_mem"), GDRByPeerMem, "nv_mem is loaded"},
		{Known(false), Known(""), NoGDR, "modprobe nvidia_peermem"},
		{no, Unknown[string]("may not read /proc/modules"), NoGDR, "may not read /proc/modules"},
	} {
		way, why := ChooseGDR(tt.dmabuf, tt.peer)
		require.Equal(t, tt.want, way)
		require.Contains(t, why[len(why)-1], tt.why)
	}
}

func TestUC39_Pinning(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/rocm-nps-xgmi-lonely-nic.xml")
	set := func(s string) CPUSet {
		c, err := ParseCPUList(s)
		require.NoError(t, err)
		return c
	}
	gpu := g.GPUs()[2] // on NUMA node 3, CPUs 48-63
	pin := g.Pin(gpu, Known(set("0-127")))
	require.Equal(t, "48-63", pin.CPUs.String())
	pin = g.Pin(gpu, Known(set("50-70")))
	require.Equal(t, "50-63", pin.CPUs.String())
	pin = g.Pin(gpu, Known(set("1")))
	require.Equal(t, "1", pin.CPUs.String(), "what is allowed, not what is near")
	require.Contains(t, pin.Reasons[1], "none of them, only 1")
	pin = g.Pin(g.Nets()[0], Known(set("64-79")))
	require.Equal(t, "64-79", pin.CPUs.String())
	pin = g.Pin(gpu, Unknown[CPUSet]("no /proc"))
	require.Equal(t, "48-63", pin.CPUs.String())
}
