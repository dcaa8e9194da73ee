package topo

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// Text writes a host for people: its parts as a tree, what gccl would choose and why, and what could not be found out.
func Text(w io.Writer, h *topology.Host, g *topology.Graph) error {
	t := &text{g: g}
	t.tree()
	t.nvlinks()
	t.pairs()
	t.nics(h)
	t.ports(h)
	t.rings()
	t.unknown(h)
	_, err := io.WriteString(w, t.b.String())
	return err
}

type text struct {
	g *topology.Graph
	b strings.Builder
}

func (t *text) printf(format string, args ...any) { fmt.Fprintf(&t.b, format, args...) }

func (t *text) section(title string) {
	if t.b.Len() > 0 {
		t.printf("\n")
	}
	t.printf("%s\n", title)
}

func (t *text) tree() {
	children := map[topology.NodeID][]topology.NodeID{}
	for i, n := range t.g.Nodes {
		children[n.Parent] = append(children[n.Parent], topology.NodeID(i))
	}
	var walk func(id topology.NodeID, depth int)
	walk = func(id topology.NodeID, depth int) {
		t.printf("%s%s\n", strings.Repeat("  ", depth), t.line(id))
		for _, c := range children[id] {
			walk(c, depth+1)
		}
	}
	t.section("Topology")
	for _, cpu := range t.g.CPUs() {
		walk(cpu, 1)
	}
	if len(t.g.GPUs()) == 0 {
		t.printf("  GPU: none\n")
	}
	if t.g.IOMMU != "" {
		t.printf("  IOMMU: %s\n", t.g.IOMMU)
	}
}

// line describes a node: its name, then what is known of it.
func (t *text) line(id topology.NodeID) string {
	n := t.g.Nodes[id]
	words := []string{t.g.Name(id)}
	if b := n.Bus; b != nil {
		switch {
		case busID(b) == "" && n.Type != topology.GPU:
			words[0] = string(n.Type)
		case n.Type == topology.GPU:
			words = append(words, busID(b))
		}
		if b.GTs > 0 && b.Width > 0 {
			words = append(words, fmt.Sprintf("%s GT/s x%d", strconv.FormatFloat(b.GTs, 'f', -1, 64), b.Width))
		}
		if b.ACS == topology.ACSRedirect {
			words = append(words, "ACS redirects at "+b.Port)
		}
	}
	switch {
	case n.CPU != nil:
		cpus := "CPUs unknown"
		if n.CPU.CPUs != nil {
			cpus = "CPUs " + n.CPU.CPUs.String()
		}
		words = append(words, cpus, n.CPU.Vendor)
	case n.GPU != nil && n.GPU.SM > 0:
		words = append(words, fmt.Sprintf("sm %d", n.GPU.SM))
	case n.Net != nil:
		if n.Net.Port > 0 {
			words = append(words, fmt.Sprintf("port %d", n.Net.Port))
		}
		if n.Net.Mbps > 0 {
			words = append(words, fmt.Sprintf("%s Gbit/s", strconv.FormatFloat(float64(n.Net.Mbps)/1000, 'f', -1, 64)))
		}
		words = append(words, string(n.Net.Kind))
		if n.Net.Down != "" {
			words = append(words, "DOWN")
		}
	}
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), "  ")
}

// busID is a device's bus id, or "" if it is one that nobody has: those of bridges that a cloud's file makes up, and of all
// devices of a matrix, which says nothing of them.
func busID(b *topology.Bus) string {
	if strings.HasPrefix(b.ID, "ffff:") {
		return ""
	}
	return b.ID
}

func (t *text) nvlinks() {
	if len(t.g.NVLinks) == 0 {
		return
	}
	t.section("NVLink")
	for _, gpu := range t.g.GPUs() {
		count := map[topology.NodeID]int{}
		var order []topology.NodeID
		for _, l := range t.g.NVLinks {
			if l.From != gpu {
				continue
			}
			if count[l.To] == 0 {
				order = append(order, l.To)
			}
			count[l.To] += l.Count
		}
		var to []string
		for _, o := range order {
			name := "GPUs that can't be seen here"
			if o != topology.NoNode {
				name = t.g.Name(o)
			}
			to = append(to, fmt.Sprintf("%d to %s", count[o], name))
		}
		if len(to) > 0 {
			t.printf("  %s: %s\n", t.g.Name(gpu), strings.Join(to, ", "))
		}
	}
}

// pairs puts pairs of GPUs together that are reached alike.
func (t *text) pairs() {
	gpus := t.g.GPUs()
	if len(gpus) < 2 {
		return
	}
	t.section("Between GPUs")
	groups := map[string][]string{}
	var order []string
	for i, a := range gpus {
		for j, b := range gpus[i+1:] {
			c := t.g.Transport(a, b, topology.DefaultLevels())
			key := fmt.Sprintf("%s: %s", c.Kind, reasons(c.Reasons))
			if groups[key] == nil {
				order = append(order, key)
			}
			groups[key] = append(groups[key], fmt.Sprintf("%d-%d", i, i+1+j))
		}
	}
	all := len(gpus) * (len(gpus) - 1) / 2
	for _, key := range order {
		which := strings.Join(groups[key], " ")
		if len(groups[key]) == all {
			which = "all"
		}
		t.printf("  %s\n    %s\n", key, which)
	}
}

func reasons(all []topology.Reason) string {
	var s []string
	for _, r := range all {
		s = append(s, string(r))
	}
	return strings.Join(s, "; ")
}

func (t *text) nics(h *topology.Host) {
	allowed := topology.Unknown[topology.CPUSet]("the host was loaded")
	if h != nil {
		allowed = h.CPU.Allowed()
	}
	if c := t.g.HostNIC(allowed.Or(nil)); c.Net != topology.NoNode && t.g.Nodes[t.g.Nodes[c.Net].Parent].Bus != nil { // else it is near nothing
		t.section("Network port of host memory")
		t.printf("  %s\n", t.g.Name(c.Net))
		for _, why := range c.Reasons {
			if !strings.HasPrefix(string(why), "not taken") { // nothing is wrong with those
				t.printf("    %s\n", why)
			}
		}
	}
	choices := t.g.PairNICs(t.g.GPUs())
	if len(choices) == 0 {
		return
	}
	t.section("Network port and CPUs of each GPU")
	for _, c := range choices {
		net := "none"
		if c.Net != topology.NoNode {
			net = t.g.Name(c.Net)
		}
		t.printf("  %s  %s  CPUs %s\n    %s\n", t.g.Name(c.GPU), net, cmp.Or(t.g.Pin(c.GPU, allowed).CPUs.String(), "any"), reasons(c.Reasons))
	}
}

func (t *text) ports(h *topology.Host) {
	if h == nil || h.RDMA.Why() != "" {
		return
	}
	devices := h.RDMA.Or(nil)
	t.section("RDMA")
	if len(devices) == 0 {
		t.printf("  none\n")
	}
	var seen []string
	for _, n := range h.Nets.Or(nil) {
		seen = append(seen, n.Name)
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			t.printf("  %s port %d  %s  %s  %s  MTU %s\n", d.Name, p.Number, p.State, p.Layer, p.Rate, p.MTU)
			c, err := topology.ChooseGID(p, topology.GIDQuery{Nets: seen})
			if err != nil {
				t.printf("    %v\n", err)
				continue
			}
			t.printf("    %s\n", c.Reasons[0])
		}
	}
}

func (t *text) rings() {
	rings, err := topology.Rings([]topology.Local{topology.AllOf(t.g)}, 0)
	if err != nil {
		return // no GPU, which the tree says
	}
	_, why := topology.Channels([]topology.Local{topology.AllOf(t.g)})
	t.section(fmt.Sprintf("Rings: %d channels (%s)", len(rings), reasons(why)))
	channels := map[string][]int{}
	for c, r := range rings {
		channels[fmt.Sprint(r.Ranks)] = append(channels[fmt.Sprint(r.Ranks)], c)
	}
	for c, r := range rings {
		if same := channels[fmt.Sprint(r.Ranks)]; same[0] == c {
			t.printf("  %-6s %s  (%s, %.4g GB/s each)\n", ranges(same), strings.Trim(fmt.Sprint(r.Ranks), "[]"), r.Worst, r.GBs)
		}
	}
}

// ranges writes ascending numbers as 0-3,6.
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); i++ {
		from := numbers[i]
		for i+1 < len(numbers) && numbers[i+1] == numbers[i]+1 {
			i++
		}
		part := strconv.Itoa(from)
		if numbers[i] > from {
			part += "-" + strconv.Itoa(numbers[i])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// unknown lists the large parts that could not be found out.
func (t *text) unknown(h *topology.Host) {
	if h == nil {
		return
	}
	var lines []string
	note := func(what, why string) {
		if why != "" {
			lines = append(lines, what+": "+why)
		}
	}
	note("CPUs", h.CPU.Online.Why())
	note("CPU affinity", h.CPU.Affinity.Why())
	note("cgroup's CPUs", h.CPU.Cpuset.Why())
	note("CPU quota", h.CPU.Quota.Why())
	note("NUMA nodes", h.CPU.Nodes.Why())
	note("caches", h.CPU.Caches.Why())
	note("PCI", h.PCI.Why())
	note("IOMMU", h.IOMMU.Why())
	note("network devices", h.Nets.Why())
	note("RDMA", h.RDMA.Why())
	note("GPUs beyond PCI", h.GPUs.Why())
	note("peer memory", h.PeerMemory.Why())
	acs := map[string]int{}
	for _, d := range h.PCI.Or(nil) {
		if why := d.ACS.Why(); strings.HasPrefix(d.Class.Or(""), "0x0604") && why != "" {
			acs[why]++
		}
	}
	for why, n := range acs {
		lines = append(lines, fmt.Sprintf("ACS of %d ports: %s", n, why))
	}
	if len(lines) == 0 {
		return
	}
	slices.Sort(lines)
	t.section("Unknown")
	for _, l := range lines {
		t.printf("  %s\n", l)
	}
}
