package topology

import "fmt"

// Pinning is the CPUs to run on for a device, and why these.
type Pinning struct {
	CPUs    CPUSet   `json:"cpus"` // empty: leave the process where it is
	Reasons []Reason `json:"reasons"`
}

// Reason is a sentence about a choice.
type Reason string

func because(format string, args ...any) Reason { return Reason(fmt.Sprintf(format, args...)) }

// Pin chooses the CPUs for threads that serve a device: those of its NUMA node that the process may use. If it may use none of
// them, or nobody knows them, it keeps all that it may use: a slower place is better than a refused one.
func (g *Graph) Pin(device NodeID, allowed Fact[CPUSet]) Pinning {
	may, known := allowed.Get()
	near, cpu := CPUSet(nil), g.CPUOf(device)
	if cpu != NoNode {
		near = g.Nodes[cpu].CPU.CPUs
	}
	var why []Reason
	if near.Len() == 0 {
		if cpu == NoNode {
			why = append(why, because("%s hangs on no NUMA node", g.Name(device)))
		} else {
			why = append(why, because("%s of %s has no CPUs, or they are not known", g.Name(cpu), g.Name(device)))
		}
		for _, c := range g.CPUs() {
			near = near.Or(g.Nodes[c].CPU.CPUs)
		}
	} else {
		why = append(why, because("%s is on %s, which has the CPUs %s", g.Name(device), g.Name(cpu), near))
	}
	if !known {
		return Pinning{near, append(why, because("which CPUs the process may use is not known: %s", allowed.Why()))}
	}
	if both := near.And(may); both.Len() > 0 {
		return Pinning{both, append(why, because("the process may use %s", may))}
	}
	return Pinning{may, append(why, because("the process may use none of them, only %s: it stays there", may))}
}
