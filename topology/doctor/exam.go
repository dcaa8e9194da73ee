package doctor

import (
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/topology"
)

// exam collects the findings about one host.
type exam struct {
	h *topology.Host
	g *topology.Graph
	s *System
	w Wants

	all []Finding
}

// Wants is what the user has set, and what is to run. Its zero value asks about the host as gccl uses it by default.
type Wants struct {
	Interface topology.Filter // GCCL_SOCKET_IFNAME
	RDMA      topology.Filter // GCCL_RDMA_DEVICE
	GIDIndex  *int            // GCCL_GID_INDEX
	Ports     string          // GCCL_PORT_RANGE, for the text
	Transport string          // GCCL_TRANSPORT; "": whatever there is
	NoRDMA    string          // why jobs don't use RDMA here; "": they do
	Files     []File          // that settings name
	Software  bool            // RDMA devices of software are used without being named, where there are no others (GCCL_TRANSPORT=verbs)
}

// File is a file or directory that a setting names, and what the caller found when it tried it.
type File struct {
	From  string // the setting: GCCL_TOPO_FILE, gccl.toml:3
	Path  string
	Wrong string // "": nothing
	Fix   string
	Ends  bool // no job can start because of it
}

// Examine returns the findings about a host, at least one for each check that concerns it, in the order of [Checks].
func Examine(h *topology.Host, s *System, w Wants) []Finding {
	x := &exam{h: h, g: h.Graph(), s: s, w: w}
	x.transports()
	x.settingFiles()
	x.socketInterface()
	x.firewall()
	x.bonds()
	x.cpuQuota()
	x.numa()
	x.shmSize()
	x.shmLeftovers()
	x.openFiles()
	x.hugePages()
	x.ptrace()
	x.rdma()
	x.memlock()
	x.gpu()
	x.accessControl()
	x.iommu()
	since := len(x.all)
	x.gpuNetwork()
	x.excuse(since, w.NoRDMA)
	return sorted(x.all)
}

func (x *exam) add(l Level, id, of, fix, format string, args ...any) {
	x.all = append(x.all, Finding{ID: id, Of: of, Level: l, Seen: fmt.Sprintf(format, args...), Fix: fix})
}

// unknown says what could not be found out.
func (x *exam) unknown(id, of, fix, what, why string) {
	x.add(Unknown, id, of, fix, "%s: not known: %s", what, why)
}

// ports are all RDMA ports, with their devices.
func (x *exam) ports(visit func(d topology.RDMAFacts, p topology.PortFacts, of string)) {
	for _, d := range x.h.RDMA.Or(nil) {
		for _, p := range d.Ports {
			visit(d, p, portName(p))
		}
	}
}

func portName(p topology.PortFacts) string { return fmt.Sprintf("%s port %d", p.Device, p.Number) }

// unused is why jobs don't use an RDMA device; "": they do, or would if it worked.
func (x *exam) unused(d topology.RDMAFacts) string {
	switch {
	case x.w.NoRDMA != "":
		return x.w.NoRDMA
	case x.w.RDMA.IsSet():
		if !slices.ContainsFunc(d.Ports, func(p topology.PortFacts) bool { return x.w.RDMA.Match(d.Name, p.Number) }) {
			return fmt.Sprintf("not used: the filter %s does not take it", x.w.RDMA)
		}
	case d.Software && (!x.w.Software || x.hardware()):
		return "not used: devices of software are where GCCL_RDMA_DEVICE names them"
	}
	return ""
}

// noRDMA is why jobs use no RDMA device of this host; "": they use one.
func (x *exam) noRDMA() string {
	devices, ok := x.h.RDMA.Get()
	why := "there is no RDMA device here"
	if !ok {
		why = "whether there is an RDMA device is not known"
	}
	for _, d := range devices {
		if why = x.unused(d); why == "" {
			return ""
		}
	}
	if x.w.NoRDMA != "" {
		return "RDMA is " + x.w.NoRDMA
	}
	if len(devices) > 0 {
		return "RDMA is " + why
	}
	return why
}

// excuse makes the findings since one known as no worse than information: they are of what is not used.
func (x *exam) excuse(since int, why string) {
	for i := range x.all[since:] {
		if f := &x.all[since+i]; why != "" && (f.Level == Fail || f.Level == Warn) {
			f.Level = Info
			f.Seen += "; " + why
		}
	}
}

// hardware reports whether there is an RDMA device that is no software.
func (x *exam) hardware() bool {
	for _, d := range x.h.RDMA.Or(nil) {
		if !d.Software {
			return true
		}
	}
	return false
}

// pci returns the facts of a device on PCI, or nil.
func pci(h *topology.Host, bus string) *topology.PCIFacts {
	all := h.PCI.Or(nil)
	for i := range all {
		if all[i].Bus == bus {
			return &all[i]
		}
	}
	return nil
}
