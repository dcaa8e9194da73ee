package topology

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ErrNoInterface: no interface can serve. The error that wraps it names the interfaces there are, and what is wrong with each.
var ErrNoInterface = errors.New("no usable network interface")

// ErrNotUp comes with ErrNoInterface where an interface would do if it were up and had a carrier and an address, as one may soon
// in a host or container that is just starting.
var ErrNotUp = errors.New("an interface is not up")

// Choice is the interface and address to listen on.
type Choice struct {
	Interface Interface
	Addr      netip.Addr // one of Interface's; with Interface's name as zone if it is IPv6 link-local
	Reason    string     // why this one
	Reasons   []string   // "NAME: why it was dropped", one for each other interface, in the order given
}

// Query is what [Choose] decides by. The zero value asks for the best interface without any knowledge of the root.
type Query struct {
	Filter   Filter
	Toward   netip.Addr // the root's address, or zero
	Route    string     // the interface through which the kernel would reach Toward, or ""
	SameHost bool       // all ranks are known to be on this host
}

// Choose picks the interface that ranks should meet on.
//
// An interface without carrier or address never serves. Without a filter the one that leads to the root wins: the one that
// has the root's address itself, else Route. Otherwise, and among those that the filter takes, the order is: plain before
// VPN and point-to-point, before the bridges and pairs that container engines make (whose addresses are the same on every
// host), before loopback; then an address of the root's family; global before link-local; one on the root's subnet; IPv4
// before IPv6; the kernel's order.
//
// Loopback serves when the filter asks for it by name, or when nothing else does and all ranks are on this host (SameHost, or
// a root at a loopback address). A filter that excludes, such as "^docker0", does not lift this: unlike NCCL's, it adds to the
// built-in preferences instead of replacing them.
func Choose(ifaces []Interface, q Query) (Choice, error) {
	q.Toward = q.Toward.Unmap().WithZone("")
	route := q.route(ifaces)

	var best *candidate
	why := make([]string, len(ifaces)) // of those that cannot serve
	all := make([]*candidate, len(ifaces))
	for n, i := range ifaces {
		c, reason := q.consider(i)
		if reason != "" {
			why[n] = reason
			continue
		}
		c.onRoute = !q.Filter.IsSet() && i.Name == route
		all[n] = &c
		if best == nil || c.compare(*best) < 0 {
			best = &c
		}
	}
	if best == nil {
		return Choice{}, q.noneError(ifaces, why)
	}
	choice := Choice{Interface: best.iface, Addr: best.addr, Reason: best.reason(q)}
	if choice.Addr.Is6() && choice.Addr.IsLinkLocalUnicast() {
		choice.Addr = choice.Addr.WithZone(best.iface.Name)
	}
	for n, i := range ifaces {
		if all[n] != nil && all[n].iface.Name == best.iface.Name {
			continue
		}
		if all[n] != nil {
			why[n] = all[n].worse(*best)
		}
		choice.Reasons = append(choice.Reasons, i.Name+": "+why[n])
	}
	return choice, nil
}

// route returns the interface that leads to the root. The kernel routes a host's own address through lo, which is no
// interface that others could use.
func (q Query) route(ifaces []Interface) string {
	if q.Toward.IsValid() && !q.Toward.IsLoopback() {
		if own, ok := Owner(ifaces, q.Toward); ok {
			return own.Name
		}
	}
	for _, i := range ifaces {
		if i.Name == q.Route && !i.Loopback {
			return i.Name
		}
	}
	return ""
}

// consider returns i with its best address, or the reason why i cannot serve.
func (q Query) consider(i Interface) (candidate, string) {
	switch {
	case !q.Filter.Match(i.Name, 0):
		return candidate{}, fmt.Sprintf("the filter %s does not take it", q.Filter)
	case !i.Up:
		return candidate{}, "it is down"
	case !i.Running:
		return candidate{}, "it has no carrier"
	}
	var best *candidate
	for _, p := range i.Addrs {
		a := p.Addr()
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			continue
		}
		c := candidate{
			iface:       i,
			addr:        a,
			class:       classOf(i),
			otherFamily: q.Toward.IsValid() && q.Toward.Is4() != a.Is4(),
			linkLocal:   a.IsLinkLocalUnicast(),
			offSubnet:   !q.Toward.IsValid() || !p.Masked().Contains(q.Toward),
		}
		if best == nil || c.compare(*best) < 0 {
			best = &c
		}
	}
	if best == nil {
		return candidate{}, "it has no address"
	}
	if best.class == loopback && !q.Filter.names(i.Name) && !q.SameHost && !q.Toward.IsLoopback() {
		return candidate{}, "it is loopback, which ranks on other hosts cannot reach"
	}
	return *best, ""
}

func (q Query) noneError(ifaces []Interface, why []string) error {
	if len(ifaces) == 0 {
		return fmt.Errorf("%w: the host has none", ErrNoInterface)
	}
	var names, bad []string
	matched, err := false, ErrNoInterface
	for n, i := range ifaces {
		names = append(names, i.Name)
		if q.Filter.Match(i.Name, 0) {
			matched = true
			bad = append(bad, i.Name+": "+why[n])
			if !i.Loopback {
				err = fmt.Errorf("%w: %w", ErrNoInterface, ErrNotUp)
			}
		}
	}
	if !matched {
		return fmt.Errorf("%w: no interface matches %s; have: %s", ErrNoInterface, q.Filter, strings.Join(names, ", "))
	}
	of := ""
	if q.Filter.IsSet() {
		of = fmt.Sprintf(" among those that match %s", q.Filter)
	}
	return fmt.Errorf("%w%s (%s); have: %s: bring up one that reaches the other ranks, with an address", err, of, strings.Join(bad, "; "), strings.Join(names, ", "))
}

// candidate is an interface that can serve, with the address it would serve at.
type candidate struct {
	iface       Interface
	addr        netip.Addr
	onRoute     bool
	class       class
	otherFamily bool
	linkLocal   bool
	offSubnet   bool
}

// criteria are in the order in which they count; each is smaller for the better candidate.
var criteria = []struct {
	value func(candidate) int
	worse func(c, best candidate) string // why c lost by this one
}{
	{func(c candidate) int { return bit(!c.onRoute) },
		func(_, best candidate) string { return best.iface.Name + " leads to the root" }},
	{func(c candidate) int { return int(c.class) },
		func(c, best candidate) string {
			return fmt.Sprintf("%s, while %s is %s", c.class, best.iface.Name, best.class)
		}},
	{func(c candidate) int { return bit(c.otherFamily) },
		func(c, _ candidate) string { return fmt.Sprintf("its address %s is not of the root's family", c.addr) }},
	{func(c candidate) int { return bit(c.linkLocal) },
		func(c, _ candidate) string { return fmt.Sprintf("its address %s is link-local", c.addr) }},
	{func(c candidate) int { return bit(c.offSubnet) },
		func(_, best candidate) string { return fmt.Sprintf("%s is on the root's subnet", best.iface.Name) }},
	{func(c candidate) int { return bit(c.addr.Is6()) },
		func(_, best candidate) string { return fmt.Sprintf("%s has an IPv4 address", best.iface.Name) }},
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c candidate) compare(d candidate) int {
	for _, k := range criteria {
		if o := cmp.Compare(k.value(c), k.value(d)); o != 0 {
			return o
		}
	}
	return 0
}

func (c candidate) worse(best candidate) string {
	for _, k := range criteria {
		if k.value(c) > k.value(best) {
			return k.worse(c, best)
		}
	}
	return fmt.Sprintf("as good as %s, which comes first", best.iface.Name)
}

func (c candidate) reason(q Query) string {
	switch {
	case c.onRoute:
		return "it leads to the root at " + q.Toward.String()
	case q.Filter.names(c.iface.Name):
		return "the filter " + q.Filter.String() + " asks for it"
	case c.class == loopback:
		return "nothing else is usable, and all ranks are on this host"
	}
	return c.class.String()
}

// class orders interfaces by what they are good for.
type class int

const (
	plain     class = iota
	private         // VPNs and other point-to-point links: they reach other hosts, slowly
	hostLocal       // bridges, pairs and idle tunnels: they reach containers on this host
	loopback
)

func (c class) String() string {
	return [...]string{"a plain interface", "a VPN or point-to-point link", "a container bridge, pair or tunnel", "loopback"}[c]
}

// hostLocalNames and privateNames are the prefixes under which engines and VPNs make their devices.
var (
	hostLocalNames = []string{"docker", "br-", "veth", "virbr", "vnet", "lxcbr", "lxdbr", "lxc", "cni", "flannel", "cali", "podman",
		"kube-", "nodelocaldns", "dummy",
		// the idle ones that kernel modules bring along; tunnels that somebody set up have other numbers
		"ip6tnl0", "sit0", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}
	privateNames = []string{"tailscale", "wg", "tun", "tap", "ppp", "zt", "nebula", "ip6tnl"}
)

func classOf(i Interface) class {
	has := func(prefixes []string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(i.Name, p) })
	}
	switch {
	case i.Loopback:
		return loopback
	case has(hostLocalNames): // before the VPNs, whose "tun" would take tunl0
		return hostLocal
	case i.PointToPoint || has(privateNames):
		return private
	}
	return plain
}
