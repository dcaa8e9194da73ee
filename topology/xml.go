package topology

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// ParseXML reads NCCL's topology file (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE), version 1 or 2, in the dialects of NCCL's own
// dumps, of cloud providers (cards known by their PCI class alone, virtual bridges, bus ids and nothing else) and of ROCm (xgmi
// for nvlink). Attributes that gccl has no use for are kept and written again; elements that it doesn't know are left out.
// Errors name the line. A file of hwloc is refused by name.
func ParseXML(r io.Reader) (*Graph, error) {
	x := &xmlReader{dec: xml.NewDecoder(io.LimitReader(r, maxFile)), g: &Graph{}, nvs: NoNode}
	if err := x.read(); err != nil {
		var syntax *xml.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("read topology: line %d: it is no XML: %s", syntax.Line, syntax.Msg)
		}
		line, _ := x.dec.InputPos()
		return nil, fmt.Errorf("read topology: line %d: %w", line, err)
	}
	return x.g, nil
}

type xmlReader struct {
	dec     *xml.Decoder
	g       *Graph
	stack   []NodeID // the node that each open element belongs to
	buses   map[string]NodeID
	pending []NVLink // To is not known before the end
	nvs     NodeID
	rooted  bool
}

func (x *xmlReader) read() error {
	x.buses = map[string]NodeID{}
	for {
		tok, err := x.dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if err := x.open(e); err != nil {
				return err
			}
		case xml.EndElement:
			x.close()
		}
	}
	if !x.rooted {
		return errors.New("the file is empty; want <system>…</system>")
	}
	x.link()
	return x.g.Check()
}

func (x *xmlReader) open(e xml.StartElement) error {
	name := e.Name.Local
	if !x.rooted {
		switch name {
		case "system":
		case "topology":
			return errors.New("this is a topology of hwloc (<topology>), not of NCCL (<system>); have NCCL write one with NCCL_TOPO_DUMP_FILE, or gccl topo --format xml")
		default:
			return fmt.Errorf("the file begins with <%.40s>; want NCCL's <system>", name)
		}
		x.rooted = true
		x.stack = append(x.stack, NoNode)
		return nil
	}
	if len(x.stack) == 0 {
		return fmt.Errorf("<%s> stands behind the end of <system>", name)
	}
	if len(x.stack) > maxDepth || len(x.g.Nodes) > maxNodes || len(x.pending) > maxNodes*maxDepth {
		return fmt.Errorf("<%s> is deeper than %d elements, or the file has over %d devices", name, maxDepth, maxNodes)
	}
	a, err := newAttributes(e)
	if err != nil {
		return err
	}
	id := NoNode
	switch parent := x.stack[len(x.stack)-1]; name {
	case "cpu":
		id, err = x.cpu(a)
	case "pci":
		id, err = x.pci(a, parent)
	case "gpu":
		id, err = parent, x.gpu(a, parent)
	case "nvlink", "xgmi":
		id, err = parent, x.nvlink(a, parent)
	case "c2c":
		id, err = parent, x.c2c(a, parent)
	case "nic":
		id, err = x.nic(parent)
	case "net":
		id, err = x.net(a, parent)
	default:
		return x.dec.Skip()
	}
	if err == nil {
		err = a.err
	}
	if err != nil {
		return fmt.Errorf("<%s>: %w", name, err)
	}
	x.stack = append(x.stack, id)
	return nil
}

// close leaves an element. A card without <net> is presumed to have one port.
func (x *xmlReader) close() {
	id := x.stack[len(x.stack)-1]
	x.stack = x.stack[:len(x.stack)-1]
	if id == NoNode || x.g.Nodes[id].Type != NIC || len(x.stack) > 0 && x.stack[len(x.stack)-1] == id {
		return
	}
	for i := range x.g.Nodes {
		if x.g.Nodes[i].Parent == id {
			return
		}
	}
	x.add(Node{Type: NET, Parent: id})
}

func (x *xmlReader) add(n Node) NodeID {
	x.g.Nodes = append(x.g.Nodes, n)
	return NodeID(len(x.g.Nodes) - 1)
}

func (x *xmlReader) is(id NodeID, types ...NodeType) bool {
	return id != NoNode && slices.Contains(types, x.g.Nodes[id].Type)
}

func (x *xmlReader) cpu(a *attributes) (NodeID, error) {
	d := &CPUDetails{
		NUMA: a.int("numaid", -1, -1, math.MaxInt32), Arch: a.text("arch"), Vendor: a.text("vendor"),
		Family: a.int("familyid", 0, 0, math.MaxInt32), Model: a.int("modelid", 0, 0, math.MaxInt32),
	}
	if mask := a.text("affinity"); mask != "" {
		set, err := ParseCPUMask(mask)
		if err != nil {
			return NoNode, err
		}
		d.CPUs = set
	}
	d.Extra = a.rest()
	return x.add(Node{Type: CPU, Parent: NoNode, CPU: d}), nil
}

// pci is a switch until what is in it says otherwise, or a device by its class.
func (x *xmlReader) pci(a *attributes, parent NodeID) (NodeID, error) {
	if !x.is(parent, CPU, PCI) {
		return NoNode, errors.New("it stands neither in a <cpu> nor in the <pci> of a bridge")
	}
	id, err := ParseBusID(a.text("busid"))
	if err != nil {
		return NoNode, err
	}
	if _, twice := x.buses[id]; twice {
		return NoNode, fmt.Errorf("bus id %s stands twice", id)
	}
	b := &Bus{
		ID: id, Class: lower(a.text("class")), Vendor: lower(a.text("vendor")), Device: lower(a.text("device")),
		SubsystemVendor: lower(a.text("subsystem_vendor")), SubsystemDevice: lower(a.text("subsystem_device")),
		GTs: parseGTs(a.text("link_speed")), Width: a.int("link_width", 0, 0, 32),
		Bridge: a.text("host_bridge"), Port: a.text("port"), ACS: wordOf(a, "acs", acsWords),
	}
	b.Extra = a.rest()
	t := PCI
	switch {
	case isGPUClass(b.Class):
		t = GPU
	case isNICClass(b.Class):
		t = NIC
	}
	x.buses[id] = x.add(Node{Type: t, Parent: parent, Bus: b})
	return x.buses[id], nil
}

// isGPUClass: VGA, 3D and other display controllers, and AMD's processing accelerators.
func isGPUClass(class string) bool {
	return strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")
}

func isNICClass(class string) bool { return strings.HasPrefix(class, "0x02") }

func (x *xmlReader) gpu(a *attributes, parent NodeID) error {
	if !x.is(parent, PCI, GPU) || x.g.Nodes[parent].GPU != nil {
		return errors.New("want one in the <pci> of a device")
	}
	d := &GPUDetails{
		Dev: a.int("dev", -1, -1, math.MaxInt32), Rank: a.int("rank", -1, -1, math.MaxInt32), SM: a.int("sm", 0, 0, math.MaxInt32),
		GCN: a.text("gcn"), GDR: a.bool("gdr"), UUID: a.text("uuid"),
	}
	d.Extra = a.rest()
	x.g.Nodes[parent].Type, x.g.Nodes[parent].GPU = GPU, d
	return nil
}

func (x *xmlReader) nvlink(a *attributes, parent NodeID) error {
	if !x.is(parent, GPU) || x.g.Nodes[parent].GPU == nil {
		return errors.New("it stands in no <gpu>")
	}
	target, err := ParseBusID(a.text("target"))
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	x.pending = append(x.pending, NVLink{parent, NoNode, target, a.int("count", 1, 0, maxNVLinks), lower(a.text("tclass"))})
	return nil
}

func (x *xmlReader) c2c(a *attributes, parent NodeID) error {
	if !x.is(parent, GPU) || x.g.Nodes[parent].GPU == nil {
		return errors.New("it stands in no <gpu>")
	}
	d := x.g.Nodes[parent].GPU
	d.C2C = append(d.C2C, C2C{a.int("bw", 0, 0, math.MaxInt32), a.int("count", 1, 0, maxNVLinks)})
	return nil
}

// nic is the <pci> that it stands in, or a card of its own below a CPU (a virtual one).
func (x *xmlReader) nic(parent NodeID) (NodeID, error) {
	switch {
	case x.is(parent, PCI, NIC):
		x.g.Nodes[parent].Type = NIC
		return parent, nil
	case x.is(parent, CPU):
		return x.add(Node{Type: NIC, Parent: parent}), nil
	}
	return NoNode, errors.New("it stands neither in a <cpu> nor in the <pci> of a device")
}

func (x *xmlReader) net(a *attributes, parent NodeID) (NodeID, error) {
	if !x.is(parent, NIC) {
		return NoNode, errors.New("it stands in no <nic>")
	}
	d := &NetDetails{
		Name: a.text("name"), Dev: a.int("dev", -1, -1, math.MaxInt32), Port: a.int("port", 0, 0, math.MaxInt32),
		Mbps: a.int("speed", 0, 0, math.MaxInt32), Latency: a.float("latency"), GUID: a.text("guid"),
		MaxConn: a.int("maxconn", 0, 0, math.MaxInt32), GDR: a.bool("gdr"), Kind: wordOf(a, "kind", netWords), Down: a.text("down"),
	}
	if d.Name == "" {
		return NoNode, errors.New("it has no name")
	}
	d.Extra = a.rest()
	return x.add(Node{Type: NET, Parent: parent, Net: d}), nil
}

// link finds the other ends of NVLinks by class and bus id, as NCCL does: all switches are one.
func (x *xmlReader) link() {
	for _, l := range x.pending {
		switch {
		case strings.HasPrefix(l.Class, "0x068000"):
			if x.nvs == NoNode {
				x.nvs = x.add(Node{Type: NVS, Parent: NoNode})
			}
			l.To = x.nvs
		case strings.HasPrefix(l.Class, "0x0680"): // the bridge of a POWER CPU
			l.To = x.g.CPUOf(l.From)
		default:
			if to, ok := x.buses[l.Target]; ok && x.is(to, GPU) && to != l.From {
				l.To = to
			}
		}
		x.g.NVLinks = append(x.g.NVLinks, l)
	}
}
