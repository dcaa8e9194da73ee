package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ErrNoGID: a port has no GID to use, or not the one asked for. The error that wraps it names device, port and index.
var ErrNoGID = errors.New("no usable GID")

// GIDQuery is what [ChooseGID] decides by. Its zero value asks for the best GID of the port.
type GIDQuery struct {
	Forced *int         // the user's index (GCCL_IB_GID_INDEX), which is then checked and not chosen
	IPv6   bool         // prefer IPv6 to IPv4
	Range  netip.Prefix // only addresses in it, if it is valid
	V1     bool         // RoCE v1, which routers don't pass, instead of v2
	Nets   []string     // the network devices that this process sees; nil: not known, all serve
}

// GIDChoice is the GID to use and why.
type GIDChoice struct {
	GID     GID      `json:"gid"`
	Reasons []Reason `json:"reasons"`
}

// ChooseGID chooses which GID of a port connections are made from.
//
// On InfiniBand it is index 0. On RoCE it must be of RoCE v2 and its network device one that this process sees (a container has
// its own); then routable addresses come before link-local ones, IPv4 before IPv6, the port's own network device before VLANs
// and the like on it, and smaller indexes first.
//
// A forced index that is empty, and a port that is down, are errors; the former names the index that would be chosen. A forced
// link-local GID is taken with a warning among the reasons: it reaches only peers on the same link.
func ChooseGID(p PortFacts, q GIDQuery) (GIDChoice, error) {
	name := fmt.Sprintf("%s port %d", p.Device, p.Number)
	if down := p.down(); down != "" {
		return GIDChoice{}, fmt.Errorf("%w: %s: connect it, or exclude it from the devices to use", ErrNoGID, down)
	}
	if p.Layer.Or("") == "InfiniBand" {
		return chooseInfiniBand(p, q, name)
	}
	best, why := chooseRoCE(p, q)
	if q.Forced == nil {
		if best == nil {
			return GIDChoice{}, fmt.Errorf("%w: %s has none of RoCE v%d%s (%s): give %s an address",
				ErrNoGID, name, 2-btoi(q.V1), inRange(q), strings.Join(why, "; "), p.NetDevice.Or("its network device"))
		}
		return GIDChoice{*best, best.reasons(p, why)}, nil
	}
	try := "the port has no other that would serve"
	if best != nil {
		try = fmt.Sprintf("try %d", best.Index)
	}
	if *q.Forced < 0 || p.TableSize > 0 && *q.Forced >= p.TableSize {
		return GIDChoice{}, fmt.Errorf("%w: %s GID index %d is outside its table of %d; %s", ErrNoGID, name, *q.Forced, p.TableSize, try)
	}
	for i := range p.GIDs {
		g := &p.GIDs[i]
		if g.Index != *q.Forced {
			continue
		}
		reasons := []Reason{because("index %d was asked for", g.Index)}
		if fault := g.fault(q); fault != "" {
			reasons = append(reasons, because("warning: %s; %s", fault, try))
		} else if g.Addr.IsLinkLocalUnicast() {
			reasons = append(reasons, because("warning: %s is link-local: peers behind a router are out of reach; %s", g.Addr, try))
		}
		return GIDChoice{*g, reasons}, nil
	}
	return GIDChoice{}, fmt.Errorf("%w: %s GID index %d is empty; %s", ErrNoGID, name, *q.Forced, try)
}

func chooseInfiniBand(p PortFacts, q GIDQuery, name string) (GIDChoice, error) {
	index := 0
	if q.Forced != nil {
		index = *q.Forced
	}
	for _, g := range p.GIDs {
		if g.Index == index {
			return GIDChoice{g, []Reason{because("%s is InfiniBand: index %d", name, index)}}, nil
		}
	}
	return GIDChoice{}, fmt.Errorf("%w: %s GID index %d is empty; on InfiniBand index 0 is set by the subnet manager: is one running?", ErrNoGID, name, index)
}

// chooseRoCE returns the best GID, or nil, and why the others are not.
func chooseRoCE(p PortFacts, q GIDQuery) (best *GID, why []string) {
	for i := range p.GIDs {
		g := &p.GIDs[i]
		if fault := g.fault(q); fault != "" {
			why = append(why, fault)
		} else if best == nil || g.compare(*best, p, q) < 0 {
			best = g
		}
	}
	return best, why
}

// fault is why a GID can't serve, "" if it can. A type that can't be read is one of an entry that is being changed.
func (g GID) fault(q GIDQuery) string {
	want := "RoCE v2"
	if q.V1 {
		want = "IB/RoCE v1"
	}
	switch kind, ok := g.Type.Get(); {
	case !ok:
		return fmt.Sprintf("the type of index %d is not known: %s", g.Index, g.Type.Why())
	case kind != want:
		return fmt.Sprintf("index %d is %s", g.Index, kind)
	}
	if q.Range.IsValid() && !q.Range.Contains(g.Addr.Unmap()) {
		return fmt.Sprintf("index %d, %s, is not in %s", g.Index, g.Addr.Unmap(), q.Range)
	}
	if dev, ok := g.NetDevice.Get(); ok && q.Nets != nil && !slices.Contains(q.Nets, dev) {
		return fmt.Sprintf("index %d belongs to %s, which this process doesn't see", g.Index, dev)
	}
	return ""
}

func (g GID) compare(h GID, p PortFacts, q GIDQuery) int {
	wrong := func(g GID) []int {
		return []int{
			btoi(g.Addr.IsLinkLocalUnicast()), btoi(g.Addr.Is4In6() == q.IPv6),
			btoi(g.NetDevice.Or("") != p.NetDevice.Or("")), g.Index,
		}
	}
	return slices.Compare(wrong(g), wrong(h))
}

func (g GID) reasons(p PortFacts, others []string) []Reason {
	what := "routable"
	if g.Addr.IsLinkLocalUnicast() {
		what = "link-local, for want of a routable one: peers behind a router are out of reach"
	}
	reasons := []Reason{because("index %d of %s port %d is %s at %s: %s, %s",
		g.Index, p.Device, p.Number, g.Type, g.NetDevice.Or("an unknown network device"), g.Addr.Unmap(), what)}
	for _, o := range others {
		reasons = append(reasons, Reason(o))
	}
	return reasons
}

func inRange(q GIDQuery) string {
	if q.Range.IsValid() {
		return " in " + q.Range.String()
	}
	return ""
}

// PathMTU is the largest message that both ends of a connection may send in one packet: the smaller of their active MTUs. If
// only one is known it is that one's, and unknown if none is.
func PathMTU(a, b Fact[int]) Fact[int] {
	switch {
	case a.known && b.known:
		return Known(min(a.value, b.value))
	case b.known:
		return b
	}
	return a
}

// ChoosePorts returns the ports to use: those a filter takes that are up. The second list says why the others are dropped.
func ChoosePorts(devices []RDMAFacts, f Filter) (use []PortFacts, dropped []Reason) {
	for _, d := range devices {
		for _, p := range d.Ports {
			switch down := p.down(); {
			case !f.Match(d.Name, p.Number):
				dropped = append(dropped, because("%s:%d: the filter %s does not take it", d.Name, p.Number, f))
			case down != "":
				dropped = append(dropped, Reason(down))
			default:
				use = append(use, p)
			}
		}
	}
	return use, dropped
}
