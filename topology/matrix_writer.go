package topology

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// WriteMatrix writes g in the layout of nvidia-smi topo -m: GPUs, then the ports of network cards, then the CPUs near each GPU.
func (g *Graph) WriteMatrix(w io.Writer) error {
	gpus, nets := g.GPUs(), g.Nets()
	var b strings.Builder
	for i := range gpus {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	for i := range nets {
		fmt.Fprintf(&b, "\tNIC%d", i)
	}
	b.WriteString("\tCPU Affinity\tNUMA Affinity\n")
	adj, nv := g.adjacency(g.pcieLinks()), g.counts()
	for i, a := range slices.Concat(gpus, nets) {
		if i < len(gpus) {
			fmt.Fprintf(&b, "GPU%d", i)
		} else {
			fmt.Fprintf(&b, "NIC%d", i-len(gpus))
		}
		paths := adj.paths(g.card(a))
		for _, c := range slices.Concat(gpus, nets) {
			cell := " X "
			if n := nv[[2]NodeID{a, c}]; a != c && n > 0 {
				cell = "NV" + strconv.Itoa(n)
			} else if a != c {
				cell = g.distance(g.card(a), g.card(c), paths[g.card(c)].Type).String()
			}
			b.WriteString("\t" + cell)
		}
		cpus, numa := "", ""
		if cpu := g.CPUOf(a); i < len(gpus) && cpu != NoNode {
			d := g.Nodes[cpu].CPU
			cpus = cmp.Or(d.CPUs.String(), "N/A")
			numa = "N/A"
			if d.NUMA >= 0 {
				numa = strconv.Itoa(d.NUMA)
			}
		}
		b.WriteString("\t" + cpus + "\t" + numa + "\n")
	}
	b.WriteString(legend)
	for i, n := range nets {
		fmt.Fprintf(&b, "  NIC%d: %s\n", i, g.Name(n))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const legend = `
Legend:

  X    = itself
  NV#  = # NVLinks, direct or to the switches
  PIX  = one PCIe switch
  PXB  = several PCIe switches
  PHB  = one host bridge
  NODE = several host bridges of one NUMA node
  SYS  = from NUMA node to NUMA node

NIC Legend:

`

// card is the device on PCI that a port belongs to.
func (g *Graph) card(id NodeID) NodeID {
	if g.Nodes[id].Type == NET {
		return g.Nodes[id].Parent
	}
	return id
}

// counts returns the number of NVLinks between pairs of GPUs, both ways: direct, or the fewer of the two to the switches.
func (g *Graph) counts() map[[2]NodeID]int {
	both, toSwitch := g.bundles()
	for a, n := range toSwitch {
		for b, m := range toSwitch {
			if a != b {
				both[[2]NodeID{a, b}] = min(n, m)
			}
		}
	}
	return both
}
