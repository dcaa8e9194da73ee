package doctor

import (
	"bufio"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

var noDriver = topology.Unknown[[]topology.GPUFacts]("no driver")

// bare is a host of two CPUs with nothing but a network interface.
func bare() topologytest.Tree {
	t := topologytest.NewTree()
	t.CPUs(2, 1)
	t.Put("sys/bus/pci/devices/x", "y", "")
	t.Put("sys/class/net/x", "y", "")
	t.Put("sys/fs/cgroup", "cpu.max", "max 100000")
	t.Put("proc/self", "limits", limits("65536", "65536", "1024", "4096"), "mounts", "tmpfs /dev/shm tmpfs rw,size=8g 0 0")
	t.Put("proc", "meminfo", "MemTotal: 1024 kB\nHugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB")
	t.Put("dev/shm", "x", "")
	return t
}

func TestUC65_BareAndHiddenHosts(t *testing.T) {
	h, s := look(bare(), noDriver)
	findings := Examine(h, s, Wants{})
	require.Equal(t, "GPU: none", only(t, findings, OK, "gpu").Seen)
	require.Equal(t, "RDMA: none", only(t, findings, OK, "rdma").Seen)
	require.Equal(t, "shm, tcp", only(t, findings, OK, "transports").Seen)
	require.Zero(t, Count(findings, Fail))

	h = topology.Discover(fstest.MapFS{}, noDriver)
	findings = Examine(h, Read(fstest.MapFS{}, h, ShmDir), Wants{})
	require.Zero(t, Count(findings, Fail))
	require.Zero(t, Count(findings, Warn), "%+v", findings)
	require.Contains(t, only(t, findings, Unknown, "gpu").Seen, "there is no /sys/bus/pci/devices; no driver")
	only(t, findings, Unknown, "rdma")
	for _, f := range of(findings, "memlock") {
		require.Equal(t, Unknown, f.Level)
	}
}

// TestUC40_MemlockMattersWithRDMA: a low limit is a failure where something locks memory, and nothing to worry about elsewhere.
func TestUC40_MemlockMattersWithRDMA(t *testing.T) {
	for _, limit := range []string{"65536", "8388608"} {
		tree := bare()
		tree.Put("proc/self", "limits", limits(limit, limit, "1024", "4096"))
		h, s := look(tree, noDriver)
		require.Contains(t, only(t, Examine(h, s, Wants{}), Info, "memlock").Seen, "LimitMEMLOCK")
		tree = sound()
		tree.Put("proc/self", "limits", limits(limit, limit, "1024", "4096"))
		h, s = look(tree, topology.Known(driven()))
		require.Contains(t, only(t, Examine(h, s, Wants{}), Fail, "memlock").Fix, "set ulimit -l unlimited / LimitMEMLOCK=infinity")
	}
}

func iface(name, addr string) topology.Interface {
	return topology.Interface{Name: name, Up: true, Running: true, Loopback: name == "lo", Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
}

func TestUC13_WhyOtherInterfacesWereDropped(t *testing.T) {
	h, s := look(bare(), noDriver)
	s.Interfaces = topology.Known([]topology.Interface{iface("docker0", "172.17.0.1/16"), iface("lo", "127.0.0.1/8"), iface("eth0", "192.0.2.11/24")})
	f := only(t, Examine(h, s, Wants{}), OK, "socket_interface")
	require.Equal(t, "eth0", f.Of)
	require.Contains(t, f.Seen, "eth0 at 192.0.2.11")
	require.Contains(t, f.Seen, "not docker0: a container bridge")
	require.Contains(t, f.Seen, "not lo: it is loopback")
}

func TestUC16_ExcludingFilterIsNoted(t *testing.T) {
	h, s := look(bare(), noDriver)
	s.Interfaces = topology.Known([]topology.Interface{iface("lo", "127.0.0.1/8"), iface("docker0", "172.17.0.1/16"), iface("eth0", "192.0.2.11/24")})
	f := only(t, Examine(h, s, Wants{Interface: filter("^docker0")}), Info, "socket_interface")
	require.Equal(t, "eth0", f.Of)
	require.Contains(t, f.Seen, "lo stays the last resort")
}

func TestUC26_FilesOfALargeWorld(t *testing.T) {
	tree := bare()
	tree.Put("proc/self", "limits", limits("65536", "65536", "64", "64"))
	h, s := look(tree, noDriver)
	p, findings := Estimate(h, s, Wants{}, DefaultDemand(1024), 1024)
	f := only(t, findings, Fail, "plan_open_files")
	require.Equal(t, int64(32+1023+1025), p.OpenFiles)
	require.Contains(t, f.Seen, "2080 open files on rank 0 = 32 + (1024 - 1) peers over TCP + (1024 + 1) while it serves the meeting; nofile 64 of need about 2080")
	tree.Put("proc/self", "limits", limits("65536", "65536", "64", "2080"))
	h, s = look(tree, noDriver)
	_, findings = Estimate(h, s, Wants{}, DefaultDemand(1024), 1024)
	only(t, findings, OK, "plan_open_files")
	tree.Put("proc/self", "limits", limits("65536", "65536", "64", "2079"))
	h, s = look(tree, noDriver)
	_, findings = Estimate(h, s, Wants{}, DefaultDemand(1024), 1024)
	only(t, findings, Fail, "plan_open_files")
}

func TestUC38_Quota(t *testing.T) {
	for text, level := range map[string]Level{"50000 100000": Warn, "max 100000": OK, "200000 100000": OK, "x y": Unknown} {
		tree := bare()
		tree.Put("sys/fs/cgroup", "cpu.max", text)
		h, s := look(tree, noDriver)
		only(t, Examine(h, s, Wants{}), level, "cpu_quota")
	}
}

func TestUC44_EmptyGIDIsNamed(t *testing.T) {
	tree := sound()
	for _, i := range []string{"0", "1"} {
		set(t, tree, "mlx5_0/ports/1/gids/"+i, "::")
	}
	for name := range tree.MapFS {
		if dir, ok := strings.CutSuffix(name, "mlx5_0/ports/1/state"); ok {
			tree.GID(dir+"mlx5_0/ports/1", 3, "::ffff:192.0.2.1", "RoCE v2", "eth0")
		}
	}
	h, s := look(tree, topology.Known(driven()))
	findings := Examine(h, s, Wants{GIDIndex: ptr(0)})
	f := only(t, findings, Fail, "rdma_gid", "mlx5_0 port 1")
	require.Contains(t, f.Seen, "mlx5_0 port 1 GID index 0 is empty; try 3")
	require.Contains(t, only(t, Examine(h, s, Wants{}), OK, "rdma_gid", "mlx5_0 port 1").Seen, "index 3 of mlx5_0 port 1 is RoCE v2 at eth0")
}

// TestUC44_Ports makes each row of ports.tsv a device, and asks what doctor says of it.
func TestUC44_PortsOfRecords(t *testing.T) {
	says := map[string][2]string{ // the check, and its level
		"port-down": {"rdma_port", "info"}, "mtu-small": {"rdma_mtu", "warn"}, "old-rxe": {"rdma_software", "info"}, "ib-ipoib-down": {"rdma_port", "ok"},
		"eth-down": {"rdma_port", "info"}, "eth-up": {"rdma_port", "ok"}, "mtu-mismatch-left": {"rdma_mtu", "ok"}, "mtu-mismatch-right": {"rdma_mtu", "warn"},
	}
	f, err := os.Open(filepath.Join("..", "testdata", "ports.tsv"))
	require.NoError(t, err)
	defer f.Close()
	seen := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		col := strings.Split(lines.Text(), "\t")
		want, ok := says[col[0]]
		if !ok {
			continue
		}
		seen++
		findings := examinePort(t, col)
		f := of(findings, want[0])
		require.Len(t, f, 1, "%s: %+v", col[0], findings)
		require.Equal(t, Level(want[1]), f[0].Level, "%s: %+v", col[0], f)
		if col[0] == "mtu-small" {
			require.Contains(t, f[0].Seen+f[0].Fix, "active MTU 1024 of 4096raise the netdev MTU to 4200+ or 9000")
		}
		for _, f := range findings {
			if f.Level == Warn || f.Level == Fail {
				require.Contains(t, []string{"rdma_mtu", "rdma"}, f.ID, "%s: %+v", col[0], f)
			}
		}
	}
	require.Equal(t, len(says), seen)
}

// examinePort makes a host of a row: case, device, link layer, state, active MTU, largest MTU, firmware, vendor, net device, its state.
func examinePort(t *testing.T, col []string) []Finding {
	tree := bare()
	tree.Put("proc/self", "limits", limits("unlimited", "unlimited", "1024", "4096"))
	software := strings.HasPrefix(col[1], "rxe")
	dir := "sys/devices/virtual"
	if !software {
		dir = tree.Device(0, "0x020700", col[7], "0000:10:01.0")
		tree.Put(dir, "max_link_speed", "16.0 GT/s PCIe")
	}
	layer := strings.Trim(col[2], "-")
	state := map[string]string{"PORT_ACTIVE": "4: ACTIVE", "PORT_DOWN": "1: DOWN"}[col[3]]
	port := tree.RDMA(dir, col[1], layer, state, "100 Gb/sec (2X HDR)")
	mtu, err := strconv.Atoi(col[4])
	require.NoError(t, err)
	if net := strings.Trim(col[8], "-"); net != "" {
		tree.NetDevice(dir, net, strings.ToLower(col[9]), "100000", strconv.Itoa(mtu+104))
		tree.GID(port, 0, "::ffff:192.0.2.1", "RoCE v2", net)
	}
	tree.Put("sys/class/infiniband_verbs/uverbs0", "ibdev", col[1])
	tree.Put("dev/infiniband", "uverbs0", "")
	h, s := look(tree, noDriver)
	return Examine(h, s, Wants{})
}

func TestUC45_DifferentMTUs(t *testing.T) {
	ours, theirs := report(sound()), sound()
	set(t, theirs, "net/eth0/mtu", "1500")
	findings := Compare(ours, report(theirs), Wants{})
	f := only(t, findings, Warn, "against_rdma_mtu", "mlx5_0 port 1")
	require.Contains(t, f.Seen, "active MTU 4096 here, 1024 there: connections use 1024")
	only(t, findings, OK, "against_rdma_mtu", "mlx5_1 port 1")
}

func TestUC51_SoftwareRoCEIsMarked(t *testing.T) {
	findings := examinePort(t, strings.Split("x	rxe0	Ethernet	PORT_ACTIVE	1024	4096	0.0.0	0x0000	eth0	Up", "	"))
	require.Contains(t, only(t, findings, Info, "rdma_software", "rxe0").Seen, "software RoCE")
	only(t, findings, Info, "rdma_mtu", "rxe0 port 1")
}

func TestUC52_PlanOfALargeWorld(t *testing.T) {
	tree := sound()
	tree.Put("proc/self", "limits", limits("8388608", "8388608", "1024", "1048576"))
	tree.Put("proc", "meminfo", "MemTotal:       2147483648 kB")
	h, s := look(tree, topology.Known(driven()))
	s.RDMALimits = map[string]topology.RDMALimits{"mlx5_0": {MaxQP: topology.Known(131072), MaxCQE: topology.Known(4194303)}}
	d := DefaultDemand(5600)
	d.QPsPerPeer = 4
	p, findings := Estimate(h, s, Wants{}, d, 5600)
	require.Equal(t, 2, p.RanksOnDevice)
	require.Equal(t, int64(5599*4), p.Totals.QPs)
	require.Contains(t, only(t, findings, OK, "plan_qps").Seen, "22396 queue pairs per rank = (5600 - 1) peers × 4; × 2 ranks on a device = 44792; the device has max_qp 131072")
	require.Contains(t, only(t, findings, Fail, "plan_cq_entries").Seen, "11466752 completion entries per rank = 22396 queue pairs × 512; the device has max_cqe 4194303")
	require.Contains(t, only(t, findings, Fail, "plan_pinned_bytes").Seen, "21.9 GiB pinned per rank = (5600 - 1) peers × 4 MiB, and memlock is 8 MiB")
	only(t, findings, OK, "plan_open_files")

	s.RDMALimits["mlx5_1"] = topology.RDMALimits{MaxQP: topology.Known(44791)}
	_, findings = Estimate(h, s, Wants{}, d, 5600)
	require.Contains(t, only(t, findings, Fail, "plan_qps").Fix, "GCCL_QP_COUNT=1")
	denied := topology.Unknown[int]("may not open /dev/infiniband/uverbs0")
	s.RDMALimits = map[string]topology.RDMALimits{"mlx5_0": {MaxQP: denied, MaxCQE: denied, MaxMR: denied}, "mlx5_1": {MaxQP: denied, MaxCQE: denied, MaxMR: denied}}
	_, findings = Estimate(h, s, Wants{}, d, 5600)
	require.Contains(t, only(t, findings, Unknown, "plan_qps").Seen, "may not open /dev/infiniband/uverbs0")
	s.RDMALimits = nil
	_, findings = Estimate(h, s, Wants{}, d, 5600)
	require.Contains(t, only(t, findings, Unknown, "plan_qps").Seen, "libibverbs was not asked")
	require.Contains(t, only(t, findings, Unknown, "plan_cq_entries").Fix, "ibv_devinfo -v")

	h, s = look(bare(), noDriver)
	_, findings = Estimate(h, s, Wants{}, d, 5600)
	require.Contains(t, only(t, findings, Info, "plan_qps").Seen, "there is no RDMA device here")
	_, findings = Estimate(h, s, Wants{}, DefaultDemand(1), 1)
	require.Contains(t, only(t, findings, Info, "plan_cq_entries").Seen, "0 completion entries")
}

// TestPlanLargerThanTheHost: what is pinned must fit into the host.
func TestPlanLargerThanTheHost(t *testing.T) {
	h, s := look(sound(), topology.Known(driven()))
	_, findings := Estimate(h, s, Wants{}, DefaultDemand(5600), 5600)
	require.Contains(t, only(t, findings, Fail, "plan_pinned_bytes").Seen, "the host has 16 GiB of memory for 4 ranks")
}

// TestPlanLargerThanTheControlGroup: nor may it be more than the groups of the process allow.
func TestPlanLargerThanTheControlGroup(t *testing.T) {
	tree := sound()
	tree.Put("proc/self", "cgroup", "0::/kubepods/pod1")
	tree.Put("sys/fs/cgroup/kubepods", "memory.max", "1073741824", "memory.current", "0")
	h, s := look(tree, topology.Known(driven()))
	_, findings := Estimate(h, s, Wants{}, DefaultDemand(65), 65)
	only(t, findings, OK, "plan_pinned_bytes")
	_, findings = Estimate(h, s, Wants{}, DefaultDemand(66), 66)
	require.Contains(t, only(t, findings, Fail, "plan_pinned_bytes").Seen, "the process's control group, or one above it, allows 1 GiB of memory for 4 ranks")
}

func TestUC53_BondHash(t *testing.T) {
	for _, c := range []struct {
		mode, policy string
		level        Level
		says         string
	}{
		{"802.3ad 4", "layer2 0", Warn, "xmit_hash_policy layer2: use layer3+4"},
		{"balance-xor 2", "layer2 0", Warn, "use layer3+4"},
		{"802.3ad 4", "layer3+4 1", OK, "2 connections to a peer"},
		{"802.3ad 4", "layer2+3 2", OK, "2 connections to a peer"},
		{"active-backup 1", "layer2 0", OK, "one member"},
		{"balance-rr 0", "layer2 0", Warn, "802.3ad"},
	} {
		tree := bare()
		tree.NetDevice("", "bond0", "up", "200000", "1500")
		tree.Put("sys/devices/virtual/net/bond0/bonding", "mode", c.mode, "xmit_hash_policy", c.policy, "slaves", "eth0 eth1")
		h, s := look(tree, noDriver)
		f := only(t, Examine(h, s, Wants{}), c.level, "bond", "bond0")
		require.Contains(t, f.Seen+f.Fix, c.says)
	}
}

// TestUC66_ACSOfTheRecords puts each row of acsctl.tsv above two GPUs.
func TestUC66_ACSOfTheRecords(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "testdata", "acs", "acsctl.tsv"))
	require.NoError(t, err)
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		col := strings.Split(lines.Text(), "\t")
		if strings.HasPrefix(col[0], "#") {
			continue
		}
		rows++
		tree := bare()
		length, control := 4096, -1
		if n, err := strconv.ParseInt(col[3], 0, 32); err == nil {
			control = int(n)
		} else if col[2] == "<access denied>" {
			length = 64
		}
		port := col[0]
		if port == "0000:41:00.0" { // the row of a GPU, below a port without the capability
			port = "0000:40:01.1"
		}
		tree.Bridge(0, control, port)
		for name, file := range tree.MapFS {
			if strings.HasSuffix(name, "/config") {
				file.Data = topologytest.ConfigSpace(control, length)
			}
		}
		tree.Device(0, "0x030200", "0x10de", port, "0000:81:00.0")
		tree.Device(0, "0x030200", "0x10de", port, "0000:82:00.0")
		h, s := look(tree, noDriver)
		findings := Examine(h, s, Wants{})
		switch {
		case strings.HasPrefix(col[4], "bad"):
			f := only(t, findings, Fail, "acs", port)
			require.Contains(t, f.Seen, "ACS of the port at 0000:20:01.1 redirects (ACSCtl 0x001d); below it: 0000:81:00.0, 0000:82:00.0")
			require.Contains(t, f.Fix, "setpci -s 0000:20:01.1 ECAP_ACS+6.w=0000")
		case strings.HasPrefix(col[4], "unknown"):
			require.Contains(t, only(t, findings, Unknown, "acs").Seen, "need root")
		default:
			only(t, findings, OK, "acs")
		}
	}
	require.Equal(t, 5, rows)
}

func TestUC69_HowCardsReachGPUMemory(t *testing.T) {
	for _, c := range []struct {
		name    string
		modules string
		driver  string
		dmabuf  topology.Fact[bool]
		level   Level
		says    string
	}{
		{"dmabuf", "x 1 0 - Live 0x0", "", topology.Known(true), OK, "dmabuf: the GPU's driver and the kernel"},
		{"peermem", "nvidia_peermem 1 0 - Live 0x0", "", topology.Known(false), OK, "peermem: "},
		{"none", "x 1 0 - Live 0x0", "", topology.Known(false), Warn, "none: the GPU's driver or the kernel can't"},
		{"not asked, closed", "x 1 0 - Live 0x0", "NVIDIA UNIX x86_64 Kernel Module", topology.Unknown[bool]("not asked"), Warn, "none: whether"},
		{"not asked, open", "x 1 0 - Live 0x0", "NVIDIA UNIX Open Kernel Module", topology.Unknown[bool]("not asked"), Unknown, "open, so DMA-BUF is likely"},
		{"peermem of old", "x 1 0 - Live 0x0", "", topology.Known(false), OK, "peermem: "},
	} {
		tree := sound()
		tree.Put("proc", "modules", c.modules)
		if c.name == "peermem of old" {
			tree.Put("sys/kernel/mm/memory_peers/nv_mem", "version", "1.3")
		}
		if c.driver != "" {
			tree.Put("proc/driver/nvidia", "version", c.driver)
		}
		gpus := driven()[:1]
		gpus[0].DMABuf = c.dmabuf
		h, s := look(tree, topology.Known(gpus))
		require.Contains(t, only(t, Examine(h, s, Wants{}), c.level, "gpu_direct").Seen, c.says, c.name)
	}
}

func TestUC72_FabricManager(t *testing.T) {
	for _, c := range []struct {
		fabric topology.Fabric
		level  Level
		says   string
	}{
		{topology.Fabric{State: "in progress"}, Fail, "NVSwitch fabric not ready (in progress): start nvidia-fabricmanager, whose version must be the driver's; CUDA fails with 802"},
		{topology.Fabric{State: "completed", Status: "Unknown Error"}, Fail, `registration ended with "Unknown Error"`},
		{topology.Fabric{State: "completed", Cluster: "00000000-0000-0000-0000-000000000000"}, OK, "no NVLink to other hosts"},
		{topology.Fabric{State: "completed", Cluster: "ab000000-0000-0000-0000-000000000000", Clique: 3}, OK, "cluster ab000000-0000-0000-0000-000000000000, clique 3"},
	} {
		gpus := driven()
		for i := range gpus {
			gpus[i].Fabric = c.fabric
		}
		h, s := look(sound(), topology.Known(gpus))
		f := only(t, Examine(h, s, Wants{}), c.level, "nvlink_fabric")
		require.Contains(t, f.Seen, c.says)
		if c.level == Fail {
			require.Contains(t, f.Fix, "nvidia-fabricmanager")
		}
	}
}

// TestUC72_SwitchesOfGPUsThatDoNotSay: before Hopper the switches are on PCI, and the manager is a process.
func TestUC72_SwitchesOfGPUsThatDoNotSay(t *testing.T) {
	tree := sound()
	tree.Device(0, "0x068000", "0x10de", "0000:05:00.0")
	gpus := driven()
	for i := range gpus {
		gpus[i].Fabric = topology.Fabric{State: "not supported"}
	}
	tree.Put("proc/17", "comm", "bash")
	h, s := look(tree, topology.Known(gpus))
	require.Contains(t, only(t, Examine(h, s, Wants{}), Warn, "nvlink_fabric").Fix, "nvidia-fabricmanager")
	tree.Put("proc/18", "comm", "nv-fabricmanage")
	h, s = look(tree, topology.Known(gpus))
	require.Contains(t, only(t, Examine(h, s, Wants{}), OK, "nvlink_fabric").Seen, "NVSwitches: 1, and nvidia-fabricmanager runs")
}

func TestUC31_Leftovers(t *testing.T) {
	tree := bare()
	tree.Link("proc/self/ns/pid", "x")
	tree.MapFS["proc/self/ns/pid"].Data = []byte("pid:[4026531836]")
	alive := "4242 (a name) with) S " + strings.Repeat("0 ", 18) + "777 0 0"
	tree.Put("proc/4242", "stat", alive)
	for _, name := range []string{"gccl-0-4026531836-4242-777-00000000000000aa", "gccl-0-4026531836-4242-776-00000000000000ab", "gccl-0-4026531836-4243-777-00000000000000ac", "gccl-0-1-4242-777-00000000000000ad", "other"} {
		tree.Put("dev/shm", name, "12345")
	}
	h, s := look(tree, noDriver)
	all := of(Examine(h, s, Wants{}), "shm_leftovers")
	require.Len(t, all, 2)
	require.Contains(t, all[0].Seen, "2 files of processes that are gone: gccl-0-4026531836-4242-776-00000000000000ab, gccl-0-4026531836-4243-777-00000000000000ac")
	require.Contains(t, all[1].Seen, "1 file, and it is not known here of which process: gccl-0-1-4242-777-00000000000000ad")
	require.Equal(t, int64(6), s.Segments.Or(nil)[0].Bytes)
}

func report(tree topologytest.Tree) *Report {
	h, s := look(tree, topology.Known(driven()))
	r := &Report{Version: ReportVersion, Host: h, System: s}
	r.Add(Examine(h, s, Wants{})...)
	return r
}

func TestReportAsJSON(t *testing.T) {
	r := report(sound())
	var b strings.Builder
	require.NoError(t, r.Write(&b))
	again, err := ReadReport(strings.NewReader(b.String()))
	require.NoError(t, err)
	require.Equal(t, r.Findings, again.Findings)
	require.Equal(t, r.Host.Graph(), again.Host.Graph())
	require.Equal(t, r.System.Memlock, again.System.Memlock)
	for _, f := range Compare(r, again, Wants{}) {
		require.Equal(t, OK, f.Level, "%+v", f)
	}
	var keys map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &keys))
	require.ElementsMatch(t, []string{"version", "findings", "summary", "host", "system"}, sortedKeys(keys))
	for says, text := range map[string]string{
		"want the output of gccl doctor --json": "[]", "version 0": "{}", "no host or system": `{"version":1}`, "version 9": `{"version":9}`, "unexpected end": "{",
	} {
		_, err := ReadReport(strings.NewReader(text))
		require.ErrorContains(t, err, says)
	}
}

func sortedKeys(m map[string]any) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

func TestPCIeBandwidth(t *testing.T) {
	for _, c := range []struct {
		gts   float64
		width int
		want  float64
	}{{2.5, 16, 32}, {5, 8, 32}, {8, 16, 126.03}, {16, 16, 252.06}, {32, 16, 504.1}, {64, 16, 1024}} {
		require.InDelta(t, c.want, pcieGbps(c.gts, c.width), 0.05)
	}
}

// TestDistances has a GPU and a card below one switch, at ports of one CPU, and below different CPUs.
func TestDistances(t *testing.T) {
	for _, c := range []struct {
		gpu   []string
		numa  int
		state string
		level Level
		says  string
	}{
		{[]string{"0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"}, 0, "4: ACTIVE", OK, "at PIX"},
		{[]string{"0000:20:01.0", "0000:21:00.0"}, 0, "4: ACTIVE", Info, "at PHB"},
		{[]string{"0000:30:01.0", "0000:31:00.0"}, 1, "4: ACTIVE", Warn, "at SYS"},
		{[]string{"0000:20:01.0", "0000:21:00.0"}, 0, "1: DOWN", Warn, "no network port that GPU0 can reach is usable; mlx5_0: mlx5_0 port 1 is DOWN"},
	} {
		tree := bare()
		tree.CPUs(4, 2)
		ports := []string{"0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"}
		for i := range ports[:3] {
			tree.Bridge(0, 0, ports[:i+1]...)
		}
		for i := range c.gpu[:len(c.gpu)-1] {
			tree.Bridge(c.numa, 0, c.gpu[:i+1]...)
		}
		tree.Device(c.numa, "0x030200", "0x10de", c.gpu...)
		tree.RDMA(tree.Device(0, "0x020700", "0x15b3", ports...), "mlx5_0", "InfiniBand", c.state, "200 Gb/sec (4X HDR)")
		h, s := look(tree, noDriver)
		require.Contains(t, only(t, Examine(h, s, Wants{}), c.level, "gpu_nic_distance", "GPU0").Seen, c.says)
	}
}

func TestUC72_OneGPUOfAFabric(t *testing.T) {
	gpus := driven()
	gpus[0].Fabric.Cluster = "ab000000-0000-0000-0000-000000000000"
	h, s := look(sound(), topology.Known(gpus))
	require.Contains(t, only(t, Examine(h, s, Wants{}), OK, "nvlink_fabric").Seen, "cluster ab000000")
}

func TestOrderOfFindings(t *testing.T) {
	got := sorted([]Finding{{ID: "iommu", Level: OK}, {ID: "transports", Level: OK}, {ID: "acs", Level: OK, Of: "b"}, {ID: "acs", Level: Fail, Of: "a"}})
	var order []string
	for _, f := range got {
		require.NotEmpty(t, f.Why)
		order = append(order, f.ID+" "+f.Of)
	}
	require.Equal(t, []string{"transports ", "acs a", "acs b", "iommu "}, order)
}
