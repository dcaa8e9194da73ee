package histories

import "fmt"

// Wire is how messages pass between the ranks of a job: its transport.
type Wire uint8

// The wires.
const (
	Shared Wire = iota // ranks read each other's memory where it lies, as over shm
	Socket             // what is sent stays in its memory until it can be copied, with a bound to what is under way, as over tcp
	Mixed              // ranks are on two nodes: shared within, a socket between
	wires
)

func (w Wire) String() string { return [...]string{"shared", "socket", "mixed"}[w] }

// node names the node that a rank is on. Each rank is a host of its own to the network, which fails alone.
func (p *Program) node(r int) string {
	switch p.Wire {
	case Shared:
		return "node 0"
	case Mixed:
		return fmt.Sprint("node ", 2*r/p.Ranks)
	}
	return fmt.Sprint("node ", r)
}

// credit is mem.Network.Credit of the job.
func (p *Program) credit() func(a, b string) int {
	nodes := map[string]string{}
	for r := range p.Ranks {
		nodes[host(r)] = p.node(r)
	}
	return func(a, b string) int {
		if nodes[a] == nodes[b] {
			return 0
		}
		return p.Credit
	}
}
