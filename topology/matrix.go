package topology

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// ParseMatrix reads the output of nvidia-smi topo -m, of any driver generation: NIC columns under their names or as NIC0 with a
// legend, with or without NUMA columns, SOC for SYS, with tabs or pasted spaces, underlined or not.
//
// A matrix says how far devices are, not what is between; the graph is the smallest that gives the same distances. Devices at
// PIX share a switch, at PXB a switch of switches, at PHB a host bridge, at NODE a CPU; devices at SYS hang on different CPUs,
// even where the matrix gives both the same NUMA number. What lies behind an NV# is taken from what the matrix says of third
// devices, then from the affinity. NV# between all GPUs with more links than a GPU has is an NVSwitch.
//
// A matrix that isn't symmetric, or whose distances fit no tree, is an error that names the devices.
func ParseMatrix(r io.Reader) (*Graph, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, fmt.Errorf("read topology matrix: %w", err)
	}
	m, err := newMatrix(t)
	if err != nil {
		return nil, fmt.Errorf("read topology matrix: %w", err)
	}
	g, err := m.graph()
	if err != nil {
		return nil, fmt.Errorf("read topology matrix: %w", err)
	}
	return g, nil
}

// distance is how far two devices are over PCIe.
type distance uint8

const (
	unknownDistance distance = iota // behind NVLink, or not printed
	pix
	pxb
	phb
	node // other host bridges of one NUMA node; a PHB in NCCL's words
	sys
)

var distances = map[string]distance{"PIX": pix, "PXB": pxb, "PHB": phb, "NODE": node, "SYS": sys, "SOC": sys, "N/A": unknownDistance, "?": unknownDistance}

func (d distance) String() string {
	return [...]string{"unknown", "PIX", "PXB", "PHB", "NODE", "SYS"}[d]
}

// matrix is what the table says, by device: GPUs first.
type matrix struct {
	names []string
	gpus  int
	far   [][]distance
	nv    [][]int
	cpus  []CPUSet // of GPUs
	numa  []int    // of GPUs; -1 unknown
}

// gpuNumber reads GPU12.
func gpuNumber(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "GPU")
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), ok && err == nil
}

func newMatrix(t *table) (*matrix, error) {
	m := &matrix{}
	devices := t.columns
	if end := slices.IndexFunc(devices, func(c string) bool { return strings.HasSuffix(c, "Affinity") || strings.HasPrefix(c, "GPU NUMA") }); end >= 0 {
		devices = devices[:end]
	}
	at := map[string]int{}
	for i, name := range devices {
		n, isGPU := gpuNumber(name)
		switch {
		case isGPU && n != m.gpus || isGPU && n != i:
			return nil, fmt.Errorf("column %d is %s; want GPUs first, numbered from 0", i+1, name)
		case isGPU:
			m.gpus++
		case name == "":
			return nil, fmt.Errorf("column %d has no name", i+1)
		}
		if _, twice := at[name]; twice {
			return nil, fmt.Errorf("%s stands twice in the header", name)
		}
		at[name] = i
	}
	for _, name := range devices {
		m.names = append(m.names, cmp.Or(t.legend[name], name))
		m.far = append(m.far, make([]distance, len(devices)))
		m.nv = append(m.nv, make([]int, len(devices)))
		m.cpus = append(m.cpus, nil)
		m.numa = append(m.numa, -1)
	}
	said := map[[2]int]string{}
	for _, row := range t.rows {
		i, ok := at[row.name]
		if !ok {
			return nil, fmt.Errorf("line %d is of %.40q, which has no column", row.line, row.name)
		}
		for j, cell := range row.cells {
			if j >= len(devices) {
				if err := m.affinity(i, t.columns[j], cell); err != nil {
					return nil, fmt.Errorf("line %d: %w", row.line, err)
				}
				continue
			}
			if (cell == "X") != (i == j) {
				return nil, fmt.Errorf("line %d: %.40s to %.40s is %.40q", row.line, devices[i], devices[j], cell)
			}
			if i == j || cell == "" {
				continue
			}
			if back, ok := said[[2]int{j, i}]; ok && back != cell {
				return nil, fmt.Errorf("%s to %s is %s, but the way back is %s", devices[j], devices[i], back, cell)
			}
			said[[2]int{i, j}] = cell
			if err := m.cell(i, j, cell); err != nil {
				return nil, fmt.Errorf("line %d: %s to %s: %w", row.line, devices[i], devices[j], err)
			}
		}
	}
	for i := range devices {
		for j := range i {
			_, one := said[[2]int{i, j}]
			_, other := said[[2]int{j, i}]
			if !one && !other {
				return nil, fmt.Errorf("nothing is said of %s and %s", devices[j], devices[i])
			}
		}
	}
	return m, nil
}

func (m *matrix) cell(i, j int, cell string) error {
	if links, ok := strings.CutPrefix(cell, "NV"); ok {
		n, err := strconv.ParseUint(links, 10, 16)
		if err != nil || n == 0 || n > maxNVLinks || i >= m.gpus || j >= m.gpus {
			return fmt.Errorf("%.40q is no NVLink between GPUs", cell)
		}
		m.nv[i][j], m.nv[j][i] = int(n), int(n)
		return nil
	}
	d, ok := distances[cell]
	if !ok {
		return fmt.Errorf("%.40q; want NV#, PIX, PXB, PHB, NODE or SYS", cell)
	}
	m.far[i][j], m.far[j][i] = d, d
	return nil
}

func (m *matrix) affinity(i int, column, cell string) (err error) {
	if cell == "" || cell == "N/A" || cell == "?" {
		return nil
	}
	switch column {
	case "CPU Affinity":
		m.cpus[i], err = ParseCPUList(cell)
	case "NUMA Affinity":
		first, _, _ := strings.Cut(strings.ReplaceAll(cell, "-", ","), ",") // a GPU near several nodes
		n, parseErr := strconv.ParseUint(first, 10, 16)
		if parseErr != nil {
			return fmt.Errorf("NUMA node %.40q is no number", cell)
		}
		m.numa[i] = int(n)
	}
	return err
}

// clusters joins devices that are known to be at most so far from each other, and returns each one's cluster: its first device.
func (m *matrix) clusters(d distance, below []int) []int {
	of := slices.Clone(below)
	for i := range of {
		for j := range i {
			if m.far[i][j] != unknownDistance && m.far[i][j] <= d {
				from, to := max(of[i], of[j]), min(of[i], of[j])
				for k := range of {
					if of[k] == from {
						of[k] = to
					}
				}
			}
		}
	}
	return of
}

// neighbours moves GPUs whose distances are all behind NVLink to the first CPU with the same affinity that nothing speaks
// against.
func (m *matrix) neighbours(of []int) {
	for i := range m.gpus {
		if of[i] != i {
			continue
		}
		for j := range i {
			if of[j] == j && m.cpus[i] != nil && m.cpus[i].Equal(m.cpus[j]) && m.numa[i] == m.numa[j] && m.mayJoin(of, i, j) {
				for k := range of {
					if of[k] == i {
						of[k] = j
					}
				}
				break
			}
		}
	}
}

func (m *matrix) mayJoin(of []int, i, j int) bool {
	for a := range of {
		for b := range of {
			if of[a] == i && of[b] == j && m.far[a][b] == sys {
				return false
			}
		}
	}
	return true
}

// distance is what nvidia-smi calls the path between two devices over PCIe.
func (g *Graph) distance(a, b NodeID, t PathType) distance {
	switch t {
	case PathLOC, PathPIX: // ports of one card are as near as cards at one switch
		return pix
	case PathPXB:
		return pxb
	case PathPHB:
		if x, y := g.Nodes[a].Bus, g.Nodes[b].Bus; x != nil && y != nil && x.Bridge != y.Bridge {
			return node
		}
		return phb
	}
	return sys
}
