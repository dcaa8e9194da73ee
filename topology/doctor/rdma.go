package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// rdma looks at RDMA devices and their ports.
func (x *exam) rdma() {
	devices, ok := x.h.RDMA.Get()
	switch {
	case !ok:
		x.unknown("rdma", "", "", "RDMA", x.h.RDMA.Why())
		return
	case len(devices) == 0:
		if cards := x.undriven(); len(cards) > 0 {
			x.add(Warn, "rdma", "", "load its driver: modprobe mlx5_ib ib_uverbs (or bnxt_re, irdma, efa), and install rdma-core", "RDMA: none, but the card at %s could", strings.Join(cards, ", "))
			return
		}
		x.add(OK, "rdma", "", "", "RDMA: none")
		return
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	x.add(OK, "rdma", "", "", "RDMA: %s", strings.Join(names, ", "))
	if x.w.NoRDMA != "" {
		then := "jobs of several hosts use TCP"
		if x.w.Transport == "shm" {
			then = "jobs are of one host alone"
		}
		x.add(Info, "rdma", "", "", "%s: %s", x.w.NoRDMA, then)
	}
	use, dropped := topology.ChoosePorts(devices, x.w.RDMA)
	if len(use) == 0 && x.w.NoRDMA == "" {
		fix := "bring a port up (see rdma_port); until then jobs of several hosts use TCP"
		if x.w.RDMA.IsSet() {
			fix = "let GCCL_RDMA_DEVICE (NCCL_IB_HCA) take a port that is active, or unset it"
		}
		x.add(Warn, "rdma", "", fix, "no port is usable: %s", joined(dropped))
	}
	for _, d := range devices {
		since := len(x.all)
		x.device(d, func(device string, port int) bool {
			return slices.ContainsFunc(use, func(u topology.PortFacts) bool { return u.Device == device && u.Number == port })
		})
		x.excuse(since, x.unused(d))
	}
}

// device looks at one RDMA device and those of its ports that are used.
func (x *exam) device(d topology.RDMAFacts, used func(device string, port int) bool) {
	x.verbs(d)
	if d.Software {
		x.add(Info, "rdma_software", d.Name, "", "software RoCE: a driver over the network device %s", parent(d))
	}
	x.firmware(d)
	x.rate(d)
	for _, p := range d.Ports {
		of := portName(p)
		x.port(p, of)
		if used(p.Device, p.Number) {
			x.gid(p, of)
			x.mtu(d, p, of)
		}
	}
	for _, c := range x.s.Congestion {
		if c.Device == d.Name && used(c.Device, c.Port) {
			x.congestion(c)
		}
	}
}

// undriven are the cards on PCI that surely do RDMA: InfiniBand controllers.
func (x *exam) undriven() []string {
	var cards []string
	for _, d := range x.h.PCI.Or(nil) {
		if strings.HasPrefix(d.Class.Or(""), "0x0207") {
			cards = append(cards, d.Bus)
		}
	}
	return cards
}

func (x *exam) verbs(d topology.RDMAFacts) {
	nodes, ok := x.s.Verbs.Get()
	at := slices.IndexFunc(nodes, func(n VerbsNode) bool { return n.Device == d.Name })
	switch {
	case !ok:
		x.unknown("rdma_access", d.Name, "ls -l /dev/infiniband", "its character device", x.s.Verbs.Why())
	case at < 0:
		x.add(Fail, "rdma_access", d.Name, "modprobe ib_uverbs", "it has no uverbs device in /sys/class/infiniband_verbs")
	case nodes[at].Open.Why() != "":
		x.add(Fail, "rdma_access", d.Name, "docker run --device=/dev/infiniband (Kubernetes: the RDMA device plugin); on a host: chmod 0666 "+nodes[at].Path+", as rdma-core's udev rules do",
			"%s can't be opened: %s", nodes[at].Path, nodes[at].Open.Why())
	default:
		x.add(OK, "rdma_access", d.Name, "", "%s", nodes[at].Path)
	}
}

func (x *exam) port(p topology.PortFacts, of string) {
	state, ok := p.State.Get()
	layer := p.Layer.Or("unknown link layer")
	switch {
	case !ok:
		x.unknown("rdma_port", of, "", "its state", p.State.Why())
	case !x.w.RDMA.Match(p.Device, p.Number):
		x.add(Info, "rdma_port", of, "", "%s; the filter %s does not take it", state, x.w.RDMA)
	case state == "ACTIVE":
		x.add(OK, "rdma_port", of, "", "ACTIVE, %s, %s", layer, p.Rate.Or("rate unknown"))
	case state == "INIT" && layer == "InfiniBand":
		x.add(Warn, "rdma_port", of, "start a subnet manager (opensm) or enable the switch's", "INIT: the link is up, but no subnet manager has configured it")
	default:
		fix := "if it should carry traffic: check cable and switch"
		if net := p.NetDevice.Or(""); net != "" && layer == "Ethernet" {
			fix += ", ip link set " + net + " up"
		}
		x.add(Info, "rdma_port", of, fix, "the port is %s (%s), and is skipped", state, p.Physical.Or("physical state unknown"))
	}
}

func (x *exam) gid(p topology.PortFacts, of string) {
	q := topology.GIDQuery{Forced: x.w.GIDIndex}
	if nets, ok := x.h.Nets.Get(); ok {
		q.Nets = []string{}
		for _, n := range nets {
			q.Nets = append(q.Nets, n.Name)
		}
	}
	c, err := topology.ChooseGID(p, q)
	if err != nil {
		fix := "give its network device an IP address, and RoCE v2 (cma_roce_mode -m 2)"
		if x.w.GIDIndex != nil {
			fix = "unset GCCL_GID_INDEX (NCCL_IB_GID_INDEX): the right index is then found"
		}
		x.add(Fail, "rdma_gid", of, fix, "%v", err)
		return
	}
	seen, level, fix := joined(c.Reasons), OK, ""
	if strings.Contains(seen, "warning: ") {
		level, fix = Warn, "unset GCCL_GID_INDEX (NCCL_IB_GID_INDEX): the right index is then found"
	} else if p.Layer.Or("") == "Ethernet" && c.GID.Addr.IsLinkLocalUnicast() {
		level, fix = Warn, "give "+c.GID.NetDevice.Or("its network device")+" an IPv4 or a global IPv6 address"
	}
	x.add(level, "rdma_gid", of, fix, "%s", seen)
}

func joined(reasons []topology.Reason) string {
	var all []string
	for _, r := range reasons {
		all = append(all, string(r))
	}
	return strings.Join(all, "; ")
}

func (x *exam) mtu(d topology.RDMAFacts, p topology.PortFacts, of string) {
	mtu, ok := p.MTU.Get()
	switch net := p.NetDevice.Or("its network device"); {
	case !ok:
		x.unknown("rdma_mtu", of, "ibv_devinfo shows active_mtu", "the active MTU", p.MTU.Why())
	case mtu >= 4096:
		x.add(OK, "rdma_mtu", of, "", "active MTU %d", mtu)
	case d.Software:
		x.add(Info, "rdma_mtu", of, "raise the MTU of "+net+" to 4200 or more", "active MTU %d of 4096", mtu)
	default:
		x.add(Warn, "rdma_mtu", of, fmt.Sprintf("raise the netdev MTU to 4200+ or 9000: ip link set %s mtu 9000, on all hosts and switches", net), "active MTU %d of 4096", mtu)
	}
}

// rate compares what the ports of a device carry with what its slot does.
func (x *exam) rate(d topology.RDMAFacts) {
	if d.Software {
		return
	}
	bus, ok := d.Bus.Get()
	card := pci(x.h, bus)
	if !ok || card == nil {
		x.unknown("rdma_rate", d.Name, "", "its slot", orElse(d.Bus.Why(), orElse(x.h.PCI.Why(), "/sys shows no PCI device "+bus)))
		return
	}
	sum, known := 0, false
	for _, p := range d.Ports {
		if mbps, ok := p.Mbps.Get(); ok && p.State.Or("") == "ACTIVE" {
			sum, known = sum+mbps, true
		}
	}
	gts, width := card.MaxGTs.Or(0), card.MaxWidth.Or(0)
	if above := card.Above.Or(nil); len(above) > 0 {
		if port := pci(x.h, above[len(above)-1]); port != nil {
			gts, width = lesser(gts, port.MaxGTs.Or(0)), lesser(width, port.MaxWidth.Or(0))
		}
	}
	if now, ok := card.Width.Get(); ok && width > 0 && now < width {
		x.add(Warn, "rdma_rate", d.Name, "reseat the card, update its firmware, or look for errors: lspci -vvs "+bus+" (LnkSta)", "the link at %s has %d of its %d lanes", bus, now, width)
		width = now
	}
	if gts == 0 || width == 0 {
		x.unknown("rdma_rate", d.Name, "lspci -vvs "+bus, "speed and width of its slot", orElse(card.MaxGTs.Why(), card.MaxWidth.Why()))
		return
	}
	slot := pcieGbps(gts, width)
	switch {
	case !known:
		x.add(Info, "rdma_rate", d.Name, "", "the slot carries %.0f Gb/s (%g GT/s x%d); no port is active", slot, gts, width)
	case float64(sum) > 1000*slot:
		x.add(Warn, "rdma_rate", d.Name, "move the card to a slot that is faster or wider, or set the slot's generation in the firmware", "the slot carries %.0f Gb/s (%g GT/s x%d), the ports %g Gb/s", slot, gts, width, float64(sum)/1000)
	default:
		x.add(OK, "rdma_rate", d.Name, "", "the slot carries %.0f Gb/s (%g GT/s x%d), the ports %g Gb/s", slot, gts, width, float64(sum)/1000)
	}
}

// pcieGbps is the bandwidth of a slot after its line code, which is 8b/10b up to 5 GT/s and 128b/130b above (1b/1b from 64 GT/s on).
func pcieGbps(gts float64, width int) float64 {
	raw := gts * float64(width)
	switch {
	case gts <= 5:
		return raw * 8 / 10
	case gts < 64:
		return raw * 128 / 130
	}
	return raw
}

func lesser[T int | float64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func orElse(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func (x *exam) firmware(d topology.RDMAFacts) {
	fw, ok := d.Firmware.Get()
	if !ok {
		x.unknown("rdma_firmware", d.Name, "", "its firmware", d.Firmware.Why())
		return
	}
	seen := "firmware " + fw
	if m := d.Model.Or(""); m != "" {
		seen += ", " + m
	}
	if card := pci(x.h, d.Bus.Or("")); card != nil && card.Driver.Or("") != "" {
		driver := card.Driver.Or("")
		if v := x.s.Modules.Or(nil)[driver]; v != "" {
			driver += " " + v
		}
		seen += ", driver " + driver
	}
	x.add(OK, "rdma_firmware", d.Name, "", "%s", seen)
}

func (x *exam) congestion(c Congestion) {
	of := fmt.Sprintf("%s port %d", c.Device, c.Port)
	const fix = "PFC on one lossless priority or ECN (DCQCN), the same on hosts and switches: dcb pfc show dev, or mlnx_qos -i; and traffic_class in gccl's configuration for that priority"
	if lost := c.Lost.Or(nil); len(lost) > 0 {
		var words []string
		for _, name := range slices.Sorted(maps.Keys(lost)) {
			words = append(words, fmt.Sprintf("%s %d", name, lost[name]))
		}
		x.add(Warn, "rdma_congestion", of, fix, "packets were lost or late since the driver started: %s", strings.Join(words, ", "))
	}
	pfc, okPFC := c.PFC.Get()
	ecn, okECN := c.ECN.Get()
	seen := "PFC " + known(c.PFC) + ", ECN " + known(c.ECN) + ", traffic class " + known(c.Class)
	switch on := strings.Contains(pfc, "1") || ecn; {
	case on:
		x.add(OK, "rdma_congestion", of, "", "%s", seen)
	case okPFC && okECN:
		x.add(Warn, "rdma_congestion", of, fix, "%s: neither keeps packets from being lost", seen)
	default:
		why := c.ECN.Why()
		if !okPFC {
			why = c.PFC.Why()
		}
		x.unknown("rdma_congestion", of, "ask DCB, which files don't show: dcb pfc show dev "+orElse(c.Net, "NETDEV"), seen, why)
	}
}

func known[T any](f topology.Fact[T]) string {
	if v, ok := f.Get(); ok {
		return fmt.Sprint(v)
	}
	return "unknown"
}

func parent(d topology.RDMAFacts) string {
	for _, p := range d.Ports {
		if n := p.NetDevice.Or(""); n != "" {
			return n
		}
	}
	return "that /sys does not name"
}
