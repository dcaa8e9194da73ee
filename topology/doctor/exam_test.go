package doctor

import (
	"encoding/json"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

// sound is a host of two sockets, four GPUs and two RoCE cards on which nothing is wrong, apart from what each test does to it.
func sound() topologytest.Tree {
	t := topologytest.TwoSockets()
	for _, port := range []string{"0000:a1:00.0", "0000:a2:00.0", "0000:a2:01.0", "0000:a2:02.0"} {
		for name := range t.MapFS {
			if strings.HasSuffix(name, "/"+port+"/config") {
				t.MapFS[name].Data = topologytest.ConfigSpace(1, 4096)
			}
		}
	}
	t.Put("sys/kernel/iommu_groups/0", "type", "identity")
	t.Put("proc/self", "limits", limits("unlimited", "unlimited", "1048576", "1048576"), "mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=8388608k 0 0",
		"uid_map", "0 0 4294967295")
	t.Put("proc", "meminfo", "MemTotal:       16777216 kB\nHugePages_Total:       8\nHugePages_Free:        4\nHugepagesize:       2048 kB")
	t.Put("proc/sys", "kernel/osrelease", "6.8.0-50-generic", "kernel/yama/ptrace_scope", "0", "net/ipv4/ip_local_port_range", "32768\t60999")
	t.Put("sys/fs/cgroup", "cpu.max", "max 100000", "cpuset.cpus.effective", "0-15")
	t.Put("sys/module", "mlx5_core/version", "24.10-1", "nvidia/version", "580.1", "nvidia_peermem/refcnt", "0")
	t.Put("proc/driver/nvidia", "version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1")
	t.Put("proc", "modules", "xfs 1 0 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0")
	t.Put("dev/shm", "other", "")
	for i, dev := range []string{"mlx5_0", "mlx5_1"} {
		n := string(rune('0' + i))
		t.Put("sys/class/infiniband_verbs/uverbs"+n, "ibdev", dev)
		t.Put("dev/infiniband", "uverbs"+n, "")
		hw := "sys/class/infiniband/" + dev
		to := string(t.MapFS[hw].Data)
		dir := "sys/" + to[strings.Index(to, "devices"):]
		t.Put(dir+"/tc/1", "traffic_class", "Global tclass=106")
		t.Put(dir+"/ports/1/hw_counters", "out_of_sequence", "0", "np_cnp_sent", "4")
		net := dir[:strings.Index(dir, "/infiniband/")] + "/net/eth" + n
		t.Put(net, "qos/pfc", "00010000", "ecn/roce_np/enable/3", "1", "ecn/roce_rp/enable/3", "1")
		// The slot of a 200 Gb/s card.
		t.Put(dir[:strings.Index(dir, "/infiniband/")], "current_link_speed", "16.0 GT/s PCIe")
	}
	return t
}

// limits writes /proc/self/limits.
func limits(lock, lockHard, files, filesHard string) string {
	return "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max open files            " + files + "                 " + filesHard + "              files     \n" +
		"Max locked memory         " + lock + "              " + lockHard + "              bytes     "
}

// set puts a file where it is in the tree already, below whatever folder of PCI.
func set(t *testing.T, tree topologytest.Tree, suffix, text string) {
	t.Helper()
	n := 0
	for name := range tree.MapFS {
		if strings.HasSuffix(name, suffix) {
			tree.MapFS[name] = &fstest.MapFile{Data: []byte(text + "\n"), Mode: 0o444}
			n++
		}
	}
	require.Equal(t, 1, n, suffix)
}

var eth0 = topology.Interface{Name: "eth0", Up: true, Running: true, Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}

func look(root fs.FS, gpus topology.Fact[[]topology.GPUFacts]) (*topology.Host, *System) {
	h := topology.Discover(root, gpus)
	s := Read(root, h, ShmDir)
	s.Interfaces = topology.Known([]topology.Interface{eth0})
	s.ShmFree = topology.Known(int64(7 << 30))
	return h, s
}

// driven are the GPUs of sound, as a driver says that all is well.
func driven() []topology.GPUFacts {
	var all []topology.GPUFacts
	for i, bus := range []string{"0000:13:00.0", "0000:14:00.0", "0000:a3:00.0", "0000:a4:00.0"} {
		all = append(all, topology.GPUFacts{
			Bus: bus, Dev: i, Name: "H200", SM: 90, Memory: 140 << 30, DMABuf: topology.Known(true),
			NVLinks: []topology.NVLinkFacts{{Target: "0000:05:00.0", Class: "0x068000", Count: 18}},
			Fabric:  topology.Fabric{State: "completed", Cluster: "00000000-0000-0000-0000-000000000000"},
		})
	}
	return all
}

// of returns the findings of a check, for all devices or for one.
func of(findings []Finding, id string, devices ...string) []Finding {
	var some []Finding
	for _, f := range findings {
		if f.ID == id && (len(devices) == 0 || slices.Contains(devices, f.Of)) {
			some = append(some, f)
		}
	}
	return some
}

// only returns the one finding of a check, of a level.
func only(t *testing.T, findings []Finding, l Level, id string, devices ...string) Finding {
	t.Helper()
	some := of(findings, id, devices...)
	require.Len(t, some, 1, "%s %v: %+v", id, devices, findings)
	require.Equal(t, l, some[0].Level, "%+v", some[0])
	require.NotEmpty(t, some[0].Why)
	require.NotEmpty(t, some[0].Seen)
	return some[0]
}

func TestSoundHost(t *testing.T) {
	h, s := look(sound(), topology.Known(driven()))
	findings := Examine(h, s, Wants{Files: []File{{From: "GCCL_RECORDER", Path: "/tmp"}}})
	for _, f := range findings {
		require.Contains(t, []Level{OK, Info}, f.Level, "%+v", f)
	}
	seen := map[string]bool{}
	for _, f := range findings {
		seen[f.ID] = true
	}
	for _, c := range Checks() {
		conditional := strings.HasPrefix(c.ID, "plan_") || strings.HasPrefix(c.ID, "against_") || slices.Contains([]string{"bond", "rdma_software", "gpu_mig"}, c.ID)
		require.Equal(t, !conditional, seen[c.ID], c.ID)
	}
	require.Contains(t, only(t, findings, OK, "gpu").Seen, "4 × H200, compute capability 9.0, 140 GiB")
	require.Contains(t, only(t, findings, OK, "gpu_p2p").Seen, "6 over nvlink")
	require.Contains(t, only(t, findings, OK, "nvlink_fabric").Seen, "no NVLink to other hosts")
	require.Contains(t, only(t, findings, OK, "rdma_rate", "mlx5_0").Seen, "252 Gb/s (16 GT/s x16), the ports 200 Gb/s")
	require.Contains(t, only(t, findings, OK, "rdma_firmware", "mlx5_0").Seen, "firmware 28.1.2, MT4129")
	require.Contains(t, only(t, findings, OK, "rdma_congestion", "mlx5_0 port 1").Seen, "PFC 00010000, ECN true, traffic class Global tclass=106")
	require.Equal(t, findings, sorted(slices.Clone(findings)), "in the order of the checks")
}

func TestFilesThatSettingsName(t *testing.T) {
	h, s := look(sound(), topology.Known(driven()))
	s.ShmRefused = "ranks of this user can't make a socket in /dev/shm: read-only file system"
	findings := Examine(h, s, Wants{Files: []File{
		{From: "GCCL_TOPO_FILE", Path: "/x", Wrong: "open /x: gone", Fix: "another", Ends: true}, {From: "gccl.toml:3", Path: "/y", Wrong: "stat /y: gone", Fix: "another"},
	}})
	require.Equal(t, "another", only(t, findings, Fail, "setting_file", "GCCL_TOPO_FILE").Fix)
	require.Equal(t, "stat /y: gone", only(t, findings, Warn, "setting_file", "gccl.toml:3").Seen)
	require.Equal(t, s.ShmRefused, only(t, findings, Warn, "shm_size").Seen)
	require.NotContains(t, only(t, findings, OK, "transports").Seen, "shm")
}

// condition is something wrong with a host, and the finding that says so.
type condition struct {
	name  string
	spoil func(t *testing.T, tree topologytest.Tree)
	wants Wants
	gpus  func(gpus []topology.GPUFacts)
	tell  func(s *System)

	level        Level
	id, of       string
	seen, mended string // parts of Seen and Fix

	also []string // other checks that say it
}

func put(dir string, nameText ...string) func(*testing.T, topologytest.Tree) {
	return func(_ *testing.T, tree topologytest.Tree) { tree.Put(dir, nameText...) }
}

func change(suffix, text string) func(*testing.T, topologytest.Tree) {
	return func(t *testing.T, tree topologytest.Tree) { set(t, tree, suffix, text) }
}

func remove(name string) func(*testing.T, topologytest.Tree) {
	return func(t *testing.T, tree topologytest.Tree) {
		require.Contains(t, tree.MapFS, name)
		delete(tree.MapFS, name)
	}
}

func all(parts ...func(*testing.T, topologytest.Tree)) func(*testing.T, topologytest.Tree) {
	return func(t *testing.T, tree topologytest.Tree) {
		for _, p := range parts {
			p(t, tree)
		}
	}
}

func filter(text string) topology.Filter {
	f, err := topology.ParseFilter(text)
	if err != nil {
		panic(err)
	}
	return f
}

func ptr(n int) *int { return &n }

var conditions = []condition{
	{name: "memlock of an old distribution", spoil: put("proc/self", "limits", limits("65536", "65536", "1024", "4096")),
		level: Fail, id: "memlock", seen: "memlock 64 KiB", mended: "set ulimit -l unlimited / LimitMEMLOCK"},
	{name: "memlock of a new distribution", spoil: put("proc/self", "limits", limits("8388608", "8388608", "1024", "4096")),
		level: Fail, id: "memlock", seen: "memlock 8 MiB", mended: "--ulimit memlock=-1"},
	{name: "memlock for small jobs", spoil: put("proc/self", "limits", limits("1073741824", "unlimited", "1024", "4096")), level: Warn, id: "memlock", seen: "memlock 1 GiB", mended: "unlimited"},
	{name: "memlock with CAP_IPC_LOCK", spoil: put("proc/self", "limits", limits("65536", "65536", "1024", "4096"), "status", "CapEff:\t0000000000004000\nCpus_allowed_list:\t0-15"),
		level: OK, id: "memlock", seen: "CAP_IPC_LOCK"},
	{name: "CAP_IPC_LOCK in a user namespace", spoil: put("proc/self", "limits", limits("65536", "65536", "1024", "4096"), "status", "CapEff:\t0000000000004000\nCpus_allowed_list:\t0-15", "uid_map", "0 1000 1"),
		level: Fail, id: "memlock", seen: "memlock 64 KiB", mended: "unlimited"},
	{name: "limits hidden", spoil: remove("proc/self/limits"), level: Unknown, id: "memlock", seen: "there is no /proc/self/limits", mended: "ulimit -l", also: []string{"open_files"}},
	{name: "limits of another form", spoil: put("proc/self", "limits", "Max locked memory     some   more"), level: Unknown, id: "memlock", seen: `"some" of "Max locked memory" is no number`, mended: "ulimit -l", also: []string{"open_files"}},
	{name: "few files", spoil: put("proc/self", "limits", limits("unlimited", "unlimited", "256", "512")), level: Warn, id: "open_files", seen: "nofile 256, at most 512", mended: "ulimit -n"},
	{name: "docker's shm", spoil: put("proc/self", "mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0"), level: OK, id: "shm_size", seen: "64 MiB, 7 GiB free; any size will do"},
	{name: "full shm", tell: func(s *System) { s.ShmFree = topology.Known(int64(4096)) }, level: OK, id: "shm_size", seen: "8 GiB, 4 KiB free; any size will do"},
	{name: "no tmpfs", spoil: put("proc/self", "mounts", "/dev/sda1 / ext4 rw 0 0"), level: OK, id: "shm_size", seen: "any size will do"},
	{name: "no shm", spoil: func(t *testing.T, tree topologytest.Tree) {
		put("proc/self", "mounts", "/dev/sda1 / ext4 rw 0 0")(t, tree)
		remove("dev/shm/other")(t, tree)
	}, level: Warn, id: "shm_size", seen: "nothing is mounted at /dev/shm, and there is no /dev/shm", mended: "GCCL_SHM_DIR", also: []string{"shm_leftovers"}},
	{name: "shm of half the memory", spoil: put("proc/self", "mounts", "tmpfs /dev/shm tmpfs rw 0 0"), level: OK, id: "shm_size", seen: "8 GiB"},
	{name: "shm of odd size", spoil: put("proc/self", "mounts", "tmpfs /dev/shm tmpfs size=99999999999999g 0 0"), level: OK, id: "shm_size", seen: "7 GiB free; any size will do"},
	{name: "segment of NCCL", spoil: put("dev/shm", "nccl-AbCdEf", "x"), level: Info, id: "shm_leftovers", seen: "1 file, and it is not known here of which process: nccl-AbCdEf", mended: "rm /dev/shm/nccl-AbCdEf"},
	{name: "no huge pages", spoil: put("proc", "meminfo", "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB"), level: Info, id: "huge_pages", seen: "none", mended: "vm.nr_hugepages"},
	{name: "ptrace", spoil: put("proc/sys/kernel/yama", "ptrace_scope", "1"), level: Info, id: "ptrace", seen: "ptrace scope 1", mended: "ptrace_scope=0"},
	{name: "no Yama", spoil: remove("proc/sys/kernel/yama/ptrace_scope"), level: OK, id: "ptrace", seen: "scope 0"},
	{name: "CPU quota", spoil: put("sys/fs/cgroup", "cpu.max", "150000 100000"), level: Warn, id: "cpu_quota", seen: "a quota of 1.5 CPUs' time, spread over 16 CPUs (0-15)", mended: "CPU"},
	{name: "CPUs of one socket alone", spoil: put("sys/fs/cgroup", "cpuset.cpus.effective", "0-3"), level: Warn, id: "numa", seen: "GPU2 is near the CPUs 8-15", mended: "cpuset"},
	{name: "firewall", spoil: all(put("etc/ufw", "ufw.conf", "# x\nENABLED=yes"), put("proc", "modules", "xfs 1 0 - Live 0x0\nnf_tables 1 0 - Live 0x0")),
		level: Info, id: "firewall", seen: "(32768-60999); RoCE: UDP 4791; ufw is enabled, nf_tables is loaded", mended: "GCCL_PORT_RANGE"},
	{name: "ports chosen", spoil: put("run/firewalld", "x", ""), wants: Wants{Ports: "42000-42003"}, level: Info, id: "firewall", seen: "TCP: ports 42000-42003 (GCCL_PORT_RANGE); RoCE: UDP 4791; firewalld runs", mended: "let the hosts"},
	{name: "no modules file", spoil: remove("proc/modules"), level: Unknown, id: "firewall", seen: "there is no /proc/modules", mended: "GCCL_PORT_RANGE"},
	{name: "uverbs not in the container", spoil: remove("dev/infiniband/uverbs0"), level: Fail, id: "rdma_access", of: "mlx5_0", seen: "there is no /dev/infiniband/uverbs0", mended: "--device=/dev/infiniband"},
	{name: "pipe for uverbs", spoil: func(_ *testing.T, tree topologytest.Tree) {
		tree.MapFS["dev/infiniband/uverbs0"].Mode |= fs.ModeNamedPipe
	}, level: Fail, id: "rdma_access", of: "mlx5_0", seen: "uverbs0 is a pipe", mended: "--device"},
	{name: "no ib_uverbs", spoil: all(remove("sys/class/infiniband_verbs/uverbs0/ibdev"), remove("sys/class/infiniband_verbs/uverbs1/ibdev")),
		level: Fail, id: "rdma_access", of: "mlx5_1", seen: "it has no uverbs device in /sys/class/infiniband_verbs", mended: "modprobe ib_uverbs"},
	{name: "dev hidden", spoil: func(_ *testing.T, tree topologytest.Tree) {
		for name := range tree.MapFS {
			if strings.HasPrefix(name, "dev/") {
				delete(tree.MapFS, name)
			}
		}
	}, level: Unknown, id: "rdma_access", of: "mlx5_0", seen: "there is no /dev", mended: "ls -l", also: []string{"shm_leftovers"}},
	{name: "no verbs of one device", spoil: put("sys/class/infiniband_verbs/uverbs0", "ibdev", "mlx5_7"), level: Fail, id: "rdma_access", of: "mlx5_0", seen: "no uverbs device", mended: "ib_uverbs"},
	{name: "port down", spoil: change("mlx5_0/ports/1/state", "1: DOWN"), level: Info, id: "rdma_port", of: "mlx5_0 port 1", seen: "DOWN", mended: "ip link set eth0 up"},
	{name: "no subnet manager", spoil: all(change("mlx5_0/ports/1/state", "2: INIT"), change("mlx5_0/ports/1/link_layer", "InfiniBand")), level: Warn, id: "rdma_port", of: "mlx5_0 port 1", seen: "no subnet manager", mended: "opensm"},
	{name: "filter leaves no port", wants: Wants{RDMA: filter("=mlx5_9")}, level: Warn, id: "rdma", seen: "no port is usable: mlx5_0:1: the filter =mlx5_9 does not take it", mended: "GCCL_RDMA_DEVICE"},
	{name: "filter leaves one port", wants: Wants{RDMA: filter("=mlx5_1")}, level: Info, id: "rdma_port", of: "mlx5_0 port 1", seen: "the filter =mlx5_1 does not take it"},
	{name: "no port up", spoil: all(change("mlx5_0/ports/1/state", "1: DOWN"), change("mlx5_1/ports/1/state", "1: DOWN")), level: Warn, id: "rdma", seen: "no port is usable: mlx5_0 port 1 is DOWN", mended: "bring a port up",
		also: []string{"gpu_nic_distance"}},
	{name: "driver not loaded", spoil: func(t *testing.T, tree topologytest.Tree) {
		for name := range tree.MapFS {
			if strings.Contains(name, "/infiniband") {
				delete(tree.MapFS, name)
			}
		}
	}, level: Warn, id: "rdma", seen: "RDMA: none, but the card at 0000:15:00.0, 0000:a5:00.0 could", mended: "modprobe mlx5_ib"},
	{name: "small MTU", spoil: change("net/eth0/mtu", "1500"), level: Warn, id: "rdma_mtu", of: "mlx5_0 port 1", seen: "active MTU 1024 of 4096", mended: "raise the netdev MTU to 4200+ or 9000: ip link set eth0 mtu 9000"},
	{name: "link-local alone", spoil: change("mlx5_0/ports/1/gids/1", "::"), level: Warn, id: "rdma_gid", of: "mlx5_0 port 1", seen: "link-local", mended: "give eth0 an IPv4"},
	{name: "no RoCE v2", spoil: all(change("mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1"), change("mlx5_0/ports/1/gid_attrs/types/1", "IB/RoCE v1")),
		level: Fail, id: "rdma_gid", of: "mlx5_0 port 1", seen: "mlx5_0 port 1", mended: "RoCE v2"},
	{name: "GID forced outside", wants: Wants{GIDIndex: ptr(9)}, level: Fail, id: "rdma_gid", of: "mlx5_0 port 1", seen: "GID index 9 is outside its table of 2; try 1", mended: "unset GCCL_GID_INDEX"},
	{name: "GID forced to link-local", wants: Wants{GIDIndex: ptr(0)}, level: Warn, id: "rdma_gid", of: "mlx5_0 port 1", seen: "try 1", mended: "unset GCCL_GID_INDEX"},
	{name: "half the lanes", spoil: change("0000:15:00.0/current_link_width", "8"), level: Warn, id: "rdma_rate", of: "mlx5_0", seen: "8 of its 16 lanes", mended: "reseat"},
	{name: "slot of gen 3", spoil: change("0000:12:02.0/max_link_speed", "8.0 GT/s PCIe"), level: Warn, id: "rdma_rate", of: "mlx5_0", seen: "the slot carries 126 Gb/s (8 GT/s x16), the ports 200 Gb/s", mended: "slot"},
	{name: "speed unknown", spoil: all(change("0000:15:00.0/max_link_speed", "Unknown"), change("0000:12:02.0/max_link_speed", "Unknown")), level: Unknown, id: "rdma_rate", of: "mlx5_0", seen: `the kernel says "Unknown"`, mended: "lspci"},
	{name: "packets lost", spoil: change("mlx5_0/ports/1/hw_counters/out_of_sequence", "17"), level: Warn, id: "rdma_congestion", of: "mlx5_0 port 1", seen: "out_of_sequence 17", mended: "PFC"},
	{name: "neither PFC nor ECN", spoil: all(change("net/eth0/qos/pfc", "00000000"), change("net/eth0/ecn/roce_np/enable/3", "0")), level: Warn, id: "rdma_congestion", of: "mlx5_0 port 1", seen: "PFC 00000000, ECN false", mended: "DCQCN"},
	{name: "driver of the kernel", spoil: func(t *testing.T, tree topologytest.Tree) {
		for name := range tree.MapFS {
			if strings.Contains(name, "eth0/qos/") || strings.Contains(name, "eth0/ecn/") {
				delete(tree.MapFS, name)
			}
		}
	}, level: Unknown, id: "rdma_congestion", of: "mlx5_0 port 1", seen: "there is no /sys/class/net/eth0/qos/pfc", mended: "dcb pfc show dev eth0"},
	{name: "firmware hidden", spoil: func(t *testing.T, tree topologytest.Tree) {
		for name := range tree.MapFS {
			if strings.HasSuffix(name, "mlx5_0/fw_ver") {
				delete(tree.MapFS, name)
			}
		}
	}, level: Unknown, id: "rdma_firmware", of: "mlx5_0", seen: "there is no"},
	{name: "ACS without root", spoil: func(t *testing.T, tree topologytest.Tree) {
		for name, f := range tree.MapFS {
			if strings.HasSuffix(name, "/config") {
				f.Data = f.Data[:64]
			}
		}
	}, level: Unknown, id: "acs", seen: "need root", mended: "run as root"},
	{name: "IOMMU", spoil: put("sys/kernel/iommu_groups/0", "type", "DMA-FQ"), level: Warn, id: "iommu", seen: "translates", mended: "iommu=pt"},
	{name: "MIG", gpus: func(g []topology.GPUFacts) { g[1].MIG = true }, level: Info, id: "gpu_mig", of: "GPU 1 (0000:14:00.0)", seen: "MIG is on", mended: "-mig 0"},
	{name: "P2P refused", gpus: func(g []topology.GPUFacts) { g[0].P2P = map[string]topology.P2PStatus{"0000:14:00.0": "CNS"} }, level: Warn, id: "gpu_p2p", seen: "GPU0 and GPU1 (CNS)", mended: "nvidia-smi topo -p2p"},
	{name: "neither peermem nor DMA-BUF", spoil: put("proc", "modules", "xfs 1 0 - Live 0x0"), gpus: func(g []topology.GPUFacts) { g[0].DMABuf = topology.Known(false) },
		level: Warn, id: "gpu_direct", of: "GPU 0 (0000:13:00.0)", seen: "no peer memory module is loaded", mended: "modprobe nvidia_peermem"},
	{name: "link-local address", tell: func(s *System) {
		i := eth0
		i.Addrs = []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}
		s.Interfaces = topology.Known([]topology.Interface{i})
	}, level: Warn, id: "socket_interface", of: "eth0", seen: "link-local", mended: "address"},
	{name: "no such interface", wants: Wants{Interface: filter("ib9")}, level: Fail, id: "socket_interface", seen: "no interface matches ib9; have: eth0", mended: "GCCL_SOCKET_IFNAME"},
	{name: "loopback alone", tell: func(s *System) {
		s.Interfaces = topology.Known([]topology.Interface{{Name: "lo", Up: true, Running: true, Loopback: true, Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}})
	}, level: Info, id: "socket_interface", seen: "lo at 127.0.0.1", mended: "bring up"},
	{name: "loopback down", tell: func(s *System) {
		s.Interfaces = topology.Known([]topology.Interface{{Name: "lo", Loopback: true}})
	}, level: Fail, id: "socket_interface", seen: "lo: it is down", mended: "bring up the interface that reaches"},
}

// TestConditions spoils the sound host in one way at a time: the finding says so, and no other check says worse than before.
func TestConditions(t *testing.T) {
	for _, c := range conditions {
		t.Run(c.name, func(t *testing.T) { c.test(t) })
	}
}

func (c condition) test(t *testing.T) {
	tree := sound()
	if c.spoil != nil {
		c.spoil(t, tree)
	}
	gpus := driven()
	if c.gpus != nil {
		c.gpus(gpus)
	}
	h, s := look(tree, topology.Known(gpus))
	if c.tell != nil {
		c.tell(s)
	}
	findings := Examine(h, s, c.wants)
	var devices []string
	if c.of != "" {
		devices = []string{c.of}
	}
	f := of(findings, c.id, devices...)
	require.NotEmpty(t, f, "%+v", findings)
	at := slices.IndexFunc(f, func(f Finding) bool { return f.Level == c.level && strings.Contains(f.Seen, c.seen) })
	require.GreaterOrEqual(t, at, 0, "%+v", f)
	for _, other := range findings {
		if other.ID != c.id && !slices.Contains(c.also, other.ID) {
			require.Contains(t, []Level{OK, Info}, other.Level, "%+v", other)
		}
	}
	if c.mended == "" {
		return
	}
	require.Contains(t, f[at].Fix, c.mended)
}

// TestFindingsOfHostsWithHoles: with any one file outside PCI gone, unreadable or full of nonsense, there is a report, and it is JSON.
func TestFindingsOfHostsWithHoles(t *testing.T) {
	for name := range sound().MapFS {
		if strings.HasPrefix(name, "sys/devices/pci") {
			continue
		}
		for _, spoil := range []func(topologytest.Tree){
			func(tree topologytest.Tree) { delete(tree.MapFS, name) },
			func(tree topologytest.Tree) { tree.MapFS[name] = &fstest.MapFile{Data: []byte("\x00\xff nonsense -1")} },
			func(tree topologytest.Tree) { tree.Fail[name] = syscall.EACCES },
		} {
			tree := sound()
			spoil(tree)
			h, s := look(tree, topology.Known(driven()))
			r := &Report{Version: ReportVersion, Host: h, System: s}
			r.Add(Examine(h, s, Wants{})...)
			_, err := json.Marshal(r)
			require.NoError(t, err, name)
		}
	}
}

// locked is a host whose cgroup forbids a device that is there.
type locked struct{ topologytest.Tree }

func (l locked) Open(name string) (fs.File, error) {
	if name == "dev/infiniband/uverbs0" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EPERM}
	}
	return l.Tree.Open(name)
}

func TestForbiddenDevice(t *testing.T) {
	h, s := look(locked{sound()}, topology.Known(driven()))
	findings := Examine(h, s, Wants{})
	f := only(t, findings, Fail, "rdma_access", "mlx5_0")
	require.Contains(t, f.Seen, "/dev/infiniband/uverbs0 can't be opened: may not read /dev/infiniband/uverbs0")
	require.Contains(t, f.Fix, "chmod 0666 /dev/infiniband/uverbs0")
	only(t, findings, OK, "rdma_access", "mlx5_1")
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 65536: "64 KiB", 8 << 20: "8 MiB", 1536 << 20: "1.5 GiB", math.MaxInt64: "unlimited", 1 << 60: "1048576 TiB"} {
		require.Equal(t, want, bytes(n))
	}
}
