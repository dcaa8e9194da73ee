package topology

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestUC54_FileMergedWithTheHost(t *testing.T) {
	// A VM: all devices flat on NUMA node 0, as the hypervisor shows them.
	vm := topologytest.NewTree()
	vm.CPUs(64, 1)
	for _, d := range []string{"0001", "0002", "0005"} {
		vm.Device(-1, "0x030200", "0x10de", d+":00:00.0")
		card := vm.Device(-1, "0x020700", "0x15b3", "0"+"1"+d[2:]+":00:00.0")
		vm.RDMA(card, "mlx5_"+d[3:], "InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)")
	}
	_, host := discover(t, vm)
	require.Equal(t, PathPHB, host.Path(host.ByBus("0001:00:00.0"), host.ByBus("0101:00:00.0")).Type)

	file := parseXML(t, "testdata/topo-xml/cloud-4-bridges-classes-only.xml")
	g, why := Merge(file, host)
	require.NoError(t, g.Check())
	require.Len(t, g.GPUs(), 3)
	require.Len(t, g.Nets(), 3)
	require.Equal(t, PathPIX, g.Path(g.ByBus("0001:00:00.0"), g.ByBus("0101:00:00.0")).Type)
	require.Equal(t, PathPIX, g.Path(g.ByBus("0001:00:00.0"), g.ByBus("0002:00:00.0")).Type)
	require.Equal(t, PathSYS, g.Path(g.ByBus("0001:00:00.0"), g.ByBus("0005:00:00.0")).Type)
	require.Len(t, why, 10, "of 8 GPUs and 8 cards the host has 6")
	require.Equal(t, "0x10de", g.Nodes[g.ByBus("0001:00:00.0")].Bus.Vendor)
	require.Equal(t, "mlx5_1", g.Nodes[g.Nets()[0]].Net.Name)
	require.Len(t, g.CPUs(), 4)
	require.Equal(t, []int{0, 1, 2}, pairs(g))
}

func TestMergeKeepsWhatTheFileDoesNotName(t *testing.T) {
	_, host := discover(t, topologytest.TwoSockets())
	file, err := ParseXML(strings.NewReader(`<system><cpu numaid="0"><pci busid="0000:a3:00.0" class="0x030200" link_speed="16 GT/s" link_width="8"/></cpu></system>`))
	require.NoError(t, err)
	g, why := Merge(file, host)
	require.NoError(t, g.Check())
	require.Len(t, g.GPUs(), 4)
	require.Len(t, g.Nets(), 2)
	require.Len(t, why, 5)
	moved := g.ByBus("0000:a3:00.0")
	require.Equal(t, 0, g.Nodes[g.CPUOf(moved)].CPU.NUMA)
	require.Equal(t, 8, g.Nodes[moved].Bus.Width)
	require.Equal(t, 1, g.Nodes[g.CPUOf(g.ByBus("0000:a4:00.0"))].CPU.NUMA)
	require.Equal(t, "0-7", g.Nodes[g.CPUs()[0]].CPU.CPUs.String())
}

func TestMergeIsTheSameForTheSame(t *testing.T) {
	for _, f := range xmlFiles(t) {
		g := parseXML(t, f)
		again, why := Merge(g, g)
		require.NoError(t, again.Check(), f)
		require.Len(t, again.GPUs(), len(g.GPUs()), f)
		require.Len(t, again.Nets(), len(g.Nets()), f)
		for i, a := range g.GPUs() {
			for j, b := range g.GPUs() {
				require.Equal(t, g.Path(a, b).Type, again.Path(again.GPUs()[i], again.GPUs()[j]).Type, f)
			}
		}
		for _, w := range why {
			require.True(t, len(g.GPUs()) == 0 && strings.Contains(string(w), "ignored") || strings.Contains(string(w), "a virtual NIC") ||
				strings.Contains(string(w), "doesn't name NIC,"), "%s: %s", f, w)
		}
	}
}

func TestMergeTakesNVLinksOfTheFile(t *testing.T) {
	file := parseXML(t, "testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	host := *file // as PCI alone shows it
	host.NVLinks, host.Nodes = nil, slices.Clone(file.Nodes)
	for i := range host.Nodes {
		host.Nodes[i].GPU = nil
	}
	g, _ := Merge(file, &host)
	require.NoError(t, g.Check())
	require.Equal(t, PathNVL, g.Path(g.GPUs()[0], g.GPUs()[7]).Type)

	cube := parseXML(t, "testdata/topo-xml/rocm-nps-xgmi-lonely-nic.xml")
	host = *cube
	host.NVLinks, host.Nodes = nil, slices.Clone(cube.Nodes)
	g, _ = Merge(cube, &host)
	require.Equal(t, PathNVL, g.Path(g.GPUs()[0], g.GPUs()[1]).Type)
	g, _ = Merge(file, file)
	require.Len(t, g.NVLinks, len(file.NVLinks), "the host's, and not both")
}

func TestUC62_FileOfAnotherMachine(t *testing.T) {
	file := parseXML(t, "testdata/topo-xml/rocm-nps-xgmi-lonely-nic.xml") // 4 GPUs
	host := parseXML(t, "testdata/topo-xml/vm-2core-nogpu.xml")           // none
	g, why := Merge(file, host)
	require.Equal(t, host, g)
	require.Equal(t, []Reason{"the topology file names no GPU or network card of this host: it is ignored"}, why)
}

func TestParseTellsTheFormsApart(t *testing.T) {
	want := parseXML(t, "testdata/topo-xml/grace-c2c.xml")
	for _, text := range [][]byte{
		read(t, "testdata/topo-xml/grace-c2c.xml"), write(t, want.WriteJSON), append([]byte("\ufeff\r\n"), write(t, want.WriteXML)...),
	} {
		g, err := Parse(bytes.NewReader(text))
		require.NoError(t, err)
		require.Equal(t, byPlace(want), byPlace(g))
	}
	g, err := Parse(bytes.NewReader(read(t, "testdata/topo-matrix/rtx5090x2-phb.txt")))
	require.NoError(t, err)
	require.Len(t, g.GPUs(), 2)
	_, err = Parse(iotest.ErrReader(errors.New("is a directory")))
	require.EqualError(t, err, "read topology: is a directory")
	_, err = Parse(strings.NewReader(""))
	require.ErrorContains(t, err, "the file is empty")
	_, err = Parse(strings.NewReader(" \n"))
	require.ErrorContains(t, err, "empty")
	_, err = Parse(strings.NewReader(`{"nodes":[{"type":"GPU","parent":7}]}`))
	require.ErrorContains(t, err, "node 0 of the topology")
	for _, bad := range []string{
		`{"nodes":[{"type":"CPU","parent":-1}]}`, `{"nodes":[{"type":"XPU","parent":-1}]}`,
		`{"nodes":[{"type":"CPU","parent":-1,"cpu":{"numa":0}},{"type":"GPU","parent":0}]}`,
		`{"nodes":[{"type":"CPU","parent":-1,"cpu":{"numa":0}},{"type":"GPU","parent":0,"bus":{"id":"1:0.0"}}]}`,
		`{"nodes":[],"nvlinks":[{"from":0,"to":1}]}`, `{"nodes":[],"p2p":[{"a":0,"b":1}]}`, `{`,
	} {
		_, err = Parse(strings.NewReader(bad))
		require.Error(t, err, bad)
	}
}

// FuzzJSON: whatever Check passes can be planned with.
func FuzzJSON(f *testing.F) {
	for _, name := range []string{"grace-c2c.xml", "rocm-nps-xgmi-lonely-nic.xml", "vm-2core-nogpu.xml"} {
		f.Add(write(f, parseXML(f, "testdata/topo-xml/"+name).WriteJSON))
	}
	for _, bad := range []string{"", "{", `{"nodes":[{"type":"XPU","parent":-1}]}`, `{"nodes":[],"p2p":[{"a":0,"b":1}]}`, `{"nodes":[],"nvlinks":[{"from":0,"to":1}]}`, `{"nodes":[{"type":"CPU","parent":0}]}`} {
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseJSON(bytes.NewReader(b))
		if err != nil || len(g.Nodes) > 100 {
			return
		}
		merged, _ := Merge(g, g)
		require.NoError(t, merged.Check())
		meaning(t, write(t, g.WriteXML)) // it is XML
		write(t, g.WriteMatrix)
		_, err = Trees([]Local{AllOf(g), AllOf(g)}, 0)
		if err != nil {
			require.ErrorIs(t, err, ErrNoGPU)
		}
		gpus := g.GPUs()
		nics := g.PairNICs(gpus)
		for i, a := range gpus {
			g.Transport(a, gpus[0], DefaultLevels())
			Between(Place{Host: "a", Graph: g, GPU: a, NIC: nics[i]}, Place{Host: "b", Graph: g, GPU: gpus[0], NIC: nics[0]}, DefaultLevels())
			g.Pin(a, Unknown[CPUSet]("none"))
		}
	})
}

func TestExtraAttributesAreNoWayIn(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/grace-c2c.xml")
	g.Nodes[g.CPUs()[0]].CPU.Extra = map[string]string{`x="1"/><cpu y`: "2", "arch": "other", "0": "3", "": "4", "good": `"<>&`}
	again, err := ParseXML(bytes.NewReader(write(t, g.WriteXML)))
	require.NoError(t, err)
	require.Len(t, again.CPUs(), 1)
	require.Equal(t, "arm64", again.Nodes[again.CPUs()[0]].CPU.Arch)
	require.Equal(t, map[string]string{"good": `"<>&`}, again.Nodes[again.CPUs()[0]].CPU.Extra)
	again, err = ParseXML(strings.NewReader(`<system xmlns:x="y"><cpu numaid="0" x:0a="1" x:arch="z"/></system>`))
	require.NoError(t, err)
	require.Empty(t, again.Nodes[0].CPU.Extra)
	require.Empty(t, again.Nodes[0].CPU.Arch)
}

func TestUC52_DemandOfALargeWorld(t *testing.T) {
	d := Demand{Peers: 5600 - 1, QPsPerPeer: 4, Entries: 512, Bytes: 4 << 20}
	limits := RDMALimits{MaxQP: Known(131072), MaxCQE: Known(4194303), MaxMR: Unknown[int]("not asked")}
	got := d.Totals(limits, 8)
	require.Equal(t, int64(22396), got.QPs)
	require.Equal(t, int64(22396*512), got.CQEs)
	require.Equal(t, int64(5599*4<<20), got.Bytes)
	require.Len(t, got.Exceed, 2)
	require.Contains(t, got.Exceed[0], "179168 queue pairs")
	require.Contains(t, got.Exceed[1], "11466752 completion entries")
	require.Empty(t, Demand{Peers: 15, QPsPerPeer: 4, Entries: 512}.Totals(limits, 8).Exceed)
}
