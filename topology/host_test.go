package topology

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestDiscoverSwitches(t *testing.T) {
	h, g := discover(t, topologytest.TwoSockets())
	gpus, nets := g.GPUs(), g.Nets()
	require.Len(t, gpus, 4)
	require.Len(t, nets, 2)
	require.Len(t, g.of(PCI), 2)
	require.Equal(t, Path{PathPIX, 24, []NodeID{gpus[0], g.Nodes[gpus[0]].Parent, g.card(nets[0]), nets[0]}}.Type, g.Path(gpus[0], nets[0]).Type)
	require.Equal(t, 24.0, g.Path(gpus[0], nets[0]).GBs, "the card's 16 GT/s")
	require.Equal(t, PathSYS, g.Path(gpus[0], nets[1]).Type)
	require.Equal(t, 48.0, g.Path(gpus[0], gpus[1]).GBs, "at its most, not what it idles at")
	require.Equal(t, &Bus{
		ID: "0000:13:00.0", Class: "0x030200", Vendor: "0x10de", Device: "0x0001", SubsystemVendor: "0x0002", SubsystemDevice: "0x0003",
		GTs: 32, Width: 16, Bridge: "pci0000:10", Port: "0000:12:00.0", ACS: ACSOff,
	}, g.Nodes[gpus[0]].Bus)
	require.Equal(t, ACSRedirect, g.Nodes[gpus[2]].Bus.ACS)
	require.Equal(t, IOMMUTranslate, g.IOMMU)
	require.Equal(t, &NetDetails{Name: "mlx5_0", Dev: 0, Port: 1, Mbps: 200000, GUID: "0200:0000:0000:0001", GDR: true, Kind: RoCE}, g.Nodes[nets[0]].Net)
	require.Equal(t, "0-7", g.Nodes[g.CPUOf(gpus[0])].CPU.CPUs.String())
	require.Equal(t, 143, g.Nodes[g.CPUOf(gpus[0])].CPU.Model)
	port := h.RDMA.Or(nil)[0].Ports[0]
	require.Equal(t, 4096, port.MTU.Or(0))
	require.Equal(t, "eth0", port.NetDevice.Or(""))
	require.Equal(t, 2, port.TableSize)
	require.Equal(t, int64(1024<<10), h.CPU.Nodes.Or(nil)[0].Bytes.Or(0))
	require.Equal(t, []int{10, 21}, h.CPU.Nodes.Or(nil)[0].Distances.Or(nil))
	require.Equal(t, "", h.PeerMemory.Or("?"))
}

// TestDiscoverDepths: a switch is every second port above a device, counted from the device.
func TestDiscoverDepths(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(4, 1)
	ports := []string{"0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0", "0000:14:00.0"}
	for i := range ports {
		tr.Bridge(0, 0, ports[:i+1]...)
	}
	tr.Bridge(0, 0, ports[0], ports[1], "0000:12:01.0")
	tr.Bridge(0, 0, "0000:20:00.0")
	tr.Bridge(0, 0, "0000:20:00.0", "0000:21:00.0")
	tr.Device(0, "0x030200", "0x10de", append(ports[:5:5], "0000:15:00.0")...)             // two switches below each other
	tr.Device(0, "0x030200", "0x10de", append(ports[:3:3], "0000:16:00.0")...)             // one, beside the second
	tr.Device(0, "0x030200", "0x10de", ports[0], ports[1], "0000:12:01.0", "0000:17:00.0") // one
	tr.Device(0, "0x030200", "0x10de", "0000:20:00.0", "0000:22:00.0")                     // at a root port
	tr.Device(0, "0x030200", "0x10de", "0000:20:00.0", "0000:21:00.0", "0000:23:00.0")     // two ports and no root port: a VM
	tr.Device(0, "0x030200", "0x10de", "0000:30:00.0")                                     // none
	_, g := discover(t, tr)
	above := func(bus string) string {
		parent := g.Nodes[g.Nodes[g.ByBus(bus)].Parent]
		if parent.Type == CPU {
			return "CPU"
		}
		return parent.Bus.ID
	}
	for bus, want := range map[string]string{
		"0000:15:00.0": "0000:13:00.0", "0000:13:00.0": "0000:11:00.0", "0000:11:00.0": "CPU", "0000:16:00.0": "0000:11:00.0",
		"0000:17:00.0": "0000:11:00.0", "0000:22:00.0": "CPU", "0000:23:00.0": "0000:20:00.0", "0000:30:00.0": "CPU",
	} {
		require.Equal(t, want, above(bus), bus)
	}
	path := func(a, b string) PathType { return g.Path(g.ByBus(a), g.ByBus(b)).Type }
	require.Equal(t, PathPXB, path("0000:15:00.0", "0000:16:00.0"))
	require.Equal(t, PathPIX, path("0000:16:00.0", "0000:17:00.0"))
	require.Equal(t, PathPHB, path("0000:17:00.0", "0000:22:00.0"))
}

func TestHostAsJSON(t *testing.T) {
	h, g := discover(t, topologytest.TwoSockets())
	b, err := json.Marshal(h)
	require.NoError(t, err)
	var again Host
	require.NoError(t, json.Unmarshal(b, &again))
	require.Equal(t, g, again.Graph())
	require.Contains(t, string(b), `"quota":{"unknown":"there is no CPU controller below /sys/fs/cgroup"}`)
	require.Equal(t, "no GPU driver was asked", again.GPUs.Why())
}

func TestDiscoverWithDriver(t *testing.T) {
	nvlink := func(count int, class, target string) []NVLinkFacts {
		return []NVLinkFacts{{Target: target, Class: class, Count: count}}
	}
	gpus := []GPUFacts{
		{Bus: "00000000:A3:00.0", Dev: 0, SM: 90, NVLinks: nvlink(18, "0x068000", "0000:05:00.0"), P2P: map[string]P2PStatus{"0000:13:00.0": P2POK}},
		{Bus: "00000000:13:00.0", Dev: 1, SM: 90, NVLinks: nvlink(18, "0x068000", "0000:05:00.0")},
		{Bus: "00000000:14:00.0", Dev: 2, SM: 90, NVLinks: nvlink(4, "0x030200", "0000:13:00.0")},
	}
	g := Discover(topologytest.TwoSockets(), Known(gpus)).Graph()
	require.NoError(t, g.Check())
	ids := g.GPUs()
	require.Len(t, ids, 3, "a GPU that the driver hides is not ours")
	require.Equal(t, "0000:a3:00.0", g.Nodes[ids[0]].Bus.ID)
	require.Equal(t, PathNVL, g.Path(ids[0], ids[1]).Type)
	require.InDelta(t, 18*20.6, g.Path(ids[0], ids[1]).GBs, 1e-9)
	require.InDelta(t, 4*20.6, g.Path(ids[1], ids[2]).GBs, 1e-9)
	require.False(t, g.Nodes[ids[0]].GPU.GDR)
	gpus[0].DMABuf = Known(true)
	g = Discover(topologytest.TwoSockets(), Known(gpus)).Graph()
	require.True(t, g.Nodes[g.GPUs()[0]].GPU.GDR)
	require.False(t, g.Nodes[g.GPUs()[1]].GPU.GDR)

	g = Discover(fstest.MapFS{}, Known(gpus)).Graph()
	require.NoError(t, g.Check())
	require.Len(t, g.GPUs(), 3, "/sys is hidden, but the driver isn't")
	require.Equal(t, PathNVL, g.Path(g.GPUs()[0], g.GPUs()[1]).Type)
}

func TestUC63_NodesWithoutCPUs(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(8, 1)
	for n := 1; n < 9; n++ { // a Grace Hopper's GPU memory
		tr.Put("sys/devices/system/node/node"+string(rune('0'+n)), "cpulist", "")
	}
	tr.Device(1, "0x030200", "0x10de", "0000:01:00.0")
	h, g := discover(t, tr)
	require.Len(t, h.CPU.Nodes.Or(nil), 9)
	require.Len(t, g.CPUs(), 2, "nodes without CPUs and devices are left out")
	pin := g.Pin(g.GPUs()[0], Unknown[CPUSet]("not asked"))
	require.Equal(t, "0-7", pin.CPUs.String())
}

func TestUC63_ManyNodesAndDomains(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(72, 36)
	tr.Device(35, "0x030200", "0x10de", "0000:e1:00.0")
	tr.Device(7, "0x038000", "0x1002", "d2a8:00:00.0")
	_, g := discover(t, tr)
	require.Len(t, g.CPUs(), 36)
	require.Equal(t, 7, g.Nodes[g.CPUOf(g.ByBus("d2a8:00:00.0"))].CPU.NUMA)
	require.Equal(t, "70-71", g.Nodes[g.CPUOf(g.ByBus("0000:e1:00.0"))].CPU.CPUs.String())
}

func TestUC65_NothingThere(t *testing.T) {
	for name, root := range map[string]fs.FS{"an empty folder": fstest.MapFS{}, "no folder": os.DirFS(t.TempDir() + "/none")} {
		h, g := discover(t, root)
		require.Len(t, g.Nodes, 1, name)
		require.Contains(t, h.PCI.Why(), "there is no /sys/bus/pci/devices", name)
		require.Contains(t, h.RDMA.Why(), "there is no /sys/class", name)
		require.False(t, h.CPU.Allowed().known, name)
		require.NotEmpty(t, h.CPU.Nodes.Why())
		require.NotEmpty(t, h.IOMMU.Why())
	}
}

func TestUC65_NoNUMANode(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 0)
	tr.Put("proc", "cpuinfo", "vendor_id : AuthenticAMD")
	card := tr.Device(-1, "0x020000", "0x1af4", "0000:00:03.0")
	tr.NetDevice(card+"/virtio2", "eth0", "up", "-1", "1500")
	h, g := discover(t, tr)
	require.Contains(t, h.PCI.Or(nil)[0].NUMA.Why(), "-1")
	require.Len(t, g.Nodes, 3)
	require.Equal(t, "0-1", g.Nodes[g.CPUs()[0]].CPU.CPUs.String())
	require.Equal(t, "eth0", g.Name(g.Nets()[0]))
	require.Equal(t, "none", strings.TrimSpace(mapOr(h.RDMA, "none", "some")))

	tr.CPUs(8, 2)
	_, g = discover(t, tr)
	require.Equal(t, -1, g.Nodes[g.CPUOf(g.Nets()[0])].CPU.NUMA, "nobody knows where it is: far from all")
}

func mapOr(f Fact[[]RDMAFacts], none, some string) string {
	if len(f.Or(nil)) == 0 && f.Why() == "" {
		return none
	}
	return some
}

// TestDiscoverHere reads the machine that the test runs on.
func TestDiscoverHere(t *testing.T) {
	h, g := discover(t, os.DirFS("/"))
	if allowed, ok := h.CPU.Allowed().Get(); ok {
		require.Positive(t, allowed.Len())
	}
	require.NotEmpty(t, g.CPUs())
	_, err := json.Marshal(h)
	require.NoError(t, err)
}

// TestDiscoverUnreadable lets every single file of a host be missing, garbage or unreadable, one after the other.
func TestDiscoverUnreadable(t *testing.T) {
	whole := topologytest.TwoSockets()
	texts := []string{"", "-1", "garbage", "99999999999999999999", "\xff\x00"}
	errs := []error{syscall.EINVAL, syscall.EACCES, syscall.EIO}
	names := slices.Sorted(maps.Keys(whole.MapFS))
	for i, name := range names {
		file := whole.MapFS[name]
		if file.Mode&fs.ModeSymlink != 0 {
			delete(whole.MapFS, name)
		} else {
			whole.MapFS[name] = &fstest.MapFile{Data: []byte(texts[i%len(texts)])}
		}
		discover(t, whole)
		whole.MapFS[name] = file
		if i%2 == 0 {
			whole.Fail = map[string]error{name: errs[i/2%len(errs)]}
			discover(t, whole)
			whole.Fail = nil
		}
	}
}

func TestCgroups(t *testing.T) {
	tests := []struct {
		name, cgroup  string
		files         []string
		cpuset, quota string
	}{
		{"no limit", "0::/", []string{"sys/fs/cgroup/cpuset.cpus.effective", "0-7"}, "0-7", "unknown: there is no CPU controller below /sys/fs/cgroup"},
		{"v2", "0::/a/b", []string{"sys/fs/cgroup/a/b/cpuset.cpus.effective", "2-3", "sys/fs/cgroup/a/b/cpu.max", "max 100000", "sys/fs/cgroup/a/cpu.max", "150000 100000"}, "2-3", "1.5"},
		{"v2 unlimited", "0::/a", []string{"sys/fs/cgroup/a/cpuset.cpus.effective", "1", "sys/fs/cgroup/a/cpu.max", "max 100000"}, "1", "0"},
		{"v2 in a container", "0::/../../x", []string{"sys/fs/cgroup/cpuset.cpus.effective", "5", "sys/fs/cgroup/cpu.max", "50000 100000"}, "5", "0.5"},
		{"v1", "4:cpu,cpuacct:/j\n3:cpuset:/j\n0::/", []string{"sys/fs/cgroup/cpuset/j/cpuset.cpus", "4-5", "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "200000", "sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000"}, "4-5", "2"},
		{"v1 unlimited", "4:cpu:/\n3:cpuset:/", []string{"sys/fs/cgroup/cpuset/cpuset.cpus", "0-1", "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}, "0-1", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := topologytest.NewTree()
			tr.CPUs(8, 1)
			tr.Put("proc/self", "cgroup", tt.cgroup)
			tr.Put("", tt.files...)
			h, _ := discover(t, tr)
			require.Equal(t, tt.cpuset, h.CPU.Cpuset.String())
			require.Equal(t, tt.quota, h.CPU.Quota.String())
		})
	}
}

func TestCaches(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(4, 1)
	for _, cpu := range []string{"0", "1", "2", "3"} {
		dir := "sys/devices/system/cpu/cpu" + cpu + "/cache"
		tr.Put(dir+"/index0", "level", "1", "type", "Data", "size", "48K", "shared_cpu_list", cpu)
		tr.Put(dir+"/index3", "level", "3", "type", "Unified", "size", "32M", "shared_cpu_list", "0-3")
	}
	h, _ := discover(t, tr)
	caches := h.CPU.Caches.Or(nil)
	require.Len(t, caches, 5)
	require.Equal(t, int64(48<<10), caches[0].Bytes)
	require.Equal(t, int64(32<<20), caches[1].Bytes)
	require.Equal(t, "0-3", caches[1].CPUs.String())
}

func TestUC53_BondFlows(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	tr.NetDevice("", "bond0", "up", "50000", "1500")
	tr.Put("sys/devices/virtual/net/bond0/bonding", "mode", "802.3ad 4", "xmit_hash_policy", "layer2 0", "slaves", "eth0 eth1")
	tr.Put("sys/class/net", "bonding_masters", "bond0")
	tr.NetDevice("", "eth0", "up", "25000", "1500")
	h, _ := discover(t, tr)
	nets := h.Nets.Or(nil)
	require.Len(t, nets, 2)
	bond := nets[0]
	require.Equal(t, "802.3ad", bond.Bond.Mode.Or(""))
	require.Equal(t, "layer2", bond.Bond.Policy.Or(""))
	require.GreaterOrEqual(t, bond.Flows(), 2)
	require.Equal(t, 1, nets[1].Flows())
	bond.Bond.Mode = Known("active-backup")
	require.Equal(t, 1, bond.Flows())
}

// FuzzACS: whatever a device has as its configuration space.
func FuzzACS(f *testing.F) {
	for _, length := range []int{0, 32, 64, 256, 260, 4096} {
		f.Add(topologytest.ConfigSpace(0x1d, length))
		f.Add(topologytest.ConfigSpace(-1, length))
	}
	round := topologytest.ConfigSpace(0x1d, 4096) // capabilities that go round in a circle
	for at := 0x100; at < 0x200; at += 4 {
		copy(round[at:], []byte{1, 0, 1, 0x10})
	}
	f.Add(round)
	plain := make([]byte, 64)
	plain[0x34] = 0x40
	f.Add(plain)
	f.Add(append(plain, 0x10, 0, 0, 0))
	f.Add(append(plain, 1, 0x40, 0, 0))
	f.Fuzz(func(t *testing.T, config []byte) {
		acs, err := ParseACS(config)
		if err != nil {
			require.Equal(t, ACS{}, acs)
		}
		_ = acs.State()
	})
}

func TestUC66_ACS(t *testing.T) {
	rows := 0
	for line := range strings.Lines(string(read(t, "testdata/acs/acsctl.tsv"))) {
		col := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		tr := topologytest.NewTree()
		tr.CPUs(2, 1)
		dir := tr.Device(0, "0x060400", "0x1022", col[0])
		control, length := -1, 4096
		switch col[3] {
		case "-":
			if strings.Contains(col[2], "denied") {
				control, length = 0x1d, 64
			}
		default:
			n, err := strconv.ParseInt(col[3], 0, 32)
			control = int(n)
			require.NoError(t, err)
		}
		tr.MapFS[dir+"/config"] = &fstest.MapFile{Data: topologytest.ConfigSpace(control, length)}
		h, _ := discover(t, tr)
		acs := h.PCI.Or(nil)[0].ACS
		switch {
		case strings.HasPrefix(col[4], "ok"), strings.HasPrefix(col[4], "look"):
			require.Equal(t, ACSOff, acs.Or(ACS{true, 0xff}).State(), line)
		case strings.HasPrefix(col[4], "bad"):
			require.Equal(t, ACS{true, 0x1d}, acs.Or(ACS{}), line)
			require.Equal(t, ACSRedirect, acs.Or(ACS{}).State(), line)
		default:
			require.Contains(t, acs.Why(), "need root", line)
		}
	}
	require.Equal(t, 5, rows)
}

func TestACSOfBrokenSpaces(t *testing.T) {
	loop := topologytest.ConfigSpace(-1, 4096)
	loop[0x100], loop[0x101], loop[0x102], loop[0x103] = 1, 0, 1, 0x10 // points to itself
	a, err := ParseACS(loop)
	require.NoError(t, err)
	require.Equal(t, ACS{}, a)
	a, err = ParseACS(make([]byte, 256))
	require.NoError(t, err, "conventional PCI has no ACS")
	require.Equal(t, ACSOff, a.State())
	_, err = ParseACS(topologytest.ConfigSpace(0, 256))
	require.ErrorContains(t, err, "extended capabilities")
	_, err = ParseACS(nil)
	require.ErrorContains(t, err, "need root")
}

func TestPeerMemory(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	tr.Put("proc", "modules", "nvidia 1 2 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0")
	h, _ := discover(t, tr)
	require.Equal(t, "nvidia_peermem", h.PeerMemory.Or(""))
	tr.Put("sys/kernel/mm/memory_peers/nv_mem", "version", "1.3")
	h, _ = discover(t, tr)
	require.Equal(t, "nv_mem", h.PeerMemory.Or(""))
	delete(tr.MapFS, "proc/modules")
	delete(tr.MapFS, "sys/kernel/mm/memory_peers/nv_mem/version")
	h, _ = discover(t, tr)
	require.Contains(t, h.PeerMemory.Why(), "/proc/modules")
}

func TestUC72_Fabric(t *testing.T) {
	const cluster, zero = "5f1f4be2-5a0e-4a3c-9c5f-0a0b0c0d0e0f", "00000000-0000-0000-0000-000000000000"
	ready := Fabric{State: "completed", Status: "success", Cluster: cluster, Clique: 1}
	require.Empty(t, ready.Ready())
	require.Empty(t, Fabric{}.Ready())
	require.Contains(t, Fabric{State: "in progress"}.Ready(), "start nvidia-fabricmanager")
	require.Contains(t, Fabric{State: "in progress"}.Ready(), "802")
	require.Contains(t, Fabric{State: "completed", Status: "insufficient resources"}.Ready(), "insufficient resources")
	require.True(t, ready.Joins(ready))
	for _, other := range []Fabric{
		{}, {State: "completed", Cluster: zero}, {State: "in progress", Cluster: cluster, Clique: 1},
		{State: "completed", Status: "error", Cluster: cluster, Clique: 1}, {State: "completed", Cluster: cluster, Clique: 2},
	} {
		require.False(t, ready.Joins(other), "%v", other)
		require.False(t, other.Joins(other) && other.Clique == 0, "%v", other)
	}
}

func TestNames(t *testing.T) {
	require.Negative(t, compareNames("mlx5_9", "mlx5_10"))
	require.Positive(t, compareNames("eth10", "eth9"))
	require.Zero(t, compareNames("ib0", "ib0"))
	require.Negative(t, compareNames("ib", "ib0"))
}
