package topology

// Channels says how many rings or trees to run at once, and why. These are numbers to start from: the tuner measures.
//
// On one host a channel for each NVLink out of the GPU that has the fewest, at most 16, so that every link is busy; without
// NVLink 2, one to send while the other folds. Between hosts one for each 25 GB/s of every rail, which is about what one
// channel moves, but at least one a rail and no more than 32.
func Channels(hosts []Local) (int, []Reason) {
	links, rails, perRail := 1<<30, 1<<30, 1
	for _, l := range hosts {
		g := l.Graph
		left := newNVLinksLeft(g, l.GPUs)
		for i := range l.GPUs {
			out := left.out[i]
			for _, n := range left.direct[i] {
				out += n
			}
			links = min(links, out)
		}
		nets := map[NodeID]bool{}
		for _, c := range g.PairNICs(l.GPUs) {
			if c.Net != NoNode {
				nets[c.Net] = true
				perRail = max(perRail, int(portGBs(g.Nodes[c.Net].Net)/25))
			}
		}
		rails = min(rails, len(nets))
	}
	if len(hosts) > 1 && rails > 0 {
		n := min(32, rails*perRail)
		return n, []Reason{because("%d rails of up to %d × 25 GB/s", rails, perRail)}
	}
	if len(hosts) == 1 && links > 0 && links < 1<<30 {
		return min(16, links), []Reason{because("%d NVLinks a GPU, at most 16", links)}
	}
	return 2, []Reason{"neither NVLink nor rails"}
}
