package topo

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// SVG draws a host. Every GPU and card has a column of its own; what is above it is a band over the columns below it, so
// nothing can overlap. Below stand the NVLinks, the rings by the order in which they pass the GPUs, and the legend. Colours
// follow the reader's light or dark setting.
func SVG(w io.Writer, _ *topology.Host, g *topology.Graph) error {
	_, err := io.WriteString(w, draw(g))
	return err
}

// Pixels.
const (
	leftMargin = 132 // the rows' names
	column     = 92
	box        = 80 // in a column
	band       = 34
	rowGap     = 26
	deviceHigh = 62
	trackHigh  = 15 // of a line of NVLinks
	groupGap   = 22 // between NUMA nodes
	maxRings   = 6
)

const style = `
  svg.topology { font-family: system-ui, sans-serif; }
  .topology .back { fill: #ffffff; }
  .topology text { fill: #1b1f24; font-size: 12px; }
  .topology text.row, .topology text.small { fill: #57606a; font-size: 11px; }
  .topology text.title { font-size: 15px; font-weight: 600; }
  .topology .cpu { fill: #fff1df; stroke: #c75300; }
  .topology .pci { fill: #e6f0fb; stroke: #1565c0; }
  .topology .gpu { fill: #e4f4e5; stroke: #2e7d32; stroke-width: 1.5; }
  .topology .nvs { fill: #e4f4e5; stroke: #2e7d32; }
  .topology .net { fill: #f4e8f8; stroke: #6a1b9a; stroke-width: 1.5; }
  .topology .down { stroke-dasharray: 4 3; }
  .topology .linkPCI { stroke: #1565c0; } .topology .linkNVL { stroke: #2e7d32; } .topology .linkSYS { stroke: #c75300; }
  .topology .linkPCI, .topology .linkNVL, .topology .linkSYS { fill: none; }
  .topology .step { fill: #ffffff; stroke: #2e7d32; }
  .topology .halo { stroke: #ffffff; stroke-width: 4px; paint-order: stroke; }
  @media (prefers-color-scheme: dark) {
    .topology .back { fill: #14171c; }
    .topology text { fill: #e6e8eb; }
    .topology text.row, .topology text.small { fill: #9aa4af; }
    .topology .cpu { fill: #3a2a17; stroke: #ffb74d; }
    .topology .pci { fill: #17293c; stroke: #64b5f6; }
    .topology .gpu, .topology .nvs { fill: #1a3320; stroke: #81c784; }
    .topology .net { fill: #33203b; stroke: #ce93d8; }
    .topology .linkPCI { stroke: #64b5f6; } .topology .linkNVL { stroke: #81c784; } .topology .linkSYS { stroke: #ffb74d; }
    .topology .step { fill: #14171c; stroke: #81c784; }
    .topology .halo { stroke: #14171c; }
  }
`

type span struct{ from, to float64 }

func (s span) middle() float64 { return (s.from + s.to) / 2 }

type picture struct {
	g        *topology.Graph
	children map[topology.NodeID][]topology.NodeID
	at       map[topology.NodeID]span // of columns
	depth    map[topology.NodeID]int  // of switches, from 1
	levels   int                      // of switches
	width    float64
	y        float64 // where the next row begins
	b        strings.Builder
}

func draw(g *topology.Graph) string {
	p := &picture{g: g, children: map[topology.NodeID][]topology.NodeID{}, at: map[topology.NodeID]span{}, depth: map[topology.NodeID]int{}}
	for i, n := range g.Nodes {
		if n.Parent != topology.NoNode {
			p.children[n.Parent] = append(p.children[n.Parent], topology.NodeID(i))
		}
	}
	x := float64(leftMargin)
	for _, cpu := range g.CPUs() {
		x = p.place(cpu, x, 0) + groupGap
	}
	p.width = max(x, 760)
	p.text("title", p.width/2, 26, "middle", p.title())
	p.y = 46
	p.hosts()
	p.devices()
	p.links()
	p.rings()
	p.legend()
	return fmt.Sprintf(`<svg class="topology" xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`+"\n<style>%s</style>\n"+
		`<rect class="back" width="100%%" height="100%%"/>`+"\n%s</svg>\n",
		p.width, p.y, p.width, p.y, html.EscapeString(p.title()), style, p.b.String())
}

func (p *picture) title() string {
	return fmt.Sprintf("NUMA nodes: %d, GPUs: %d, network ports: %d", len(p.g.CPUs()), len(p.g.GPUs()), len(p.g.Nets()))
}

// place gives a node's leaves their columns and returns where the next one begins.
func (p *picture) place(id topology.NodeID, x float64, depth int) float64 {
	from := x
	n := &p.g.Nodes[id]
	if n.Type == topology.PCI {
		p.depth[id] = depth
		p.levels = max(p.levels, depth)
	}
	if n.Type != topology.GPU && n.Type != topology.NIC {
		for _, c := range p.children[id] {
			x = p.place(c, x, depth+1)
		}
	}
	if x == from {
		x += column
	}
	p.at[id] = span{from, x}
	return x
}

func (p *picture) text(class string, x, y float64, anchor, s string) {
	fmt.Fprintf(&p.b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, html.EscapeString(s))
}

// line goes straight, or bends, through points x, y, x, y, …
func (p *picture) line(class string, gbs float64, hint string, points ...float64) {
	var at []string
	for i := 0; i < len(points); i += 2 {
		at = append(at, fmt.Sprintf("%.1f,%.1f", points[i], points[i+1]))
	}
	fmt.Fprintf(&p.b, `<polyline class="%s" stroke-width="%.1f" points="%s"><title>%s</title></polyline>`+"\n", class, thickness(gbs), strings.Join(at, " "), html.EscapeString(hint))
}

// thickness tells 6 GB/s from 50 and 400.
func thickness(gbs float64) float64 {
	switch {
	case gbs < 10:
		return 1
	case gbs < 30:
		return 2
	case gbs < 100:
		return 3
	}
	return 4.5
}

func (p *picture) rect(class string, x, y, w, h float64, hint string) {
	fmt.Fprintf(&p.b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="5"><title>%s</title></rect>`+"\n", class, x, y, w, h, html.EscapeString(hint))
}

// hosts draws the NUMA nodes with what joins them, and the switches below.
func (p *picture) hosts() {
	inset := float64(column-box) / 2
	p.text("row", 10, p.y+band/2+4, "start", "NUMA nodes")
	cpus := p.g.CPUs()
	for i, cpu := range cpus {
		s := p.at[cpu]
		if i > 0 {
			p.line("linkSYS", p.g.Path(cpus[i-1], cpu).GBs, "SYS: every NUMA node reaches every other", p.at[cpus[i-1]].to-inset, p.y+band/2, s.from+inset, p.y+band/2)
		}
		d := p.g.Nodes[cpu].CPU
		label := p.g.Name(cpu)
		if room := int((s.to - s.from - 20) / 7); d.CPUs != nil && len(label)+len("  CPUs ")+len(d.CPUs.String()) <= room {
			label += "  CPUs " + d.CPUs.String()
		}
		p.rect("cpu", s.from+inset, p.y, s.to-s.from-2*inset, band, fmt.Sprintf("%s  CPUs %s  %s", p.g.Name(cpu), d.CPUs, d.Vendor))
		p.text("", s.middle(), p.y+band/2+4, "middle", label)
	}
	top := p.y
	for level := range p.levels {
		y := top + float64((level+1)*(band+rowGap))
		name := "PCIe switches"
		if level > 0 {
			name = "switches below"
		}
		p.text("row", 10, y+band/2+4, "start", name)
		for _, id := range p.nodes(topology.PCI) {
			if p.depth[id] == level+1 {
				s := p.at[id]
				p.drop(id, y)
				p.rect("pci", s.from+inset, y, s.to-s.from-2*inset, band, busHint(p.g.Nodes[id].Bus))
				p.text("", s.middle(), y+band/2+4, "middle", fit(strings.TrimPrefix(cmp.Or(busID(p.g.Nodes[id].Bus), "switch"), "0000:"), int(s.to-s.from-20)/7))
			}
		}
	}
	p.y = top + float64(p.levels+1)*(band+rowGap)
}

func (p *picture) nodes(types ...topology.NodeType) (ids []topology.NodeID) {
	for i, n := range p.g.Nodes {
		if _, placed := p.at[topology.NodeID(i)]; placed && slices.Contains(types, n.Type) {
			ids = append(ids, topology.NodeID(i))
		}
	}
	return ids
}

// drop draws the link from a node up to its parent's band.
func (p *picture) drop(id topology.NodeID, y float64) {
	parent := p.g.Nodes[id].Parent
	from := y - float64((p.levels+1-p.depth[parent])*(band+rowGap)) + band // of a device
	if p.g.Nodes[id].Type == topology.PCI {
		from = y - float64((p.depth[id]-p.depth[parent])*(band+rowGap)) + band
	}
	path := p.g.Path(id, parent)
	hint := fmt.Sprintf("%s: %.4g GB/s", path.Type, path.GBs)
	p.line("linkPCI", path.GBs, hint, p.at[id].middle(), from, p.at[id].middle(), y)
}

func busHint(b *topology.Bus) string {
	if b == nil {
		return "virtual"
	}
	s := cmp.Or(busID(b), "bus id not known")
	if b.GTs > 0 && b.Width > 0 {
		s += fmt.Sprintf("  %v GT/s x%d", b.GTs, b.Width)
	}
	if b.Port != "" {
		s += fmt.Sprintf("  below %s, ACS %s", b.Port, cmp.Or(string(b.ACS), "unknown"))
	}
	return s
}

func (p *picture) devices() {
	p.text("row", 10, p.y+deviceHigh/2+4, "start", "GPUs and network")
	net := map[topology.NodeID]string{}
	for _, c := range p.g.PairNICs(p.g.GPUs()) {
		if c.Net != topology.NoNode {
			// A card without a name goes by its bus id, of which the end says least.
			net[c.GPU] = "→ " + strings.TrimSuffix(strings.TrimPrefix(p.g.Name(c.Net), "NIC "), ":00.0")
		}
	}
	inset := float64(column-box) / 2
	for _, id := range p.nodes(topology.GPU, topology.NIC) {
		s, n := p.at[id], p.g.Nodes[id]
		p.drop(id, p.y)
		class, lines := "gpu", []string{p.g.Name(id), net[id]}
		if n.Type == topology.NIC {
			class, lines = "net", p.ports(id)
			if slices.ContainsFunc(p.children[id], func(c topology.NodeID) bool { d := p.g.Nodes[c].Net; return d != nil && d.Down != "" }) {
				class = "net down"
			}
		}
		if n.Bus != nil {
			lines = append(lines, strings.TrimPrefix(busID(n.Bus), "0000:"))
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
		p.rect(class, s.from+inset, p.y, box, deviceHigh, busHint(n.Bus))
		for i, l := range lines {
			class := "small"
			if i == 0 {
				class = ""
			}
			p.text(class, s.middle(), p.y+deviceHigh/2+4+16*(float64(i)-float64(len(lines)-1)/2), "middle", fit(l, 12))
		}
	}
	p.y += deviceHigh
}

// ports are a card's: their names and the speed, in two lines whatever their number.
func (p *picture) ports(nic topology.NodeID) []string {
	var names []string
	mbps := 0
	for _, c := range p.children[nic] {
		if d := p.g.Nodes[c].Net; d != nil {
			names = append(names, d.Name)
			mbps = max(mbps, d.Mbps)
		}
	}
	switch len(names) {
	case 0:
		return []string{"NIC"}
	case 1:
	default:
		names[0] = fmt.Sprintf("%s +%d", names[0], len(names)-1)
	}
	if mbps == 0 {
		return names[:1]
	}
	return []string{names[0], strconv.FormatFloat(float64(mbps)/1000, 'f', -1, 64) + " Gbit/s"}
}

// fit shortens a text to n characters.
func fit(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
