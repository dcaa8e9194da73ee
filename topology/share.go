package topology

import "slices"

// Share divides the CPUs that this process may use among ranks that run on the host: rank i serves GPU i of those that CUDA shows it, or without
// GPUs the ranks spread over the NUMA nodes. Ranks of one NUMA node get whole cores of their own, CPUs of their own where cores are too few,
// and all of the node's CPUs where those are too few as well. A GPU whose node is not known or has no CPU that may be used counts for all nodes.
//
// Environ is the ranks' environment, NAME=value, for CUDA_VISIBLE_DEVICES. What is not known is left as it is: then the CPUs are empty, with
// the reason.
func (h *Host) Share(ranks int, environ []string) []Pinning {
	pins := make([]Pinning, max(0, ranks))
	allowed, known := h.CPU.Allowed().Get()
	if !known {
		for i := range pins {
			pins[i].Reasons = []Reason{because("which CPUs the process may use is not known: %s", h.CPU.Allowed().Why())}
		}
		return pins
	}
	g := h.Graph()
	gpus, note := h.visible(g, environ)
	nodes := slices.DeleteFunc(g.CPUs(), func(id NodeID) bool { return g.Nodes[id].CPU.CPUs.And(allowed).Len() == 0 })
	homes := map[NodeID][]int{}
	for i := range pins {
		home := NoNode
		switch {
		case len(gpus) > 0:
			gpu := gpus[i%len(gpus)]
			if gpu == NoNode {
				pins[i].Reasons = []Reason{because("which GPU it has is not known%s", note)}
				break
			}
			if at := g.CPUOf(gpu); slices.Contains(nodes, at) {
				home = at
			}
			pins[i].Reasons = []Reason{because("%s%s is on %s", g.Name(gpu), note, g.Name(g.CPUOf(gpu)))}
		case len(nodes) > 0:
			home = nodes[i*len(nodes)/ranks]
			pins[i].Reasons = []Reason{because("ranks: %d, spread over NUMA nodes: %d", ranks, len(nodes))}
			if len(g.GPUs()) > 0 {
				pins[i].Reasons = append(pins[i].Reasons, because("they see no GPU%s", note))
			}
		}
		homes[home] = append(homes[home], i)
	}
	for home, here := range homes {
		cpus, name := allowed, "the host"
		if home != NoNode {
			cpus, name = g.Nodes[home].CPU.CPUs.And(allowed), g.Name(home)
		}
		cores := h.cores(cpus)
		if len(cores) < len(here) {
			cores = nil
			for _, n := range cpus.List() {
				cores = append(cores, CPUSetOf(n))
			}
		}
		for j, i := range here {
			pins[i].Reasons = append(pins[i].Reasons, because("%s has the CPUs %s for %d of the ranks", name, cpus, len(here)))
			if len(cores) < len(here) {
				pins[i].CPUs = cpus
				pins[i].Reasons = append(pins[i].Reasons, "they are too few for one each: the ranks share them")
				continue
			}
			for _, core := range cores[j*len(cores)/len(here) : (j+1)*len(cores)/len(here)] {
				pins[i].CPUs = pins[i].CPUs.Or(core)
			}
		}
	}
	return pins
}

// cores groups CPUs by the first-level cache that they share; where caches are not known each CPU is a core.
func (h *Host) cores(cpus CPUSet) []CPUSet {
	var cores []CPUSet
	rest := cpus
	for _, n := range cpus.List() {
		if !rest.Has(n) {
			continue
		}
		core := CPUSetOf(n)
		for _, c := range h.CPU.Caches.Or(nil) {
			if c.Level == 1 && c.Type == "Data" && c.CPUs.Has(n) {
				core = c.CPUs.And(cpus)
			}
		}
		cores = append(cores, core)
		rest = CPUSetOf(slices.DeleteFunc(rest.List(), core.Has)...)
	}
	return cores
}
