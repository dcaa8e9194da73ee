package topology

import "slices"

// TransportKind is how two ranks reach each other.
type TransportKind string

// The kinds, fastest first.
const (
	OverNVLink TransportKind = "nvlink" // loads and stores over NVLink
	OverP2P    TransportKind = "p2p"    // loads and stores over PCIe
	OverSHM    TransportKind = "shm"    // shared host memory
	OverGDR    TransportKind = "gdr"    // RDMA between GPU memories
	OverRDMA   TransportKind = "rdma"   // RDMA between host memories
	OverTCP    TransportKind = "tcp"
)

// TransportChoice is how two ranks should reach each other and why.
type TransportChoice struct {
	Kind    TransportKind `json:"kind"`
	Path    Path          `json:"path"` // between the GPUs of one host, else empty
	Reasons []Reason      `json:"reasons"`
}

// Direct reports whether GPUs use each other's memory.
func (c TransportChoice) Direct() bool { return c.Kind == OverNVLink || c.Kind == OverP2P }

// Levels are the farthest paths over which devices may reach each other, as NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL set them.
type Levels struct{ P2P, GDR PathType }

// DefaultLevels are NCCL's: through switches, not through a CPU.
func DefaultLevels() Levels { return Levels{P2P: PathPXB, GDR: PathPXB} }

// Transport chooses how two GPUs of one host reach each other: over NVLink, over PCIe where the driver doesn't say no, the path
// is close enough and no port on the way redirects its traffic (unless P2P may reach over the root complex, PHB), else through shared
// memory.
func (g *Graph) Transport(a, b NodeID, l Levels) TransportChoice {
	p := g.Path(a, b)
	c := TransportChoice{Kind: OverSHM, Path: p}
	if s := g.status(a, b); s != P2POK && s != P2PUnknown {
		c.Reasons = append(c.Reasons, Reason(p2pMeaning[s]))
		return c
	}
	notReady := g.fabricBetween(p)
	switch {
	case notReady != "":
		c.Reasons = append(c.Reasons, Reason(notReady))
		p = g.PCIePath(a, b)
		c.Path = p
	case p.Type == PathNVL || p.Type == PathC2C:
		c.Kind = OverNVLink
		c.Reasons = append(c.Reasons, because("%s, %.4g GB/s", p.Type, p.GBs))
		return c
	case p.Type == PathNVB: // kernels can't load through another GPU
		p = g.PCIePath(a, b)
		c.Path = p
	}
	if p.Type > l.P2P {
		c.Reasons = append(c.Reasons, because("the GPUs are at %s, and P2P reaches to %s", p.Type, l.P2P))
		return c
	}
	redirect, unknown := g.portsBetween(p)
	if len(redirect) > 0 {
		c.Reasons = append(c.Reasons, because(
			"ACS of the ports %v sends P2P through the root complex, where it is slow or hangs: clear ACSCtl, or disable ACS in the firmware", redirect))
		if l.P2P < PathPHB {
			return c
		}
	}
	c.Kind = OverP2P
	c.Reasons = append(c.Reasons, because("%s, %.4g GB/s", p.Type, p.GBs))
	if g.status(a, b) == P2PUnknown {
		c.Reasons = append(c.Reasons, Reason(p2pMeaning[P2PUnknown]))
	}
	if len(unknown) > 0 {
		c.Reasons = append(c.Reasons, because("caution: ACS of the ports above %v is not known; if it redirects, P2P hangs or is slow", unknown))
	}
	if g.IOMMU == IOMMUTranslate {
		c.Reasons = append(c.Reasons, because("caution: the IOMMU translates; P2P between devices is wrong in some such hosts: use passthrough (iommu=pt)"))
	}
	return c
}

// fabricBetween is why a path through NVSwitches can't be used, "" if it can or leads elsewhere.
func (g *Graph) fabricBetween(p Path) string {
	if p.Type != PathNVL || len(p.Nodes) != 3 || g.Nodes[p.Nodes[1]].Type != NVS {
		return ""
	}
	for _, id := range []NodeID{p.Nodes[0], p.Nodes[2]} {
		if d := g.Nodes[id].GPU; d != nil && d.Fabric.Ready() != "" {
			return d.Fabric.Ready()
		}
	}
	return ""
}

// portsBetween returns the ports on a path through switches that redirect peer traffic, and the devices above which nobody
// knows. The path turns at its highest node, whose own port it doesn't cross. One that crosses the root complex anyway has
// none.
func (g *Graph) portsBetween(p Path) (redirect, unknown []string) {
	if p.Type > PathPXB {
		return nil, nil
	}
	for _, id := range p.Nodes {
		n := &g.Nodes[id]
		if n.Bus == nil || !slices.Contains(p.Nodes, n.Parent) {
			continue
		}
		switch n.Bus.ACS {
		case ACSRedirect:
			redirect = append(redirect, n.Bus.Port)
		case "":
			unknown = append(unknown, n.Bus.ID)
		}
	}
	return redirect, unknown
}

// GDRWay is how a NIC gets at GPU memory.
type GDRWay string

// The ways, best first.
const (
	GDRByDMABuf  GDRWay = "dmabuf"
	GDRByPeerMem GDRWay = "peermem"
	NoGDR        GDRWay = "none"
)

// ChooseGDR chooses how NICs get at GPU memory: by DMA-BUF if the GPU's driver and the kernel can, else by the peer memory
// module, else not at all, and messages go through host memory.
func ChooseGDR(dmabuf Fact[bool], peerMemory Fact[string]) (GDRWay, []Reason) {
	if dmabuf.Or(false) {
		return GDRByDMABuf, []Reason{"the GPU's driver and the kernel can give GPU memory as DMA-BUF"}
	}
	why := Reason("the GPU's driver or the kernel can't give GPU memory as DMA-BUF")
	if !dmabuf.known {
		why = because("whether GPU memory can be given as DMA-BUF is not known: %s", dmabuf.Why())
	}
	if m := peerMemory.Or(""); m != "" {
		return GDRByPeerMem, []Reason{why, because("the module %s is loaded", m)}
	}
	if !peerMemory.known {
		return NoGDR, []Reason{why, because("whether a peer memory module is loaded is not known: %s", peerMemory.Why())}
	}
	return NoGDR, []Reason{why, "no peer memory module is loaded: modprobe nvidia_peermem"}
}
