package comm

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/topology"
)

// places is where the ranks of a world are. Every rank makes it of the same hellos and decides by it alike.
type places struct {
	of     []topology.Place  // by rank
	levels []topology.Levels // by rank
	forced []bool            // by rank: it was told how far P2P may reach
	orders [][]int           // topology.Orders, at least one
}

// seat is what a rank tells of where it is.
type seat struct {
	Graph []byte `json:",omitempty"` // its host, see pack; none: not known
	GPU   string `json:",omitempty"` // the driver's UUID
	Ports string `json:",omitempty"` // filter of RDMA devices
	P2P   string `json:",omitempty"` // levels, where they were set
	GDR   string `json:",omitempty"`
}

// newSeat is ours.
func newSeat(cfg Config, g *topology.Graph, gpu *opened) (s seat, err error) {
	if s.Graph, err = pack(g); err != nil {
		return s, fmt.Errorf("comm: topology: %w", err)
	}
	if gpu != nil {
		s.GPU = uuid(gpu.Info())
	}
	s.P2P, s.GDR = cfg.P2PLevel, cfg.GDRLevel
	s.Ports = cfg.RDMADevice
	return s, nil
}

// uuid is a GPU's in the words of its driver.
func uuid(i cuda.Info) string {
	u := i.UUID
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// newPlaces reads the hellos of all ranks.
func newPlaces(all []hello) (*places, error) {
	p := &places{of: make([]topology.Place, len(all)), levels: make([]topology.Levels, len(all)), forced: make([]bool, len(all))}
	graphs := map[string]*topology.Graph{} // most ranks of a host have sent the same
	ports := map[portsOf]*ports{}
	for r, h := range all {
		g, known := graphs[string(h.Graph)]
		if !known {
			var err error
			if g, err = unpack(h.Graph); err != nil {
				return nil, fmt.Errorf("comm: rank %d (%s): %w", r, h.place(), err)
			}
			graphs[string(h.Graph)] = g
		}
		p.of[r] = topology.Place{Host: h.Boot, Graph: g, GPU: topology.NoNode, CPU: topology.NoNode, NIC: topology.NICChoice{Net: topology.NoNode}}
		p.levels[r] = topology.DefaultLevels()
		for _, l := range []struct {
			word  string
			level *topology.PathType
		}{{h.P2P, &p.levels[r].P2P}, {h.GDR, &p.levels[r].GDR}} {
			if l.word == "" {
				continue
			}
			var err error
			if *l.level, err = topology.ParsePathType(l.word); err != nil {
				return nil, fmt.Errorf("comm: rank %d (%s): %w", r, h.place(), err)
			}
		}
		p.forced[r] = h.P2P != ""
		if g == nil {
			continue
		}
		key := portsOf{g, h.Ports}
		if ports[key] == nil {
			var err error
			if ports[key], err = newPorts(key); err != nil {
				return nil, fmt.Errorf("comm: rank %d (%s): %w", r, h.place(), err)
			}
		}
		at := &p.of[r]
		at.GPU, at.CPU = g.ByUUID(h.GPU), g.NUMA(topology.CPUSetOf(h.Processors...))
		at.NIC = ports[key].choose(at.GPU, topology.CPUSetOf(h.Processors...))
	}
	p.orders = topology.Orders(p.of, all[0].Lanes) // a lane is of one channel
	return p, nil
}

// ports chooses network ports on one host, within what a filter takes.
type ports struct {
	g     *topology.Graph
	byGPU []topology.NICChoice
	byCPU map[string]topology.NICChoice // by the processors that ranks may use
}

type portsOf struct {
	g      *topology.Graph
	filter string
}

func newPorts(of portsOf) (*ports, error) {
	f, err := topology.ParseFilter(of.filter)
	if err != nil {
		return nil, err
	}
	p := &ports{g: of.g.Restrict(f), byCPU: map[string]topology.NICChoice{}}
	p.byGPU = p.g.PairNICs(p.g.GPUs()) // of all GPUs, so that two jobs on one host take different ports
	return p, nil
}

func (p *ports) choose(gpu topology.NodeID, may topology.CPUSet) topology.NICChoice {
	if i := slices.IndexFunc(p.byGPU, func(c topology.NICChoice) bool { return c.GPU == gpu }); i >= 0 {
		return p.byGPU[i]
	}
	c, known := p.byCPU[may.String()]
	if !known {
		c = p.g.HostNIC(may)
		p.byCPU[may.String()] = c
	}
	return c
}

// way is how two ranks should reach each other.
func (p *places) way(a, b int) topology.TransportChoice {
	x, y := p.levels[a], p.levels[b]
	return topology.Between(p.of[a], p.of[b], topology.Levels{P2P: min(x.P2P, y.P2P), GDR: min(x.GDR, y.GDR)})
}

// refuse is why two of these ranks, all of one process, must not use each other's GPU memory; "" if all may. Where nobody said how far
// P2P may reach it goes as far as the driver lets it, as gccl has no other way between GPUs.
func (f *family) refuse(world []int) string {
	p := f.places
	if p == nil {
		return ""
	}
	type limited struct {
		gpu    topology.NodeID
		graph  *topology.Graph
		level  topology.PathType
		forced bool
	}
	var ranks []int // of those that make a difference
	seen := map[limited]bool{}
	for _, w := range world {
		l := limited{p.of[w].GPU, p.of[w].Graph, p.levels[w].P2P, p.forced[w]}
		if l.gpu == topology.NoNode || seen[l] { // not known: the driver tells
			continue
		}
		seen[l] = true
		for _, r := range ranks {
			c := p.way(r, w)
			if !c.Direct() && !p.forced[r] && !p.forced[w] {
				c = topology.Between(p.of[r], p.of[w], topology.Levels{P2P: topology.PathSYS})
			}
			if !c.Direct() {
				return fmt.Sprintf("the GPUs of ranks %d and %d must not use each other's memory: %s", r, w, c.Reasons[0])
			}
		}
		ranks = append(ranks, w)
	}
	return ""
}

// digest is of all that follows from the places: ranks that differ in it would wait for each other in vain.
func (p *places) digest() uint64 {
	h := fnv.New64a()
	for r, at := range p.of {
		fmt.Fprintln(h, r, at.Host, at.GPU, at.CPU, at.NIC.Net, at.NIC.Via, p.way(r, (r+1)%len(p.of)).Kind)
	}
	fmt.Fprintln(h, p.orders)
	return h.Sum64()
}

// sameDigests reports the ranks that came to other places than most, or than the lowest rank where none are most.
func sameDigests(digests []uint64) error {
	votes := map[uint64]int{}
	for _, d := range digests {
		votes[d]++
	}
	if len(votes) <= 1 {
		return nil
	}
	most := digests[0]
	for _, d := range digests {
		if votes[d] > votes[most] {
			most = d
		}
	}
	c := &cause{class: "mismatch", from: -1}
	for r, d := range digests {
		if d != most {
			c.ranks = append(c.ranks, r)
		}
	}
	c.text = fmt.Sprintf("ranks %v choose otherwise than rank %d by the same topologies: run the same gccl everywhere", c.ranks, slices.Index(digests, most))
	return c
}
