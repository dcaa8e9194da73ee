package nvml

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestUC72_FabricStates(t *testing.T) {
	for _, c := range []struct {
		f    fabric
		want topology.Fabric
		says string
	}{
		{fabric{state: 0, cluster: [16]byte{1}}, topology.Fabric{State: "not supported"}, ""},
		{fabric{state: 1}, topology.Fabric{State: "not started", Cluster: zeroCluster}, "start nvidia-fabricmanager"},
		{fabric{state: 2}, topology.Fabric{State: "in progress", Cluster: zeroCluster}, "start nvidia-fabricmanager"},
		{fabric{state: 3, status: "Unknown Error"}, topology.Fabric{State: "completed", Status: "Unknown Error", Cluster: zeroCluster}, `registration ended with "Unknown Error"`},
		{fabric{state: 3, clique: 4}, topology.Fabric{State: "completed", Cluster: zeroCluster, Clique: 4}, ""},
		{fabric{state: 9}, topology.Fabric{State: "state 9", Cluster: zeroCluster}, "not ready (state 9)"},
	} {
		got := c.f.fact()
		require.Equal(t, c.want, got)
		if c.says == "" {
			require.Empty(t, got.Ready())
		} else {
			require.Contains(t, got.Ready(), c.says)
		}
		require.False(t, got.Joins(got), "a cluster of zeros is one host's")
	}
}

const zeroCluster = "00000000-0000-0000-0000-000000000000"

func TestUC68_EveryNVMLStatus(t *testing.T) {
	for n, want := range []topology.P2PStatus{"OK", "CNS", "GNS", "TNS", "DR", "NS", "U", "U"} {
		require.Equal(t, want, status(n))
	}
	require.Equal(t, topology.P2PUnknown, status(-1))
	require.Equal(t, topology.P2POK, worse("OK", "OK"))
	require.Equal(t, topology.P2PUnknown, worse("OK", "U"))
	require.Equal(t, topology.P2PUnknown, worse("U", "OK"))
	require.Equal(t, topology.P2PGPUNotSupported, worse("U", "GNS"))
	require.Equal(t, topology.P2PGPUNotSupported, worse("OK", "GNS"))
	require.Equal(t, topology.P2PTopologyNotSupported, worse("TNS", "OK"))
}

func TestBusIDsAndLinks(t *testing.T) {
	_, err := factsOf([]device{{bus: "nonsense"}})
	require.ErrorContains(t, err, "GPU 0")
	facts, err := factsOf([]device{{bus: "00010000:0A:00.0", links: []link{{"", switchEnd}, {"", switchEnd}, {"", 255}, {"00000000:13:00.0", gpuEnd}}}})
	require.NoError(t, err)
	require.Equal(t, "10000:0a:00.0", facts[0].Bus)
	require.Equal(t, []topology.NVLinkFacts{{Target: hiddenSwitch, Class: "0x068000", Count: 2}, {Target: "0000:13:00.0", Class: "0x030200", Count: 1}}, facts[0].NVLinks)
}

// TestTwoH200 has what two H200 in a virtual machine say of themselves: their switches are hidden, and belong to no other host.
func TestTwoH200(t *testing.T) {
	var devices []device
	for i, bus := range []string{"00000000:00:06.0", "00000000:00:07.0"} {
		d := device{bus: bus, name: "NVIDIA H200", major: 9, memory: 150754820096, fabric: &fabric{state: 3}, peers: map[int][2]int{1 - i: {0, 0}}}
		for range 18 {
			d.links = append(d.links, link{"FFFFFFFF:FF:FF.0", switchEnd})
		}
		devices = append(devices, d)
	}
	facts, err := factsOf(devices)
	require.NoError(t, err)
	tree := topologytest.NewTree()
	tree.CPUs(32, 1)
	tree.Device(0, "0x030200", "0x10de", "0000:00:06.0")
	tree.Device(0, "0x030200", "0x10de", "0000:00:07.0")
	g := topology.Discover(tree, topology.Known(facts)).Graph()
	require.NoError(t, g.Check())
	gpus := g.GPUs()
	require.Len(t, gpus, 2)
	c := g.Transport(gpus[0], gpus[1], topology.DefaultLevels())
	require.Equal(t, topology.OverNVLink, c.Kind, c.Reasons)
	require.InDelta(t, 18*20.6, c.Path.GBs, 1e-9)
	require.Empty(t, facts[0].Fabric.Ready())
	require.False(t, facts[0].Fabric.Joins(facts[1].Fabric), "no NVLink to other hosts")
}
