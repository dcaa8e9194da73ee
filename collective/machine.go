package collective

import "sort"

// Machine runs a plan by dependencies: an op is ready when what it needs is done, in any
// order that allows. It is the reference that Verify holds Linear against and what
// the simulator drives; the engine walks Linear, which is several times as fast. A Machine
// may be reused by Reset. It belongs to one goroutine.
type Machine struct {
	needs []int32 // per op, how many must be done before it
	left  []int32 // the same in this run
	next  []int32 // ops that wait for op i: next[at[i]:at[i+1]]
	at    []int32
}

// NewMachine returns a machine for the plan; call Reset before the first run.
func NewMachine(p *Plan) *Machine { return newMachine(resolve(p)) }

func newMachine(v *resolved) *Machine {
	g := newGraph(v)
	n := len(v.Ops)
	m := &Machine{needs: make([]int32, n), left: make([]int32, n), at: make([]int32, n+1), next: make([]int32, len(g.edges))}
	for _, e := range g.edges {
		m.needs[e[1]]++
		m.at[e[0]+1]++
	}
	for i := range n {
		m.at[i+1] += m.at[i]
	}
	fill := make([]int32, n)
	for _, e := range g.edges {
		m.next[m.at[e[0]]+fill[e[0]]] = e[1]
		fill[e[0]]++
	}
	return m
}

// Reset begins a run and appends to ready the ops that can start.
func (m *Machine) Reset(ready []int32) []int32 {
	copy(m.left, m.needs)
	for i, n := range m.needs {
		if n == 0 {
			ready = append(ready, int32(i))
		}
	}
	return ready
}

// Done says that op i is done and appends to ready the ops that can start now.
func (m *Machine) Done(i int32, ready []int32) []int32 {
	for _, j := range m.next[m.at[i]:m.at[i+1]] {
		if m.left[j]--; m.left[j] == 0 {
			ready = append(ready, j)
		}
	}
	return ready
}

// graph finds what each op of a plan depends on.
type graph struct {
	plan    *resolved
	edges   [][2]int32 // the first must be done before the second
	writer  []int32    // of each cell, -1 without
	readers [][]int32  // of each cell since it was written
	peers   map[int32]*traffic
}

// traffic is the ops of a plan that have to do with one peer.
type traffic struct {
	sends, reuses []int32
	lastReceive   int32
}

func newGraph(v *resolved) *graph {
	cells := len(v.number)
	g := &graph{plan: v, edges: make([][2]int32, 0, 2*len(v.Ops)+2*len(v.Srcs)), writer: make([]int32, cells), readers: make([][]int32, cells), peers: map[int32]*traffic{}}
	for i := range g.writer {
		g.writer[i] = -1
	}
	for n := range v.Ops {
		i, o := int32(n), &v.Ops[n]
		for k, c := range v.sources(o) {
			g.edge(g.writer[c], i)
			if v.Srcs[int(o.Src)+k].Flags&Last != 0 { // releases it
				for _, r := range g.readers[c] {
					g.edge(r, i)
				}
			}
			g.readers[c] = append(g.readers[c], i)
		}
		t := g.peers[o.Peer]
		if t == nil && o.Code != OpFold && o.Code != OpCopy {
			t = &traffic{lastReceive: -1}
			g.peers[o.Peer] = t
		}
		switch o.Code {
		case OpSend:
			if k := len(t.sends); k > 0 {
				g.edge(t.sends[k-1], i)
			}
			t.sends = append(t.sends, i)
		case OpReuse:
			if int(o.Msg) < len(t.sends) {
				g.edge(t.sends[o.Msg], i)
			}
			t.reuses = append(t.reuses, i)
		case OpRecv, OpView:
			// The next message is asked for when the view of the one before was released.
			if prev := t.lastReceive; prev >= 0 {
				g.edge(prev, i)
				if v.Ops[prev].Code == OpView {
					for _, use := range g.readers[v.dst[prev]] {
						g.edge(use, i)
					}
				}
			}
			t.lastReceive = i
			g.write(v.dst[i], i)
		default:
			g.write(v.dst[i], i)
		}
	}
	return g
}

// write orders op i, which writes cell c, after the last writer and all readers.
func (g *graph) write(c, i int32) {
	g.edge(g.writer[c], i)
	for _, r := range g.readers[c] {
		o := &g.plan.Ops[r]
		if o.Code != OpSend {
			g.edge(r, i)
			continue
		}
		reuses := g.peers[o.Peer].reuses
		if k := sort.Search(len(reuses), func(k int) bool { return g.plan.Ops[reuses[k]].Msg >= o.Msg }); k < len(reuses) {
			g.edge(reuses[k], i)
		}
	}
	g.writer[c] = i
	g.readers[c] = g.readers[c][:0]
}

func (g *graph) edge(from, to int32) {
	if from >= 0 && from != to {
		g.edges = append(g.edges, [2]int32{from, to})
	}
}
