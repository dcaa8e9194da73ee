package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// gpuPlaces are ranks on the GPUs of a host, in their order.
func gpuPlaces(host string, g *Graph) (places []Place) {
	for _, c := range g.PairNICs(g.GPUs()) {
		places = append(places, Place{Host: host, Graph: g, GPU: c.GPU, CPU: NoNode, NIC: c})
	}
	return places
}

func TestBetweenOnOneHost(t *testing.T) {
	_, g := discover(t, topologytest.TwoSockets())
	places := gpuPlaces("h", g)
	require.Equal(t, OverP2P, Between(places[0], places[1], DefaultLevels()).Kind)
	c := Between(places[0], places[2], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind)
	require.Equal(t, []Reason{"the GPUs are at SYS, and P2P reaches to PXB"}, c.Reasons)
	shared := Between(places[0], places[0], DefaultLevels())
	require.Equal(t, OverP2P, shared.Kind)
	require.Equal(t, PathLOC, shared.Path.Type)
	for _, other := range []Place{{Host: "h", GPU: NoNode}, {Host: "h", Graph: g, GPU: NoNode}} {
		require.Equal(t, OverSHM, Between(places[0], other, DefaultLevels()).Kind)
		require.Equal(t, OverSHM, Between(other, places[0], DefaultLevels()).Kind)
	}
	// A container that sees the GPUs of one socket, and its own graph of the host.
	tr := topologytest.TwoSockets()
	for name := range tr.MapFS {
		if len(name) > 40 && name[len("sys/devices/pci0000:")] == 'a' {
			delete(tr.MapFS, name)
		}
	}
	for _, bus := range []string{"0000:a3:00.0", "0000:a4:00.0"} {
		delete(tr.MapFS, "sys/bus/pci/devices/"+bus)
	}
	_, part := discover(t, tr)
	require.Len(t, part.GPUs(), 2)
	inside := gpuPlaces("h", part)
	require.Equal(t, OverP2P, Between(places[0], inside[1], DefaultLevels()).Kind, "the same host by bus id")
	require.Equal(t, OverP2P, Between(inside[1], places[0], DefaultLevels()).Kind)
	c = Between(inside[0], places[2], DefaultLevels())
	require.Equal(t, OverSHM, c.Kind)
	require.Contains(t, c.Reasons[0], "does not see the GPU 0000:a3:00.0")
	require.Equal(t, OverTCP, Between(Place{Host: "a", GPU: NoNode}, Place{Host: "b", GPU: NoNode}, DefaultLevels()).Kind)
}

func TestPlacesOfProcesses(t *testing.T) {
	h, g := discover(t, topologytest.TwoSockets())
	cpus := func(list string) CPUSet {
		set, err := ParseCPUList(list)
		require.NoError(t, err)
		return set
	}
	name := func(id NodeID) string { return g.Name(id) }
	require.Equal(t, "CPU0", name(g.NUMA(cpus("0-7"))))
	require.Equal(t, "CPU1", name(g.NUMA(cpus("9"))))
	require.Equal(t, NoNode, g.NUMA(cpus("7-8")))
	require.Equal(t, NoNode, g.NUMA(nil))

	h.GPUs = Known([]GPUFacts{{Bus: "0000:a4:00.0", UUID: "GPU-b"}, {Bus: "0000:13:00.0", Dev: 1, UUID: "GPU-a"}})
	driven := h.Graph()
	require.Equal(t, "0000:a4:00.0", driven.Nodes[driven.ByUUID("GPU-b")].Bus.ID)
	require.Equal(t, NoNode, driven.ByUUID("GPU-c"))
	require.Equal(t, NoNode, g.ByUUID(""), "GPUs without a driver have none")
}

func TestOrder(t *testing.T) {
	_, two := discover(t, topologytest.TwoSockets())
	cube := parseMatrix(t, "testdata/topo-matrix/v100x8-dgx1v-hybrid-cube-mesh.txt")
	host := func(name string, numa int) Place {
		p := Place{Host: name, Graph: two, GPU: NoNode, CPU: NoNode}
		if numa >= 0 {
			p.CPU = two.CPUs()[numa]
		}
		return p
	}
	for _, tt := range []struct {
		name   string
		places []Place
		want   []int
	}{
		{"nobody", nil, nil},
		{"nothing known", []Place{{GPU: NoNode}, {GPU: NoNode}}, []int{0, 1}},
		{"hosts in turn", []Place{host("b", -1), host("a", -1), host("b", -1), host("a", -1), host("c", -1)}, []int{0, 2, 1, 3, 4}},
		{"sockets in turn", []Place{host("a", 0), host("a", 1), host("a", 0), host("a", 1)}, []int{0, 2, 1, 3}},
		{"both", []Place{host("a", 1), host("b", 1), host("a", 0), host("b", 0), host("a", 1)}, []int{2, 0, 4, 3, 1}},
		{"NVLinks of one host", gpuPlaces("a", cube), []int{0, 3, 2, 1, 7, 4, 5, 6}},
		{"a rank without GPU", append(gpuPlaces("a", cube), Place{Host: "a", Graph: cube, GPU: NoNode, CPU: NoNode}), []int{0, 1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		require.Equal(t, [][]int{tt.want}, Orders(tt.places, 1), tt.name)
	}
	// Rails: every host is entered at a GPU of the first rail's port.
	h100 := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	var places []Place
	for i := range 4 {
		places = append(places, gpuPlaces(fmt.Sprint(i), h100)...)
	}
	orders := Orders(places, 4)
	rings, err := Rings(locals(h100, h100, h100, h100), 4)
	require.NoError(t, err)
	require.Len(t, orders, 4)
	for c, ring := range rings {
		require.Equal(t, ring.Ranks, orders[c])
	}
}

// TestOrdersOfChannels: several ranks of a host share the work between hosts, and each channel keeps to one port of every host.
func TestOrdersOfChannels(t *testing.T) {
	_, two := discover(t, topologytest.TwoSockets())
	place := func(host string, numa int) Place {
		p := Place{Host: host, Graph: two, GPU: NoNode, CPU: two.CPUs()[numa]}
		p.NIC = two.HostNIC(two.Nodes[p.CPU].CPU.CPUs)
		return p
	}
	plain := func(host string) Place {
		return Place{Host: host, GPU: NoNode, CPU: NoNode, NIC: NICChoice{Net: NoNode}}
	}
	require.NotEqual(t, place("a", 0).NIC.Net, place("a", 1).NIC.Net, "a port a socket")
	for _, tt := range []struct {
		name   string
		places []Place
		most   int
		want   [][]int
	}{
		{"one host", []Place{plain("a"), plain("a"), plain("a")}, 4, [][]int{{0, 1, 2}}},
		{"one rank each", []Place{plain("a"), plain("b")}, 4, [][]int{{0, 1}}},
		{"two each", []Place{plain("a"), plain("b"), plain("a"), plain("b")}, 4, [][]int{{0, 2, 1, 3}, {2, 0, 3, 1}}},
		{"not more than asked for", []Place{plain("a"), plain("a"), plain("a"), plain("b"), plain("b"), plain("b")}, 2,
			[][]int{{0, 1, 2, 3, 4, 5}, {1, 2, 0, 4, 5, 3}}},
		{"as the smallest", []Place{plain("a"), plain("a"), plain("a"), plain("b"), plain("b")}, 4, [][]int{{0, 1, 2, 3, 4}, {1, 2, 0, 4, 3}}},
		{"a rail a socket", []Place{place("a", 0), place("a", 0), place("a", 1), place("a", 1), place("b", 1), place("b", 1), place("b", 0), place("b", 0)}, 4,
			[][]int{{1, 2, 3, 0, 7, 4, 5, 6}, {3, 0, 1, 2, 5, 6, 7, 4}, {0, 1, 2, 3, 6, 7, 4, 5}, {2, 3, 0, 1, 4, 5, 6, 7}}},
	} {
		require.Equal(t, tt.want, Orders(tt.places, tt.most), tt.name)
	}
	// In the first two channels of the last case whoever crosses between hosts does so by one port on both.
	last := []Place{place("a", 0), place("a", 0), place("a", 1), place("a", 1), place("b", 0), place("b", 0), place("b", 1), place("b", 1)}
	for c, order := range Orders(last, 2) {
		for k, r := range order {
			next := order[(k+1)%len(order)]
			if last[r].Host != last[next].Host {
				require.Equal(t, two.HostNIC(two.Nodes[two.CPUs()[c]].CPU.CPUs).Net, last[r].NIC.Net)
				require.Equal(t, last[r].NIC.Net, last[next].NIC.Net)
			}
		}
	}
}

// TestOrderIsOneOfAllRanks: whatever the places are, each rank stands in the order once, hosts are not torn apart, and everybody gets
// the same.
func TestOrderIsOneOfAllRanks(t *testing.T) {
	_, two := discover(t, topologytest.TwoSockets())
	r := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		places := make([]Place, 1+r.IntN(20))
		for i := range places {
			p := Place{Host: fmt.Sprint(r.IntN(4)), GPU: NoNode, CPU: NoNode}
			if r.IntN(8) > 0 {
				p.Graph = two
				if r.IntN(2) == 0 {
					p.GPU = two.GPUs()[r.IntN(4)]
				} else if r.IntN(2) == 0 {
					p.CPU = two.CPUs()[r.IntN(2)]
				}
			}
			places[i] = p
		}
		orders := Orders(places, 1+r.IntN(4))
		require.Equal(t, orders, Orders(slices.Clone(places), len(orders)))
		for _, order := range orders {
			seen := map[int]bool{}
			changes, hosts := 0, map[string]bool{}
			for k, rank := range order {
				require.False(t, seen[rank])
				seen[rank], hosts[places[rank].Host] = true, true
				require.Equal(t, places[orders[0][k]].Host, places[rank].Host, "all channels have the hosts in the same places")
				if k > 0 && places[rank].Host != places[order[k-1]].Host {
					changes++
				}
			}
			require.Len(t, order, len(places))
			require.Equal(t, len(hosts)-1, changes)
		}
	}
}

func TestOrderOfManyHosts(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	var places []Place
	for i := range 128 {
		places = append(places, gpuPlaces(fmt.Sprint(i), g)...)
	}
	begin := time.Now()
	require.Len(t, Orders(places, 4)[3], 1024)
	require.Less(t, time.Since(begin), 5*time.Second)
	t.Logf("1024 ranks on 128 hosts after %v", time.Since(begin))
}
