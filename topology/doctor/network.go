package doctor

import (
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// socketInterface says which interface ranks would meet on, and what became of the others.
func (x *exam) socketInterface() {
	ifaces, ok := x.s.Interfaces.Get()
	if !ok {
		x.unknown("socket_interface", "", "", "the network interfaces", x.s.Interfaces.Why())
		return
	}
	c, err := topology.Choose(ifaces, topology.Query{Filter: x.w.Interface})
	level := OK
	if err != nil && !x.w.Interface.IsSet() {
		// On a host by itself loopback does.
		if c, err = topology.Choose(ifaces, topology.Query{SameHost: true}); err == nil {
			x.add(Info, "socket_interface", "", "bring up the interface that reaches other hosts: jobs of more than one can't run", "%s at %s: %s. %s",
				c.Interface.Name, c.Addr, c.Reason, strings.Join(c.Reasons, "; "))
			return
		}
	}
	if err != nil {
		mend := "bring up the interface that reaches the other hosts, and give it an address: ip link set NAME up; ip addr add ADDRESS/BITS dev NAME"
		if x.w.Interface.IsSet() {
			mend = "set GCCL_SOCKET_IFNAME to the interface that reaches the other hosts, without a filter the best one is taken"
		}
		x.add(Fail, "socket_interface", "", mend, "%v", err)
		return
	}
	seen := c.Interface.Name + " at " + c.Addr.String() + ": " + c.Reason
	if len(c.Reasons) > 0 {
		seen += "; not " + strings.Join(c.Reasons, "; not ")
	}
	if use, _ := topology.Rails(ifaces, x.h.Nets.Or(nil), topology.Query{Filter: x.w.Interface}, c); len(use) > 1 {
		var names []string
		for _, r := range use[1:] {
			names = append(names, r.Name)
		}
		seen += "; data goes over " + strings.Join(names, ", ") + " as well, to hosts that are in the same networks"
	}
	if f := x.w.Interface.String(); strings.HasPrefix(f, "^") {
		level = Info
		seen += "; the filter " + f + " excludes, which in NCCL would let lo be chosen: here lo stays the last resort"
	}
	if c.Addr.IsLinkLocalUnicast() {
		x.add(Warn, "socket_interface", c.Interface.Name, "give the interface an address that other hosts can route to", "%s; its address is link-local, which reaches hosts on the same link only", seen)
		return
	}
	x.add(level, "socket_interface", c.Interface.Name, "", "%s", seen)
}

func (x *exam) firewall() {
	what := "TCP: ports chosen by the kernel"
	if r, ok := x.s.Ephemeral.Get(); ok && len(strings.Fields(r)) == 2 {
		what += " (" + strings.Join(strings.Fields(r), "-") + ")"
	}
	fix := "let the hosts of a job reach each other at these ports, or choose some with GCCL_PORT_RANGE=FIRST-LAST (room for two listeners a rank on this host, and one for the root)"
	if x.w.Ports != "" {
		what, fix = "TCP: ports "+x.w.Ports+" (GCCL_PORT_RANGE)", "let the hosts of a job reach each other at these ports"
	}
	roce := false
	x.ports(func(_ topology.RDMAFacts, p topology.PortFacts, _ string) {
		roce = roce || p.Layer.Or("") == "Ethernet"
	})
	if roce {
		what += "; RoCE: UDP 4791"
	}
	signs, ok := x.s.Firewalls.Get()
	switch {
	case !ok:
		x.unknown("firewall", "", fix, what+"; whether there is a firewall", x.s.Firewalls.Why())
	case len(signs) == 0:
		x.add(OK, "firewall", "", "", "%s; no sign of a firewall on this host", what)
	default:
		x.add(Info, "firewall", "", fix+"; nft list ruleset and iptables -S show the rules", "%s; %s, and only root may read the rules", what, strings.Join(signs, ", "))
	}
}

func (x *exam) bonds() {
	for _, n := range x.h.Nets.Or(nil) {
		if n.Bond == nil {
			continue
		}
		b := n.Bond
		mode, okMode := b.Mode.Get()
		policy, okPolicy := b.Policy.Get()
		switch {
		case !okMode:
			x.unknown("bond", n.Name, "", "its mode", b.Mode.Why())
		case mode == "active-backup":
			x.add(OK, "bond", n.Name, "", "active-backup: the speed of one member")
		case mode != "802.3ad" && mode != "balance-xor" && mode != "balance-tlb":
			x.add(Warn, "bond", n.Name, "use mode 802.3ad with xmit_hash_policy layer3+4", "mode %s of %d members reorders packets or needs a switch that agrees", mode, n.Flows())
		case !okPolicy:
			x.unknown("bond", n.Name, "", "its hash policy", b.Policy.Why())
		case policy == "layer2" || policy == "vlan+srcmac":
			x.add(Warn, "bond", n.Name, "xmit_hash_policy "+policy+": use layer3+4 (ip link set "+n.Name+" type bond xmit_hash_policy layer3+4); the switch hashes what comes in, set it there too",
				"mode %s, %d members, hash %s: all connections to one peer go over one member", mode, n.Flows(), policy)
		default:
			x.add(OK, "bond", n.Name, "", "mode %s, %d members, hash %s: %d connections to a peer use them all", mode, n.Flows(), policy, n.Flows())
		}
	}
}
