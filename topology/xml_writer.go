package topology

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteXML writes g as NCCL's topology file, version 1, for [ParseXML] and NCCL. What NCCL has no word for stands in further
// attributes; P2P statuses, the fabric's and the IOMMU's state are not written. An unknown attribute is left out, but for a device's link, which
// NCCL wants.
func (g *Graph) WriteXML(w io.Writer) error {
	x := xmlWriter{g: g, children: make([][]NodeID, len(g.Nodes))}
	for i := range g.Nodes {
		if p := g.Nodes[i].Parent; p != NoNode {
			x.children[p] = append(x.children[p], NodeID(i))
		}
	}
	x.open(0, "system", attribute{"version", "1"})
	for _, cpu := range g.CPUs() {
		x.node(1, cpu)
	}
	x.close(0, "system")
	_, err := w.Write(x.b.Bytes())
	return err
}

type xmlWriter struct {
	g        *Graph
	children [][]NodeID
	b        bytes.Buffer
}

type attribute struct{ name, value string }

const linkSpeed = "link_speed" // empty if unknown

func (x *xmlWriter) tag(depth int, name, end string, attrs []attribute) {
	x.b.WriteString(strings.Repeat("  ", depth) + "<" + name)
	seen := map[string]bool{}
	for _, a := range attrs {
		if (a.value != "" || a.name == linkSpeed) && isName(a.name) && !seen[a.name] { // kept ones come last, and may be anything
			seen[a.name] = true
			x.b.WriteString(" " + a.name + `="`)
			_ = xml.EscapeText(&x.b, []byte(a.value)) // a Buffer takes everything
			x.b.WriteByte('"')
		}
	}
	x.b.WriteString(end + "\n")
}

func (x *xmlWriter) open(depth int, name string, attrs ...attribute) { x.tag(depth, name, ">", attrs) }
func (x *xmlWriter) leaf(depth int, name string, attrs ...attribute) { x.tag(depth, name, "/>", attrs) }
func (x *xmlWriter) close(depth int, name string)                    { x.tag(depth, "/"+name, ">", nil) }

func (x *xmlWriter) node(depth int, id NodeID) {
	n := &x.g.Nodes[id]
	name, attrs := "pci", busAttributes(n.Bus)
	if n.Type == CPU {
		name, attrs = "cpu", cpuAttributes(n.CPU)
	}
	if n.Type == NIC && n.Bus == nil {
		x.nic(depth, id)
		return
	}
	described := len(x.children[id]) > 0 || n.GPU != nil
	if n.Type == NIC {
		described = x.described(id) || !isNICClass(n.Bus.Class)
	}
	if !described {
		x.leaf(depth, name, attrs...)
		return
	}
	x.open(depth, name, attrs...)
	switch n.Type {
	case GPU:
		x.gpu(depth+1, id)
	case NIC:
		x.nic(depth+1, id)
	default:
		for _, c := range x.children[id] {
			x.node(depth+1, c)
		}
	}
	x.close(depth, name)
}

// described reports whether any port of a card is more than presumed.
func (x *xmlWriter) described(nic NodeID) bool {
	return slices.ContainsFunc(x.children[nic], func(c NodeID) bool { return x.g.Nodes[c].Net != nil })
}

func (x *xmlWriter) nic(depth int, id NodeID) {
	x.open(depth, "nic")
	for _, c := range x.children[id] {
		if d := x.g.Nodes[c].Net; d != nil {
			x.leaf(depth+1, "net", netAttributes(d)...)
		}
	}
	x.close(depth, "nic")
}

func (x *xmlWriter) gpu(depth int, id NodeID) {
	d := x.g.Nodes[id].GPU
	if d == nil {
		return
	}
	attrs := append([]attribute{
		{"dev", number(d.Dev, -1)}, {"sm", number(d.SM, 0)}, {"gcn", d.GCN}, {"rank", number(d.Rank, -1)}, {"gdr", flag(d.GDR)}, {"uuid", d.UUID},
	}, extra(d.Extra)...)
	link := "nvlink"
	if d.GCN != "" {
		link = "xgmi"
	}
	var links []NVLink
	for _, l := range x.g.NVLinks {
		if l.From == id {
			links = append(links, l)
		}
	}
	if len(links) == 0 && len(d.C2C) == 0 {
		x.leaf(depth, "gpu", attrs...)
		return
	}
	x.open(depth, "gpu", attrs...)
	for _, l := range links {
		x.leaf(depth+1, link, attribute{"target", l.Target}, attribute{"count", strconv.Itoa(l.Count)}, attribute{"tclass", l.Class})
	}
	for _, c := range d.C2C {
		x.leaf(depth+1, "c2c", attribute{"bw", strconv.Itoa(c.MBs)}, attribute{"count", strconv.Itoa(c.Count)})
	}
	x.close(depth, "gpu")
}

func cpuAttributes(d *CPUDetails) []attribute {
	mask := ""
	if d.CPUs != nil {
		mask = d.CPUs.Mask()
	}
	return append([]attribute{
		{"numaid", strconv.Itoa(d.NUMA)}, {"affinity", mask}, {"arch", d.Arch}, {"vendor", d.Vendor},
		{"familyid", number(d.Family, 0)}, {"modelid", number(d.Model, 0)},
	}, extra(d.Extra)...)
}

func busAttributes(b *Bus) []attribute {
	if b == nil {
		return nil
	}
	speed := ""
	if b.GTs > 0 {
		speed = fmt.Sprintf("%s GT/s PCIe", gts(b.GTs))
	}
	return append([]attribute{
		{"busid", b.ID}, {"class", b.Class}, {"vendor", b.Vendor}, {"device", b.Device},
		{"subsystem_vendor", b.SubsystemVendor}, {"subsystem_device", b.SubsystemDevice},
		{linkSpeed, speed}, {"link_width", strconv.Itoa(b.Width)}, // NCCL takes no device without them, in a virtual machine say
		{"host_bridge", b.Bridge}, {"port", b.Port}, {"acs", string(b.ACS)},
	}, extra(b.Extra)...)
}

// gts writes a PCIe speed as the kernel does: 2.5, 16.0.
func gts(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func netAttributes(d *NetDetails) []attribute {
	return append([]attribute{
		{"name", d.Name}, {"dev", number(d.Dev, -1)}, {"latency", strconv.FormatFloat(d.Latency, 'f', 6, 64)}, {"speed", strconv.Itoa(d.Mbps)},
		{"port", strconv.Itoa(d.Port)}, {"guid", d.GUID}, {"maxconn", number(d.MaxConn, 0)}, {"gdr", flag(d.GDR)},
		{"kind", string(d.Kind)}, {"down", d.Down},
	}, extra(d.Extra)...)
}

func extra(m map[string]string) []attribute {
	var attrs []attribute
	for _, k := range slices.Sorted(maps.Keys(m)) {
		attrs = append(attrs, attribute{k, m[k]})
	}
	return attrs
}

// number is empty for a value that says "unknown".
func number(n, unknown int) string {
	if n == unknown {
		return ""
	}
	return strconv.Itoa(n)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
