package topology

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// A port of software, which is on no bus, comes into question where no port of hardware is up, or where the filter leaves no other: however
// fast it says that it is.
func TestPortsOfHardwareGoBeforeThoseOfSoftware(t *testing.T) {
	host := func(rate, hardware string) *Graph {
		tr := topologytest.TwoSockets()
		tr.GID(tr.RDMA("sys/devices/virtual", "rxe0", "Ethernet", "4: ACTIVE", rate), 0, "::ffff:192.0.2.1", "RoCE v2", "eth0")
		if hardware != "" {
			for _, dir := range []string{"sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0/infiniband/mlx5_0", "sys/devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0/0000:a2:02.0/0000:a5:00.0/infiniband/mlx5_1"} {
				require.Contains(t, tr.MapFS, dir+"/ports/1/state")
				tr.Put(dir+"/ports/1", "state", hardware)
			}
		}
		_, g := discover(t, tr)
		return g
	}
	restrict := func(g *Graph, filter string) *Graph {
		f, err := ParseFilter(filter)
		require.NoError(t, err)
		return g.Restrict(f)
	}
	const same, faster = "200 Gb/sec (2X NDR)", "800 Gb/sec (8X NDR)"
	for _, tt := range []struct {
		name string
		g    *Graph
		want []string // of CPU 0, of CPU 15
	}{
		{"as fast", host(same, ""), []string{"mlx5_0", "mlx5_1"}},
		{"faster", host(faster, ""), []string{"mlx5_0", "mlx5_1"}},
		{"hardware down", host(same, "1: DOWN"), []string{"rxe0", "rxe0"}},
		{"named", restrict(host(same, ""), "=rxe0"), []string{"rxe0", "rxe0"}},
		{"named with others", restrict(host(same, ""), "mlx5_1,rxe0"), []string{"mlx5_1", "mlx5_1"}},
		{"not excluded", restrict(host(same, ""), "^mlx5_0"), []string{"mlx5_1", "mlx5_1"}},
	} {
		for i, cpus := range []string{"0", "15"} {
			c := tt.g.HostNIC(cpuList(t, cpus))
			require.Equal(t, tt.want[i], tt.g.Name(c.Net), "%s: %v", tt.name, c.Reasons)
		}
		for i, c := range tt.g.PairNICs(tt.g.GPUs()) {
			require.Equal(t, tt.want[i/2], tt.g.Name(c.Net), "%s: %v", tt.name, c.Reasons)
		}
	}
	tr := topologytest.NewTree() // of one NUMA node, which both are on
	tr.CPUs(4, 1)
	tr.RDMA(tr.Device(0, "0x020700", "0x15b3", "0000:01:00.0"), "mlx5_0", "InfiniBand", "4: ACTIVE", same)
	tr.RDMA("sys/devices/virtual", "rxe0", "InfiniBand", "4: ACTIVE", same)
	_, one := discover(t, tr)
	require.Equal(t, "mlx5_0", one.Name(one.HostNIC(nil).Net))
	require.Contains(t, host(same, "").HostNIC(nil).Reasons, Reason("rxe0: it is software, and others are hardware"))
}
