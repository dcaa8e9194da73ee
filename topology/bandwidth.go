package topology

import "strings"

// The bandwidth model is NCCL's: GB/s in one direction, as a collective sees it, after protocol overhead. Its numbers are those
// of NCCL 2.30; they rank paths and size channels, and are no promise about a wire.
const (
	localGBs     = 5000.0 // within a device, or between a card and its port
	netGBs       = 12.0   // a port of unknown speed: 100 Gbit/s
	pcieGTs      = 8.0    // a PCIe link of unknown speed is taken for the third generation
	pcieLanes    = 16
	nvlinkGBs    = 20.0      // an NVLink of a GPU of unknown generation: as Volta's and Ampere's
	p2pOverIntel = 6.0 / 5.0 // what a path between GPUs over an Intel CPU costs
)

// pciGBs is the bandwidth of a PCIe link: generations 1 and 2 spend 2 bits of 10 on coding, the later ones 2 of 130.
func pciGBs(b *Bus) float64 {
	gts, lanes := pcieGTs, pcieLanes
	if b != nil && b.GTs > 0 {
		gts = b.GTs
	}
	if b != nil && b.Width > 0 {
		lanes = b.Width
	}
	perLane := gts * 7.5 / 80
	if gts <= 5 {
		perLane = gts * 6 / 80
	}
	return perLane * float64(lanes)
}

// linkGBs is the bandwidth of one NVLink or xGMI link of a GPU.
func linkGBs(d *GPUDetails) float64 {
	if d == nil {
		return nvlinkGBs
	}
	if d.GCN != "" { // RCCL's widths
		switch gcn := strings.TrimPrefix(d.GCN, "gfx"); {
		case strings.HasPrefix(gcn, "94"), strings.HasPrefix(gcn, "95"):
			return 48
		case gcn == "910", gcn == "90a":
			return 36
		}
		return 24
	}
	switch {
	case d.SM == 0:
		return nvlinkGBs
	case d.SM >= 100:
		return 40.1
	case d.SM >= 90:
		return 20.6
	case d.SM == 86:
		return 12
	case d.SM >= 70:
		return 20
	}
	return 18
}

// socketGBs is the bandwidth between two NUMA nodes.
func socketGBs(c *CPUDetails) float64 {
	switch {
	case strings.HasPrefix(c.Arch, "arm"), strings.HasPrefix(c.Arch, "aarch64"):
		return 6
	case strings.HasPrefix(c.Arch, "ppc"):
		return 32
	case c.Vendor == "AuthenticAMD":
		return 16
	case c.isIntel():
		switch {
		case c.Model >= 0xcf: // Emerald Rapids and later
			return 40
		case c.Model >= 0x8f: // Sapphire Rapids
			return 22
		case c.Model >= 0x55: // Skylake
			return 10
		}
		return 6
	}
	return 6 // Zhaoxin, and those we don't know
}

func (c *CPUDetails) isIntel() bool { return c.Vendor == "GenuineIntel" }

// portGBs is the bandwidth of a network port.
func portGBs(d *NetDetails) float64 {
	if d == nil || d.Mbps <= 0 {
		return netGBs
	}
	return float64(d.Mbps) / 8000
}
