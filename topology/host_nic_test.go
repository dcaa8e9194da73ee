package topology

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func cpuList(t *testing.T, list string) CPUSet {
	set, err := ParseCPUList(list)
	require.NoError(t, err)
	return set
}

// A process without a GPU takes the port near its CPUs, and says of every other port why not that.
func TestHostNICIsNearTheCPUs(t *testing.T) {
	_, g := discover(t, topologytest.TwoSockets()) // CPUs 0-7 and mlx5_0, CPUs 8-15 and mlx5_1
	for _, tt := range []struct{ cpus, want, why, other string }{
		{"0-7", "mlx5_0", "mlx5_0 is at PHB, 24 GB/s; CPU0 has 8 of the 8 CPUs that the process may use", "not taken: mlx5_1 is at SYS, 22 GB/s; CPU1 has 0 of the 8 CPUs that the process may use"},
		{"12-15", "mlx5_1", "mlx5_1 is at PHB, 24 GB/s; CPU1 has 4 of the 4 CPUs that the process may use", "not taken: mlx5_0 is at SYS, 22 GB/s; CPU0 has 0 of the 4 CPUs that the process may use"},
		{"7-15", "mlx5_1", "mlx5_1 is at PHB, 24 GB/s; CPU1 has 8 of the 9 CPUs that the process may use", "not taken: mlx5_0 is at PHB, 24 GB/s; CPU0 has 1 of the 9 CPUs that the process may use"},
		{"0-15", "mlx5_0", "mlx5_0 is at PHB, 24 GB/s; CPU0 has 8 of the 16 CPUs that the process may use", "not taken: mlx5_1 is at PHB, 24 GB/s; CPU1 has 8 of the 16 CPUs that the process may use"},
		{"", "mlx5_0", "mlx5_0 is at PHB, 24 GB/s; which CPUs the process may use is not known", "not taken: mlx5_1 is at PHB, 24 GB/s; which CPUs the process may use is not known"},
		{"64", "mlx5_0", "mlx5_0 is at PHB, 24 GB/s; CPU0 has 0 of the 1 CPUs that the process may use", "not taken: mlx5_1 is at PHB, 24 GB/s; CPU1 has 0 of the 1 CPUs that the process may use"},
	} {
		c := g.HostNIC(cpuList(t, tt.cpus))
		require.Equal(t, tt.want, g.Name(c.Net), tt.cpus)
		require.Equal(t, []Reason{Reason(tt.why), Reason(tt.other)}, c.Reasons, tt.cpus)
	}
	slot := topologytest.TwoSockets() // a narrower one, for the first card
	slot.Put("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0", "max_link_width", "4")
	_, narrow := discover(t, slot)
	require.Equal(t, "mlx5_1", narrow.Name(narrow.HostNIC(cpuList(t, "0-15")).Net), "of equally close ones the faster")

	f, err := ParseFilter("=mlx5_1")
	require.NoError(t, err)
	far := g.Restrict(f).HostNIC(cpuList(t, "0"))
	require.Equal(t, "mlx5_1", g.Name(far.Net))
	require.Equal(t, PathSYS, far.Path.Type)
	require.Equal(t, []Reason{"mlx5_1 is at SYS, 22 GB/s; CPU1 has 0 of the 1 CPUs that the process may use", "mlx5_0: the filter =mlx5_1 does not take it"}, far.Reasons)
	f, err = ParseFilter("=nosuch")
	require.NoError(t, err)
	none := g.Restrict(f).HostNIC(nil)
	require.Equal(t, NoNode, none.Net)
	require.Contains(t, fmt.Sprint(none.Reasons), "the filter =nosuch does not take it")
}

// On recorded machines: 8 GPUs and 9 ports, the storage port slow; and ports of a matrix, which says nothing of CPUs.
func TestHostNICOfRecordedMachines(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	for _, cpu := range g.CPUs() {
		c := g.HostNIC(g.Nodes[cpu].CPU.CPUs)
		require.Equal(t, cpu, g.CPUOf(c.Net), "%v", c.Reasons)
		require.Equal(t, PathPHB, c.Path.Type)
		require.Contains(t, c.Reasons, Reason("mlx5_0: 25000 Mbit/s is less than half of the fastest's 400000"))
		require.Len(t, c.Reasons, len(g.Nets()), "each port has its reason")
	}
	m := parseMatrix(t, "testdata/topo-matrix/h100x8-9nic-reversed.txt")
	c := m.HostNIC(cpuList(t, "0-3"))
	require.NotEqual(t, NoNode, c.Net)
	require.Len(t, c.Reasons, len(m.Nets()))
}

// Ranks that only the network joins must be on one: of the ports near the CPUs those count that are of the sort and subnet that most is to
// be had of, whichever host asks.
func TestHostNICKeepsToOneSubnet(t *testing.T) {
	host := func(ports ...func(tr topologytest.Tree, dir, name, dev string)) *Graph {
		tr := topologytest.NewTree()
		tr.CPUs(8, 2)
		tr.Put("proc/net", "route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"+
			"eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"+
			"eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"+
			"eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"+
			"eth2\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"+
			"eth2\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n"+
			"eth9\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"+
			"eth0\t0100000A\t01FF000A\t0003\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"+
			"eth3\tzz\t00000000\t0001")
		for i, port := range ports {
			dev := fmt.Sprintf("eth%d", i)
			port(tr, tr.Device(i%2, "0x020700", "0x15b3", fmt.Sprintf("0000:%d1:00.0", i)), fmt.Sprintf("mlx5_%d", i), dev)
		}
		_, g := discover(t, tr)
		return g
	}
	roce := func(gid string) func(topologytest.Tree, string, string, string) {
		return func(tr topologytest.Tree, dir, name, dev string) {
			port := tr.RDMA(dir, name, "Ethernet", "4: ACTIVE", "200 Gb/sec")
			tr.GID(port, 0, "fe80::1", "RoCE v2", dev)
			tr.GID(port, 1, gid, "RoCE v2", dev)
			tr.NetDevice(dir, dev, "up", "200000", "4200")
		}
	}
	ib := func(prefix, rate string) func(topologytest.Tree, string, string, string) {
		return func(tr topologytest.Tree, dir, name, dev string) {
			tr.Put(tr.RDMA(dir, name, "InfiniBand", "4: ACTIVE", rate), "gids/0", prefix+":0:0:0:1")
		}
	}
	const fast, slow = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"
	for _, tt := range []struct {
		name    string
		g       *Graph
		subnets []string
		want    [2]string // of CPUs of either node
		why     string
	}{
		{"one InfiniBand", host(ib("fe80:0:0:0", fast), ib("fe80:0:0:0", fast)), []string{"fe80::/64", "fe80::/64"}, [2]string{"mlx5_0", "mlx5_1"}, ""},
		{"two fabrics, the second faster", host(ib("fe80:0:0:0", slow), ib("fec0:0:0:7", fast)), []string{"fe80::/64", "fec0:0:0:7::/64"}, [2]string{"mlx5_1", "mlx5_1"},
			"mlx5_0 is in the subnet fe80::/64, and ranks meet in fec0:0:0:7::/64"},
		{"InfiniBand before RoCE", host(roce("::ffff:10.0.0.1"), ib("fe80:0:0:0", slow)), []string{"10.0.0.0/16", "fe80::/64"}, [2]string{"mlx5_1", "mlx5_1"},
			"mlx5_0 is roce, and ranks meet over infiniband"},
		{"rails", host(roce("::ffff:10.0.0.1"), roce("::ffff:10.0.1.1")), []string{"10.0.0.0/16", "10.0.1.0/24"}, [2]string{"mlx5_0", "mlx5_0"},
			"mlx5_1 is in the subnet 10.0.1.0/24, and ranks meet in 10.0.0.0/16"},
		{"most of one", host(roce("::ffff:10.0.0.1"), roce("::ffff:10.0.1.1"), roce("::ffff:10.0.1.2")), []string{"10.0.0.0/16", "10.0.1.0/24", "10.0.1.0/24"}, [2]string{"mlx5_2", "mlx5_1"},
			"mlx5_0 is in the subnet 10.0.0.0/16, and ranks meet in 10.0.1.0/24"},
		{"rails the other way round", host(roce("fd00:0:0:6::1"), roce("fd00:0:0:5::1")), []string{"fd00:0:0:6::/64", "fd00:0:0:5::/64"}, [2]string{"mlx5_1", "mlx5_1"},
			"mlx5_0 is in the subnet fd00:0:0:6::/64, and ranks meet in fd00:0:0:5::/64"},
		{"one is not known", host(roce("fe80::2"), roce("::ffff:10.0.1.1")), []string{"", "10.0.1.0/24"}, [2]string{"mlx5_1", "mlx5_1"},
			"mlx5_0 is in the subnet (unknown), and ranks meet in 10.0.1.0/24"},
		{"IPv6", host(roce("fd00:0:0:5::1"), roce("fd00:0:0:5::2")), []string{"fd00:0:0:5::/64", "fd00:0:0:5::/64"}, [2]string{"mlx5_0", "mlx5_1"}, ""},
		{"nothing known", host(roce("::ffff:203.0.113.1"), roce("::ffff:203.0.113.2")), []string{"", ""}, [2]string{"mlx5_0", "mlx5_1"}, ""},
		{"link-local alone", host(roce("fe80::2"), roce("fe80::3")), []string{"", ""}, [2]string{"mlx5_0", "mlx5_1"}, ""},
	} {
		for i, id := range tt.g.Nets() {
			require.Equal(t, tt.subnets[i], tt.g.Nodes[id].Net.Subnet, tt.name)
		}
		for node, want := range tt.want {
			c := tt.g.HostNIC(tt.g.Nodes[tt.g.CPUs()[node]].CPU.CPUs)
			require.Equal(t, want, tt.g.Name(c.Net), "%s: %v", tt.name, c.Reasons)
			require.Len(t, c.Reasons, len(tt.g.Nets()), "each port has its reason")
			if tt.why != "" {
				require.Contains(t, c.Reasons, Reason(tt.why), tt.name)
			}
		}
	}
}
