package collective

// Machine runs a plan by dependencies: an op is ready when what it needs is done, in any
// order that allows. It is the reference that Verify holds Linear against and what
// the simulator drives; the engine walks Linear, which is five times as fast. A Machine
// may be reused by Reset. It belongs to one goroutine.
type Machine struct {
	plan  *Plan
	needs []int32 // per op, how many must be done before it
	left  []int32 // the same in this run
	next  []int32 // ops that wait for op i: next[at[i]:at[i+1]]
	at    []int32
}

// NewMachine returns a machine for the plan; call Reset before the first run.
func NewMachine(p *Plan) *Machine {
	g := newGraph(p)
	m := &Machine{plan: p, needs: make([]int32, len(p.Ops)), left: make([]int32, len(p.Ops)), at: make([]int32, len(p.Ops)+1)}
	for _, e := range g.edges {
		m.needs[e[1]]++
		m.at[e[0]+1]++
	}
	for i := range p.Ops {
		m.at[i+1] += m.at[i]
	}
	m.next = make([]int32, len(g.edges))
	fill := make([]int32, len(p.Ops))
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
	plan    *Plan
	edges   [][2]int32 // first must be done before second
	writer  map[Ref]int32
	readers map[Ref][]int32
	sends   map[message]int32
	reuses  map[int32][]int32 // of a peer, in order
}

func newGraph(p *Plan) *graph {
	g := &graph{plan: p, writer: map[Ref]int32{}, readers: map[Ref][]int32{}, sends: map[message]int32{}, reuses: map[int32][]int32{}}
	lastSend, lastReceive := map[int32]int32{}, map[int32]int32{}
	lastUse := map[int32]int32{} // of a view
	for n := range p.Ops {
		i, o := int32(n), &p.Ops[n]
		for _, src := range p.Sources(o) {
			c := p.cell(src)
			if w, ok := g.writer[c]; ok {
				g.edge(w, i)
			}
			g.readers[c] = append(g.readers[c], i)
			if src.IsView() {
				lastUse[src.Block] = i
			}
		}
		switch o.Code {
		case OpSend:
			if prev, ok := lastSend[o.Peer]; ok {
				g.edge(prev, i)
			}
			lastSend[o.Peer] = i
			g.sends[message{o.Peer, o.Msg}] = i
			continue
		case OpReuse:
			g.edge(g.sends[message{o.Peer, o.Msg}], i)
			g.reuses[o.Peer] = append(g.reuses[o.Peer], i)
			continue
		case OpRecv, OpView:
			if prev, ok := lastReceive[o.Peer]; ok {
				g.edge(prev, i)
				if p.Ops[prev].Code == OpView {
					if use, ok := lastUse[p.Ops[prev].Dst.Block]; ok {
						g.edge(use, i)
					}
				}
			}
			lastReceive[o.Peer] = i
		}
		g.write(p.cell(o.Dst), i)
	}
	return g
}

// write orders op i, which writes cell c, after the last writer and all readers.
func (g *graph) write(c Ref, i int32) {
	if w, ok := g.writer[c]; ok {
		g.edge(w, i)
	}
	for _, r := range g.readers[c] {
		o := &g.plan.Ops[r]
		if r == i {
			continue
		}
		if o.Code != OpSend {
			g.edge(r, i)
			continue
		}
		for _, u := range g.reuses[o.Peer] {
			if g.plan.Ops[u].Msg >= o.Msg {
				g.edge(u, i)
				break
			}
		}
	}
	g.writer[c] = i
	delete(g.readers, c)
}

func (g *graph) edge(from, to int32) {
	if from != to {
		g.edges = append(g.edges, [2]int32{from, to})
	}
}

// cell is the one name of the memory at r: an in-place input is named as the output, or
// the other way round in a reduce-scatter.
func (p *Plan) cell(r Ref) Ref {
	r.Flags = 0
	if !p.InPlace {
		return r
	}
	switch k := p.Shape.Kind; {
	case k == ReduceScatter && r.Space == Out:
		r.Space, r.Block = In, int32(p.Rank)
	case k != ReduceScatter && r.Space == In:
		r.Space = Out
		if k == AllGather {
			r.Block = int32(p.Rank)
		}
	}
	return r
}
