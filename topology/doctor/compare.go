package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// Compare returns findings about two hosts of one job: what must be the same on both and is not. Ports are compared by their device's
// name and number, which are the same on hosts of one kind. Ours is the host that the findings are for.
func Compare(ours, theirs *Report, w Wants) []Finding {
	x := &exam{h: ours.Host, s: ours.System, w: w}
	x.againstPorts(theirs)
	x.excuse(0, w.NoRDMA)
	x.againstGPUs(theirs)
	x.againstVersions(theirs)
	return sorted(x.all)
}

func (x *exam) againstPorts(theirs *Report) {
	devices, ok := theirs.Host.RDMA.Get()
	if _, mine := x.h.RDMA.Get(); !ok || !mine {
		x.unknown("against_rdma_link", "", "", "RDMA of both hosts", orElse(x.h.RDMA.Why(), theirs.Host.RDMA.Why()))
		return
	}
	use, _ := topology.ChoosePorts(x.h.RDMA.Or(nil), x.w.RDMA)
	other, _ := topology.ChoosePorts(devices, x.w.RDMA)
	for _, p := range use {
		of := portName(p)
		at := slices.IndexFunc(other, func(q topology.PortFacts) bool { return q.Device == p.Device && q.Number == p.Number })
		if at < 0 {
			x.add(Warn, "against_rdma_link", of, "look at that host: gccl doctor", "the other host has no such port that is usable")
			continue
		}
		x.againstPort(p, other[at], of)
		x.againstSubnet(p, other[at], other, of)
	}
	for _, q := range other {
		if !slices.ContainsFunc(use, func(p topology.PortFacts) bool { return q.Device == p.Device && q.Number == p.Number }) {
			x.add(Warn, "against_rdma_link", portName(q), "look at this host's rdma_port", "the other host uses it, this one can't")
		}
	}
	if len(use)+len(other) == 0 {
		x.add(OK, "against_rdma_link", "", "", "neither host has a usable RDMA port")
	}
}

func (x *exam) againstPort(p, q topology.PortFacts, of string) {
	layers := p.Layer.Or("unknown") + " here, " + q.Layer.Or("unknown") + " there"
	rates := p.Rate.Or("unknown rate") + " here, " + q.Rate.Or("unknown rate") + " there"
	switch {
	case p.Layer.Or("") != q.Layer.Or(""):
		x.add(Fail, "against_rdma_link", of, "set both ports to the same link layer (mlxconfig LINK_TYPE_P1)", "%s", layers)
		return
	case p.Mbps.Or(0) != q.Mbps.Or(0):
		x.add(Warn, "against_rdma_link", of, "the same cable, switch port and speed on both", "%s", rates)
	default:
		x.add(OK, "against_rdma_link", of, "", "%s, %s on both", p.Layer.Or("unknown link layer"), p.Rate.Or("unknown rate"))
	}
	mine, okMine := p.MTU.Get()
	other, okOther := q.MTU.Get()
	switch {
	case !okMine || !okOther:
		x.unknown("against_rdma_mtu", of, "ibv_devinfo shows active_mtu", "the active MTU of both", orElse(p.MTU.Why(), q.MTU.Why()))
	case mine != other:
		x.add(Warn, "against_rdma_mtu", of, "the same MTU on both hosts and the switches between: ip link set "+p.NetDevice.Or("NETDEV")+" mtu 9000",
			"active MTU %d here, %d there: connections use %v, and large messages hang where a program doesn't", mine, other, topology.PathMTU(p.MTU, q.MTU))
	default:
		x.add(OK, "against_rdma_mtu", of, "", "active MTU %d on both", mine)
	}
	x.againstGID(p, q, of)
}

// againstSubnet says where two ports of one name are in different subnets. Networks may be routed so; but where the other host has the subnet at
// another port, its cables are crossed.
func (x *exam) againstSubnet(p, q topology.PortFacts, others []topology.PortFacts, of string) {
	mine, okMine := p.Subnet.Get()
	theirs, okTheirs := q.Subnet.Get()
	if !okMine || !okTheirs || mine == theirs {
		return
	}
	if at := slices.IndexFunc(others, func(o topology.PortFacts) bool { return o.Subnet.Or("") == mine }); at >= 0 {
		x.add(Warn, "against_subnet", of, "cable or address both hosts alike", "%s here, %s there, where %s is in %s", mine, theirs, portName(others[at]), mine)
		return
	}
	x.add(Info, "against_subnet", of, "if RDMA between the hosts fails: a router between the subnets, or addresses in one", "%s here, %s there", mine, theirs)
}

func (x *exam) againstGID(p, q topology.PortFacts, of string) {
	a, errA := topology.ChooseGID(p, topology.GIDQuery{Forced: x.w.GIDIndex})
	b, errB := topology.ChooseGID(q, topology.GIDQuery{Forced: x.w.GIDIndex})
	const fix = "an IPv4 address on the network devices of both; and no GCCL_GID_INDEX, since the right index may differ"
	switch {
	case errA != nil || errB != nil:
		err := errA
		if err == nil {
			err = fmt.Errorf("on the other host: %w", errB)
		}
		x.add(Fail, "against_gid", of, fix, "%v", err)
	case a.GID.Addr.Is4In6() != b.GID.Addr.Is4In6() || a.GID.Type.Or("") != b.GID.Type.Or(""):
		x.add(Fail, "against_gid", of, fix, "%s here, %s there", describe(a.GID), describe(b.GID))
	default:
		x.add(OK, "against_gid", of, "", "%s here, %s there", describe(a.GID), describe(b.GID))
	}
}

func describe(g topology.GID) string {
	return fmt.Sprintf("index %d, %s, %s", g.Index, g.Type.Or("unknown type"), g.Addr.Unmap())
}

func (x *exam) againstGPUs(theirs *Report) {
	mine, okMine := x.h.GPUs.Get()
	other, okOther := theirs.Host.GPUs.Get()
	switch {
	case !okMine && !okOther:
	case !okMine || !okOther:
		x.unknown("against_gpu", "", "", "the GPUs of both hosts", orElse(x.h.GPUs.Why(), theirs.Host.GPUs.Why()))
	case models(mine) != models(other):
		x.add(Warn, "against_gpu", "", "use hosts of one kind", "%s here, %s there", models(mine), models(other))
	default:
		x.add(OK, "against_gpu", "", "", "%s on both", models(mine))
	}
}

// againstVersions compares the kernel, modules and firmware.
func (x *exam) againstVersions(theirs *Report) {
	mine, other := versions(x.h, x.s), versions(theirs.Host, theirs.System)
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if v, ok := other[name]; ok && v != mine[name] {
			differ = append(differ, fmt.Sprintf("%s: %s here, %s there", name, mine[name], v))
		}
	}
	if len(differ) > 0 {
		x.add(Warn, "against_versions", "", "bring both hosts to the same versions", "%s", strings.Join(differ, "; "))
		return
	}
	x.add(OK, "against_versions", "", "", "the %d versions that both know are equal", common(mine, other))
}

func common(a, b map[string]string) int {
	n := 0
	for name := range a {
		if _, ok := b[name]; ok {
			n++
		}
	}
	return n
}

func versions(h *topology.Host, s *System) map[string]string {
	all := map[string]string{}
	if v, ok := s.Kernel.Get(); ok {
		all["kernel"] = v
	}
	for m, v := range s.Modules.Or(nil) {
		if v != "" {
			all["module "+m] = v
		}
	}
	for _, d := range h.RDMA.Or(nil) {
		if v, ok := d.Firmware.Get(); ok {
			all["firmware of "+d.Name] = v
		}
	}
	return all
}
