package doctor

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// System is what [Examine] looks at besides a [topology.Host]. It is plain data; what could not be read is unknown, with the reason.
type System struct {
	Kernel  topology.Fact[string]            `json:"kernel"`
	Modules topology.Fact[map[string]string] `json:"modules"` // those of RDMA, GPUs and firewalls that are loaded, with their versions, "" if they say none

	Memlock   topology.Fact[Limit] `json:"memlock"`  // bytes
	OpenFiles topology.Fact[Limit] `json:"nofile"`   // descriptors
	IPCLock   topology.Fact[bool]  `json:"ipc_lock"` // the process has CAP_IPC_LOCK, for which memlock is no limit

	ShmDir     string                   `json:"shm_dir"` // where ranks of one host meet; "" in reports from before there was a choice: [ShmDir]
	Shm        topology.Fact[Shm]       `json:"shm"`
	ShmFree    topology.Fact[int64]     `json:"shm_free"`              // bytes; given by the caller
	ShmRefused string                   `json:"shm_refused,omitempty"` // why this process can't meet others there, though it is there; given by the caller
	Segments   topology.Fact[[]Segment] `json:"segments"`
	HugePages  topology.Fact[HugePages] `json:"huge_pages"`
	Ptrace     topology.Fact[int]       `json:"ptrace"`    // Yama's scope, 0 without Yama
	Ephemeral  topology.Fact[string]    `json:"ephemeral"` // the ports that the kernel chooses from: "32768 60999"
	Firewalls  topology.Fact[[]string]  `json:"firewalls"` // signs of one

	Verbs         topology.Fact[[]VerbsNode] `json:"verbs"`
	Congestion    []Congestion               `json:"congestion"`     // for each RoCE port
	FabricManager topology.Fact[bool]        `json:"fabric_manager"` // whether nvidia-fabricmanager runs, as far as its process can be seen
	OpenDriver    topology.Fact[bool]        `json:"open_driver"`    // whether NVIDIA's kernel module is the open one

	// Interfaces are the host's network interfaces with their addresses; given by the caller.
	Interfaces topology.Fact[[]topology.Interface] `json:"-"`

	// RDMALimits are the limits of devices, by name, as libibverbs gives them; given by the caller.
	RDMALimits map[string]topology.RDMALimits `json:"rdma_limits,omitempty"`
}

// Read looks at a host below root, where h was discovered, and whose ranks meet in shmDir, a clean absolute path ([ShmDir] by default). It changes nothing and never fails. Of the character devices it opens those
// of RDMA, for reading, to learn whether it may. ShmFree, ShmRefused, Interfaces and RDMALimits are left to the caller.
func Read(root fs.FS, h *topology.Host, shmDir string) *System {
	f := files{root}
	s := &System{
		Kernel: f.text("proc/sys/kernel/osrelease"), Modules: f.modules(),
		Memlock: f.limit("Max locked memory"), OpenFiles: f.limit("Max open files"), IPCLock: f.ipcLock(),
		ShmDir: shmDir, Shm: f.shm(shmDir), Segments: f.segments(shmDir), HugePages: f.hugePages(), Ptrace: f.ptrace(),
		Ephemeral: f.text("proc/sys/net/ipv4/ip_local_port_range"), Firewalls: f.firewalls(),
		Verbs: f.verbs(), OpenDriver: f.openDriver(),
		ShmFree:       topology.Unknown[int64]("files don't tell"),
		Interfaces:    topology.Unknown[[]topology.Interface]("files don't tell addresses"),
		FabricManager: topology.Unknown[bool]("the host has no NVSwitch"),
	}
	for _, d := range h.RDMA.Or(nil) {
		for _, p := range d.Ports {
			if p.Layer.Or("") == "Ethernet" && !d.Software {
				s.Congestion = append(s.Congestion, f.congestion(p))
			}
		}
	}
	if len(nvSwitches(h)) > 0 {
		s.FabricManager = f.fabricManager()
	}
	return s
}

// files reads below a root.
type files struct{ root fs.FS }

func (f files) text(elem ...string) topology.Fact[string] {
	return topology.ReadText(f.root, path.Join(elem...))
}

// names are those in a folder.
func (f files) names(dir string) topology.Fact[[]string] {
	entries, err := fs.ReadDir(f.root, dir)
	if err != nil && len(entries) == 0 {
		return unread[[]string](dir, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return topology.Known(names)
}

// unread says why a file was not.
func unread[T any](name string, err error) topology.Fact[T] {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return topology.Unknown[T]("there is no /%s", name)
	case errors.Is(err, fs.ErrPermission):
		return topology.Unknown[T]("may not read /%s", name)
	}
	return topology.Unknown[T]("/%s: %v", name, err)
}

// parsed goes on from a text. Parse says "" if all is well, else what is wrong.
func parsed[T, U any](from topology.Fact[T], parse func(T) (U, string)) topology.Fact[U] {
	v, ok := from.Get()
	if !ok {
		return topology.Unknown[U]("%s", from.Why())
	}
	to, wrong := parse(v)
	if wrong != "" {
		return topology.Unknown[U]("%s", wrong)
	}
	return topology.Known(to)
}

// value is the text behind a name at the beginning of one of a text's lines.
func value(text, name string) (string, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// watched are the modules whose presence or version matters.
var watched = []string{
	"ib_uverbs", "rdma_cm", "mlx5_core", "mlx5_ib", "mlx4_ib", "bnxt_re", "irdma", "efa", "hfi1", "rdma_rxe", "siw",
	"nvidia", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "amdgpu", "nf_tables", "ip_tables",
}

func (f files) modules() topology.Fact[map[string]string] {
	if _, err := fs.Stat(f.root, "sys/module"); err != nil {
		return unread[map[string]string]("sys/module", err)
	}
	loaded := map[string]string{}
	for _, m := range watched {
		if _, err := fs.Stat(f.root, "sys/module/"+m); err == nil {
			loaded[m] = f.text("sys/module", m, "version").Or("")
		}
	}
	return topology.Known(loaded)
}

func (f files) hugePages() topology.Fact[HugePages] {
	return parsed(f.text("proc/meminfo"), func(t string) (h HugePages, wrong string) {
		for _, w := range []struct {
			name string
			to   *int64
		}{{"HugePages_Total:", &h.Total}, {"HugePages_Free:", &h.Free}, {"Hugepagesize:", &h.Bytes}} {
			v, _ := value(t, w.name)
			n, err := strconv.ParseInt(strings.TrimSuffix(v, " kB"), 10, 53)
			if err != nil || n < 0 {
				return h, "/proc/meminfo has no " + strings.TrimSuffix(w.name, ":")
			}
			*w.to = n
		}
		h.Bytes <<= 10
		return h, ""
	})
}

// HugePages are the pages of the default huge size.
type HugePages struct {
	Total int64 `json:"total"`
	Free  int64 `json:"free"`
	Bytes int64 `json:"bytes"` // of one
}

func (f files) ptrace() topology.Fact[int] {
	const name = "proc/sys/kernel/yama/ptrace_scope"
	if _, err := fs.Stat(f.root, name); errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(f.root, "proc/sys/kernel"); err == nil {
			return topology.Known(0) // a kernel without Yama
		}
	}
	return parsed(f.text(name), func(t string) (int, string) {
		n, err := strconv.Atoi(t)
		if err != nil {
			return 0, "/" + name + " holds no number"
		}
		return n, ""
	})
}

// firewalls looks for what hosts load or start to have one. Their rules only root may read, with nft or iptables.
func (f files) firewalls() topology.Fact[[]string] {
	signs := []string{}
	if strings.Contains(f.text("etc/ufw/ufw.conf").Or(""), "ENABLED=yes") {
		signs = append(signs, "ufw is enabled")
	}
	if _, err := fs.Stat(f.root, "run/firewalld"); err == nil {
		signs = append(signs, "firewalld runs")
	}
	if t := f.text("proc/net/ip_tables_names").Or(""); t != "" {
		signs = append(signs, "iptables has the tables "+strings.Join(strings.Fields(t), " "))
	}
	modules := f.text("proc/modules")
	if t, _ := modules.Get(); strings.HasPrefix(t, "nf_tables ") || strings.Contains(t, "\nnf_tables ") {
		signs = append(signs, "nf_tables is loaded")
	}
	if len(signs) == 0 && modules.Why() != "" {
		return topology.Unknown[[]string]("%s", modules.Why())
	}
	return topology.Known(signs)
}

func (f files) openDriver() topology.Fact[bool] {
	return parsed(f.text("proc/driver/nvidia/version"), func(t string) (bool, string) {
		return strings.Contains(t, "Open Kernel Module"), ""
	})
}

// fabricManager looks for the process, whose name the kernel cuts at 15 letters.
func (f files) fabricManager() topology.Fact[bool] {
	return parsed(f.names("proc"), func(names []string) (bool, string) {
		for _, pid := range names {
			if _, err := strconv.Atoi(pid); err == nil && f.text("proc", pid, "comm").Or("") == "nv-fabricmanage" {
				return true, ""
			}
		}
		return false, ""
	})
}
