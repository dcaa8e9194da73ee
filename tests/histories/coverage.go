package histories

import (
	"fmt"
	"strings"
)

// coverage counts histories by fault, phase, wire and number of ranks.
type coverage struct {
	all     [kinds][phases][wires][maxRanks + 1]int // that were run
	struck  [kinds][phases][wires][maxRanks + 1]int // whose fault happened before the job was over
	history int
	shrunk  int // after which survivors went on
}

const maxRanks = 6

func (c *coverage) add(h History, res Result) {
	c.all[h.Fault.Kind][h.Fault.Phase][h.Wire][h.Ranks]++
	if res.Struck || h.Fault.Kind == None {
		c.struck[h.Fault.Kind][h.Fault.Phase][h.Wire][h.Ranks]++
	}
	c.history++
	if res.Shrunk > 0 {
		c.shrunk++
	}
}

// String is a table of the histories whose fault happened: a line for each fault and phase, a column for each wire and number of ranks.
func (c *coverage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %-6s", "", "")
	for w := range wires {
		fmt.Fprintf(&b, " |%-*s", 5*(maxRanks-1), w.String()+", ranks")
	}
	fmt.Fprintf(&b, "\n%-9s %-6s", "fault", "phase")
	for range wires {
		b.WriteString(" |")
		for n := 2; n <= maxRanks; n++ {
			fmt.Fprintf(&b, "%5d", n)
		}
	}
	fmt.Fprintf(&b, " |%6s %6s\n", "struck", "of all")
	for _, f := range faults {
		fmt.Fprintf(&b, "%-9v %-6v", f.kind, f.phase)
		struck, all := 0, 0
		for w := range wires {
			b.WriteString(" |")
			for n := 2; n <= maxRanks; n++ {
				fmt.Fprintf(&b, "%5d", c.struck[f.kind][f.phase][w][n])
				struck += c.struck[f.kind][f.phase][w][n]
				all += c.all[f.kind][f.phase][w][n]
			}
		}
		fmt.Fprintf(&b, " |%6d %6d\n", struck, all)
	}
	fmt.Fprintf(&b, "survivors went on after %d", c.shrunk)
	return b.String()
}

// thin names the fault and phase, or the combination of them with a wire and a number of ranks, that was met too seldom. Of 100,000
// histories each combination must have 100.
func (c *coverage) thin() string {
	faulty := float64(c.history) * (soundEvery - 1) / soundEvery / float64(len(faults)-1) // an equal share
	share := faulty / float64(wires) / (maxRanks - 1)
	for _, f := range faults[1:] {
		met := 0
		for w := range wires {
			for n := 2; n <= maxRanks; n++ {
				k := c.struck[f.kind][f.phase][w][n]
				met += k
				if floor := int(0.96*share - 2); k < floor {
					return fmt.Sprintf("%v in %v on %v with %d ranks happened in %d of %d histories, want %d", f.kind, f.phase, w, n, k, c.history, floor)
				}
			}
		}
		if floor := int(0.9*faulty) - 1; met < floor {
			return fmt.Sprintf("%v in %v happened in %d of %d histories, want %d", f.kind, f.phase, met, c.history, floor)
		}
	}
	return ""
}
