package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// gpu looks at what the GPUs' driver says.
func (x *exam) gpu() {
	ids := x.g.GPUs()
	gpus, asked := x.h.GPUs.Get()
	switch {
	case len(ids) == 0 && !x.visible():
		x.unknown("gpu", "", "", "GPU", x.h.PCI.Why()+"; "+x.h.GPUs.Why())
	case len(ids) == 0:
		x.add(OK, "gpu", "", "", "GPU: none")
	case !asked && x.nvidia():
		x.add(Unknown, "gpu", "", "if nvidia-smi does not list them: install the driver, or run the container with it (docker run --gpus all)", "GPU: %d on PCI; what the driver says of them is not known: %s", len(ids), x.h.GPUs.Why())
	case !asked:
		x.add(Info, "gpu", "", "", "GPU: %d on PCI, none of NVIDIA's", len(ids))
	default:
		x.add(OK, "gpu", "", "", "GPU: %s", models(gpus))
	}
	if v := x.s.Modules.Or(nil)["nvidia"]; v != "" {
		kind := ""
		if open, ok := x.s.OpenDriver.Get(); ok {
			kind = map[bool]string{true: ", open kernel module", false: ", closed kernel module"}[open]
		}
		x.add(OK, "gpu_driver", "", "", "NVIDIA driver %s%s", v, kind)
	}
	for _, f := range gpus {
		if f.MIG {
			x.add(Info, "gpu_mig", gpuName(f), "nvidia-smi -i "+strconv.Itoa(f.Dev)+" -mig 0, to use it as one", "MIG is on")
		}
	}
	x.p2p(gpus)
	x.fabric(gpus)
}

// visible reports whether /sys shows what hangs on PCI or a driver was asked.
func (x *exam) visible() bool {
	_, onPCI := x.h.PCI.Get()
	_, asked := x.h.GPUs.Get()
	return onPCI || asked
}

func (x *exam) nvidia() bool {
	return slices.ContainsFunc(x.g.GPUs(), func(id topology.NodeID) bool {
		b := x.g.Nodes[id].Bus
		return b != nil && b.Vendor == nvidiaVendor
	})
}

const nvidiaVendor = "0x10de"

func gpuName(f topology.GPUFacts) string { return fmt.Sprintf("GPU %d (%s)", f.Dev, f.Bus) }

// models counts GPUs by what they are: "8 × H200, compute capability 9.0, 139.8 GiB".
func models(gpus []topology.GPUFacts) string {
	var kinds []string
	of := map[string]int{}
	for _, f := range gpus {
		k := fmt.Sprintf("%s, compute capability %d.%d, %s", orElse(f.Name, "unnamed"), f.SM/10, f.SM%10, bytes(f.Memory))
		if of[k] == 0 {
			kinds = append(kinds, k)
		}
		of[k]++
	}
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d × %s", of[k], k)
	}
	return orElse(strings.Join(kinds, "; "), "none that this process may use")
}

// p2p says over what each pair of GPUs would exchange data.
func (x *exam) p2p(gpus []topology.GPUFacts) {
	ids := x.g.GPUs()
	if len(ids) < 2 || len(gpus) < 2 {
		return
	}
	over := map[topology.TransportKind]int{}
	var refused []string
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			c := x.g.Transport(a, b, topology.DefaultLevels())
			over[c.Kind]++
			if s := status(gpus, x.g.Nodes[a].Bus.ID, x.g.Nodes[b].Bus.ID); s != topology.P2POK && s != topology.P2PUnknown {
				refused = append(refused, fmt.Sprintf("%s and %s (%s)", x.g.Name(a), x.g.Name(b), s))
			}
		}
	}
	var ways []string
	for _, k := range []topology.TransportKind{topology.OverNVLink, topology.OverP2P, topology.OverSHM} {
		if over[k] > 0 {
			ways = append(ways, fmt.Sprintf("%d over %s", over[k], k))
		}
	}
	if len(refused) > 0 {
		x.add(Warn, "gpu_p2p", "", "nvidia-smi topo -p2p rw shows it; CNS: IOMMU or chipset settings, GNS: a GPU that does not do P2P, DR: a driver option", "the driver refuses P2P between %s; pairs: %s", some(refused), strings.Join(ways, ", "))
		return
	}
	x.add(OK, "gpu_p2p", "", "", "pairs: %s", strings.Join(ways, ", "))
}

// status is what the driver says of two GPUs, in either direction, the worse of both.
func status(gpus []topology.GPUFacts, a, b string) topology.P2PStatus {
	worst := topology.P2PUnknown
	for _, f := range gpus {
		for peer, s := range f.P2P {
			from, _ := topology.ParseBusID(f.Bus)
			to, _ := topology.ParseBusID(peer)
			if (from == a && to == b || from == b && to == a) && (worst == topology.P2PUnknown || worst == topology.P2POK) {
				worst = s
			}
		}
	}
	return worst
}

// nvSwitches are those on PCI; the driver of newer GPUs hides them.
func nvSwitches(h *topology.Host) []string {
	var all []string
	for _, d := range h.PCI.Or(nil) {
		if strings.HasPrefix(d.Class.Or(""), "0x0680") && d.Vendor.Or("") == nvidiaVendor {
			all = append(all, d.Bus)
		}
	}
	return all
}

// fabric looks whether the NVSwitches are set up. GPUs from before Hopper don't say: there the manager's process must do.
func (x *exam) fabric(gpus []topology.GPUFacts) {
	const start = "systemctl enable --now nvidia-fabricmanager, in the version of the driver"
	said, alone := false, true
	for _, f := range gpus {
		if s := strings.ToLower(f.Fabric.State); s == "" || s == "not supported" {
			continue
		}
		said = true
		if wrong := f.Fabric.Ready(); wrong != "" {
			x.add(Fail, "nvlink_fabric", gpuName(f), start, "%s", wrong)
			return
		}
		alone = alone && strings.Trim(f.Fabric.Cluster, "0-") == ""
	}
	switches := nvSwitches(x.h)
	switch runs, ok := x.s.FabricManager.Get(); {
	case said && alone:
		x.add(OK, "nvlink_fabric", "", "", "ready; its cluster is zero: no NVLink to other hosts")
	case said:
		x.add(OK, "nvlink_fabric", "", "", "ready; cluster %s, clique %d", gpus[0].Fabric.Cluster, gpus[0].Fabric.Clique)
	case len(switches) == 0:
	case ok && runs:
		x.add(OK, "nvlink_fabric", "", "", "NVSwitches: %d, and nvidia-fabricmanager runs", len(switches))
	case ok:
		x.add(Warn, "nvlink_fabric", "", start, "NVSwitches: %d, and no nvidia-fabricmanager among the processes that can be seen here (in a container it runs outside)", len(switches))
	default:
		x.unknown("nvlink_fabric", "", start, "whether nvidia-fabricmanager runs", x.s.FabricManager.Why())
	}
}

// accessControl looks at the ports above every device that takes part in traffic between devices.
func (x *exam) accessControl() {
	gpus, peers := x.onPCI()
	if len(gpus) == 0 || len(gpus)+len(peers) < 2 {
		return
	}
	control, dark, below := map[string]uint16{}, map[string]string{}, map[string][]string{}
	var order []string
	for _, bus := range append(gpus, peers...) {
		d := pci(x.h, bus)
		if d == nil {
			continue
		}
		for _, port := range d.Above.Or(nil) {
			if below[port] == nil {
				order = append(order, port)
			}
			below[port] = append(below[port], bus)
			p := pci(x.h, port)
			if p == nil {
				dark[port] = "/sys does not show it"
				continue
			}
			switch acs, ok := p.ACS.Get(); {
			case !ok:
				dark[port] = p.ACS.Why()
			case acs.State() == topology.ACSRedirect:
				control[port] = acs.Control
			}
		}
	}
	var unread []string
	for _, port := range order {
		if c, redirects := control[port]; redirects {
			x.add(Fail, "acs", port, "setpci -s "+port+" ECAP_ACS+6.w=0000 until the next boot; for good disable ACS in the firmware, or boot with a kernel that clears it. Virtual machines need it: there use ATS",
				"ACS of the port at %s redirects (ACSCtl 0x%04x); below it: %s", port, c, some(below[port]))
		}
		if dark[port] != "" {
			unread = append(unread, port)
		}
	}
	switch {
	case len(unread) > 0:
		x.unknown("acs", "", "run as root, or: lspci -vvv | grep ACSCtl", "ACS of the ports "+some(unread), dark[unread[0]])
	case len(order) == 0:
		x.add(OK, "acs", "", "", "no ports above GPUs and network cards can be seen, as in virtual machines")
	case len(control) == 0:
		x.add(OK, "acs", "", "", "none of %d ports above GPUs and network cards redirects", len(order))
	}
}

// onPCI are the buses of GPUs and of RDMA cards.
func (x *exam) onPCI() (gpus, cards []string) {
	for _, id := range x.g.GPUs() {
		if b := x.g.Nodes[id].Bus; b != nil && pci(x.h, b.ID) != nil {
			gpus = append(gpus, b.ID)
		}
	}
	for _, d := range x.h.RDMA.Or(nil) {
		if bus, ok := d.Bus.Get(); ok && !d.Software && !slices.Contains(cards, bus) {
			cards = append(cards, bus)
		}
	}
	return gpus, cards
}

func (x *exam) iommu() {
	mode, ok := x.h.IOMMU.Get()
	switch {
	case len(x.g.GPUs()) == 0 && !x.hardware():
	case !ok:
		x.unknown("iommu", "", "", "the IOMMU's mode", x.h.IOMMU.Why())
	case mode == topology.IOMMUTranslate:
		x.add(Warn, "iommu", "", "boot with iommu=pt (Intel: intel_iommu=on iommu=pt), or disable the IOMMU in the firmware; on Grace and in virtual machines it belongs on", "it translates the addresses of devices")
	default:
		x.add(OK, "iommu", "", "", "%s", mode)
	}
}

// gpuNetwork looks at how network cards get at GPU memory, and how far they are.
func (x *exam) gpuNetwork() {
	ids := x.g.GPUs()
	if len(ids) == 0 || !x.hardware() {
		return
	}
	x.direct()
	for _, c := range x.g.PairNICs(ids) {
		gpu := x.g.Name(c.GPU)
		switch {
		case c.Net == topology.NoNode:
			x.add(Warn, "gpu_nic_distance", gpu, "", "%s", joined(c.Reasons))
		case c.Path.Type > topology.PathPHB:
			x.add(Warn, "gpu_nic_distance", gpu, "put a card below the same CPU, best below the same switch, or give the job other GPUs", "%s", joined(c.Reasons))
		case c.Path.Type > topology.PathPXB && c.Path.Type != topology.PathP2C && c.Path.Type != topology.PathPXN:
			x.add(Info, "gpu_nic_distance", gpu, "put the card below the same switch as the GPU, where there is one", "%s: through the CPU, so messages go through host memory", joined(c.Reasons))
		default:
			x.add(OK, "gpu_nic_distance", gpu, "", "%s", joined(c.Reasons))
		}
	}
}

func (x *exam) direct() {
	const fix = "modprobe nvidia_peermem; or the driver's open kernel module on Linux 5.12 or later, which gives DMA-BUF"
	for i, f := range x.h.GPUs.Or(nil) {
		way, reasons := topology.ChooseGDR(f.DMABuf, x.h.PeerMemory)
		open, said := x.s.OpenDriver.Get()
		switch _, asked := f.DMABuf.Get(); {
		case way != topology.NoGDR:
			x.add(OK, "gpu_direct", gpuName(f), "", "%s: %s", way, joined(reasons))
		case !asked && (!said || open):
			// One line is enough: what is not known of one is not known of all.
			if i == 0 {
				x.add(Unknown, "gpu_direct", "", fix, "%s; the kernel module is %s", joined(reasons), map[bool]string{true: "open, so DMA-BUF is likely", false: "of an unknown kind"}[open])
			}
		default:
			x.add(Warn, "gpu_direct", gpuName(f), fix, "none: %s", joined(reasons))
		}
	}
}
