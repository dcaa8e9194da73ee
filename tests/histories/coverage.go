package histories

import (
	"fmt"
	"strings"
)

// coverage counts histories by fault, phase and number of ranks.
type coverage struct {
	all    [kinds][phases][maxRanks + 1]int // that were run
	struck [kinds][phases][maxRanks + 1]int // whose fault happened before the job was over
	shrunk int                              // after which survivors went on
}

const maxRanks = 6

func (c *coverage) add(h History, res Result) {
	c.all[h.Fault.Kind][h.Fault.Phase][h.Ranks]++
	if res.Struck || h.Fault.Kind == None {
		c.struck[h.Fault.Kind][h.Fault.Phase][h.Ranks]++
	}
	if res.Shrunk > 0 {
		c.shrunk++
	}
}

// String is a table: a line for each fault and phase, a column for each number of ranks.
func (c *coverage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-7s", "struck", "ranks")
	for n := 2; n <= maxRanks; n++ {
		fmt.Fprintf(&b, "%7d", n)
	}
	fmt.Fprintf(&b, "%10s\n", "of all")
	for _, f := range faults {
		fmt.Fprintf(&b, "%-10v %-7v", f.kind, f.phase)
		all := 0
		for n := 2; n <= maxRanks; n++ {
			fmt.Fprintf(&b, "%7d", c.struck[f.kind][f.phase][n])
			all += c.all[f.kind][f.phase][n]
		}
		fmt.Fprintf(&b, "%10d\n", all)
	}
	fmt.Fprintf(&b, "survivors went on after %d", c.shrunk)
	return b.String()
}

// thin names the fault and phase, or number of ranks, that was met too seldom in a run of so many histories.
func (c *coverage) thin(done int) string {
	floor := done * 4 / 5 / (len(faults) - 1) / 5 // a fifth of an equal share, for those that strike too late
	ranks := [maxRanks + 1]int{}
	for _, f := range faults {
		n := 0
		for r, k := range c.struck[f.kind][f.phase] {
			n += k
			ranks[r] += k
		}
		if n < floor {
			return fmt.Sprintf("%v in %v happened in %d of %d histories, want %d", f.kind, f.phase, n, done, floor)
		}
	}
	for r := 2; r <= maxRanks; r++ {
		if ranks[r] < done/10 {
			return fmt.Sprintf("%d of %d histories had %d ranks, want %d", ranks[r], done, r, done/10)
		}
	}
	return ""
}
