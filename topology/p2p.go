package topology

import (
	"fmt"
	"io"
)

// P2PStatus is what the NVIDIA driver says of reading or writing from one GPU to another, in nvidia-smi's words.
type P2PStatus string

// All answers of nvidia-smi topo -p2p.
const (
	P2PUnknown              P2PStatus = "U"
	P2POK                   P2PStatus = "OK"
	P2PChipsetNotSupported  P2PStatus = "CNS"
	P2PGPUNotSupported      P2PStatus = "GNS"
	P2PTopologyNotSupported P2PStatus = "TNS"
	P2PNotSupported         P2PStatus = "NS"
	P2PDisabledByRegKey     P2PStatus = "DR"
)

var p2pMeaning = map[P2PStatus]string{
	P2PUnknown:              "the driver doesn't know whether P2P works",
	P2POK:                   "the driver says that P2P works",
	P2PChipsetNotSupported:  "the driver says that the chipset doesn't support P2P (CNS)",
	P2PGPUNotSupported:      "the driver says that the GPU doesn't support P2P (GNS)",
	P2PTopologyNotSupported: "the driver says that the topology doesn't support P2P (TNS)",
	P2PNotSupported:         "the driver says that P2P is not supported (NS)",
	P2PDisabledByRegKey:     "P2P is disabled by a registry key of the driver (DR)",
}

// P2P is the driver's answer for a pair of GPUs: the worse of reading and writing.
type P2P struct {
	A      NodeID    `json:"a"`
	B      NodeID    `json:"b"`
	Status P2PStatus `json:"status"`
}

// status returns the worst of the driver's answers for a pair, for either way: a no is worse than not to know, which it is where nobody asked.
func (g *Graph) status(a, b NodeID) P2PStatus {
	s, asked := P2PUnknown, false
	for _, p := range g.P2P {
		if p.A == a && p.B == b || p.A == b && p.B == a {
			if !asked || s == P2POK || s == P2PUnknown && p.Status != P2POK {
				s = p.Status
			}
			asked = true
		}
	}
	return s
}

// ReadP2P adds to g the driver's answers from the output of nvidia-smi topo -p2p r (or w, n, p, a). Its GPU numbers are those
// of [Graph.GPUs]; one that g doesn't have is an error, and g is then unchanged.
func (g *Graph) ReadP2P(r io.Reader) error {
	t, err := readTable(r)
	if err != nil {
		return fmt.Errorf("read P2P matrix: %w", err)
	}
	gpus := g.GPUs()
	index := func(name string) (NodeID, error) {
		n, ok := gpuNumber(name)
		if !ok || n >= len(gpus) {
			return NoNode, fmt.Errorf("read P2P matrix: %s; the host has %d GPUs", name, len(gpus))
		}
		return gpus[n], nil
	}
	var add []P2P
	for _, row := range t.rows {
		a, err := index(row.name)
		if err != nil {
			return err
		}
		for c, cell := range row.cells {
			b, err := index(t.columns[c])
			if err != nil {
				return err
			}
			if cell == "X" && a == b || cell == "" {
				continue
			}
			s := P2PStatus(cell)
			if _, ok := p2pMeaning[s]; !ok || a == b {
				return fmt.Errorf("read P2P matrix: line %d: %s to %s is %q; want X, OK, CNS, GNS, TNS, NS, DR or U", row.line, row.name, t.columns[c], cell)
			}
			add = append(add, P2P{a, b, s})
		}
	}
	g.P2P = append(g.P2P, add...)
	return nil
}
