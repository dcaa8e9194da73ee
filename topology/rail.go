package topology

import (
	"fmt"
	"net/netip"
	"slices"
)

// Rail is a network device that a host's connections go over.
type Rail struct {
	Name  string
	Addr  netip.Prefix // its address and the network that it is in
	Flows int          // connections to one peer that it takes to use all of it, see [NetFacts.Flows]
}

// Rails returns the device that [Choose] chose, and then the others that are as good, so that connections can use all of them: plain
// devices that the filter takes, with a routable address of the same family in a network of their own, and not of less than half of the
// fastest's speed, as those for storage and management are. Where one's speed is known and another's is not, they are not of a kind. Nets
// is what the kernel says of the devices; those that it doesn't list have no speed and one flow. The second list says why others are
// dropped.
func Rails(ifaces []Interface, nets []NetFacts, q Query, c Choice) (use []Rail, dropped []Reason) {
	q.Toward = q.Toward.Unmap().WithZone("")
	facts := map[string]NetFacts{}
	for _, n := range nets {
		facts[n.Name] = n
	}
	mbps := func(name string) int { return facts[name].Mbps.Or(0) }
	first := Rail{Name: c.Interface.Name, Addr: netip.PrefixFrom(c.Addr, c.Addr.BitLen()), Flows: facts[c.Interface.Name].Flows()}
	for _, p := range c.Interface.Addrs {
		if p.Addr() == c.Addr.WithZone("") {
			first.Addr = p
		}
	}
	use = []Rail{first}
	if classOf(c.Interface) != plain {
		return use, []Reason{because("%s is %s, beside which nothing is used", first.Name, classOf(c.Interface))}
	}
	fastest := 0
	for _, i := range ifaces {
		if found, why := q.consider(i); why == "" && found.class == plain {
			fastest = max(fastest, mbps(i.Name))
		}
	}
	for _, i := range ifaces {
		if i.Name == first.Name {
			continue
		}
		r, why := q.rail(i, c.Addr, use)
		switch {
		case why != "":
		case (mbps(i.Name) == 0) != (mbps(first.Name) == 0):
			why = fmt.Sprintf("its speed or that of %s is not known", first.Name)
		case 2*mbps(i.Name) < fastest:
			why = fmt.Sprintf("%d Mbit/s is less than half of the fastest's %d", mbps(i.Name), fastest)
		}
		if why != "" {
			dropped = append(dropped, because("%s: %s", i.Name, why))
			continue
		}
		r.Flows = facts[i.Name].Flows()
		use = append(use, r)
	}
	return use, dropped
}

// rail is an interface as a rail beside others, or why it can't be one.
func (q Query) rail(i Interface, first netip.Addr, others []Rail) (Rail, string) {
	found, why := q.consider(i)
	if why != "" {
		return Rail{}, why
	}
	if found.class != plain {
		return Rail{}, "it is " + found.class.String()
	}
	for _, p := range i.Addrs {
		a := p.Addr()
		if a.Is4() != first.Is4() || !a.IsGlobalUnicast() || p.IsSingleIP() {
			continue
		}
		if slices.ContainsFunc(others, func(o Rail) bool { return o.Addr.Overlaps(p) }) {
			why = "it is in a network that another one is in, and the kernel would send to it by that one"
			continue
		}
		return Rail{Name: i.Name, Addr: p}, ""
	}
	if why == "" {
		why = "it has no routable address of the family, in a network"
	}
	return Rail{}, why
}
