package topology

import (
	"errors"
	"fmt"
	"math"
)

// Ring is the order in which a channel passes data around all GPUs of all hosts.
type Ring struct {
	Ranks []int    `json:"ranks"` // of all hosts; host by host
	Rail  int      `json:"rail"`  // which of each host's ports it crosses between hosts
	Nets  []NodeID `json:"nets"`  // that port on each host; NoNode where there is one host, or no port
	Worst PathType `json:"worst"` // of the paths between GPUs of one host, on all hosts
	GBs   float64  `json:"gbs"`   // of its slowest edge, with one NVLink for each channel
}

// Local is the part of a job that is on one host: the GPU of each of its ranks, in their order.
type Local struct {
	Graph *Graph
	GPUs  []NodeID
}

// AllOf is a job with a rank for every GPU of a host.
func AllOf(g *Graph) Local { return Local{g, g.GPUs()} }

// ErrNoGPU: a host has no GPU to put in a ring or tree.
var ErrNoGPU = errors.New("host without GPU")

// Rings plans one ring for each channel. Ranks are numbered host by host, on each in the order of [Local.GPUs]; a job whose
// ranks are numbered otherwise renumbers. Channels 0 is as many as [Channels] says. Ranks may share a GPU.
//
// On each host the ring takes the order of GPUs with the fewest bad edges: the fewest over several CPUs, of these the fewest
// over host bridges, and so on to those over few NVLinks. Up to 16 GPUs the order is the best there is; with more it is a good
// one. Later channels use the NVLinks that the earlier ones left, and start again when no ring of as good a kind is left.
//
// Between hosts a ring keeps to one rail: channel c leaves and enters every host by port c of those that GPUs use, in the order
// of [Graph.Nets], and enters at a GPU of that port. Hosts follow each other as given.
//
// It is a pure function: every rank that has the same graphs gets the same rings.
func Rings(hosts []Local, channels int) ([]Ring, error) {
	if len(hosts) == 0 {
		return nil, errors.New("plan rings: no hosts")
	}
	if channels < 0 || channels > maxChannels {
		return nil, fmt.Errorf("plan rings: %d channels; want 0 to %d", channels, maxChannels)
	}
	plans := make([]*hostRings, len(hosts))
	first := 0
	for i, l := range hosts {
		p, err := newHostRings(l, first)
		if err != nil {
			return nil, fmt.Errorf("plan rings: host %d: %w", i, err)
		}
		plans[i] = p
		first += len(p.gpus)
	}
	if channels == 0 {
		channels, _ = Channels(hosts)
	}
	rails := railsOf(plans)
	rings := make([]Ring, channels)
	for c := range rings {
		r := Ring{Rail: c % max(1, rails), GBs: math.Inf(1)}
		for _, p := range plans {
			s := p.next(c, rails, len(hosts) > 1)
			for _, gpu := range s.order {
				r.Ranks = append(r.Ranks, p.first+gpu)
			}
			r.Nets = append(r.Nets, s.net)
			r.Worst, r.GBs = max(r.Worst, s.worst), min(r.GBs, s.gbs)
		}
		if math.IsInf(r.GBs, 1) {
			r.GBs = localGBs // one GPU alone
		}
		rings[c] = r
	}
	return rings, nil
}

// maxChannels is NCCL's.
const maxChannels = 64

// railsOf is how many ports every host has for its GPUs.
func railsOf(plans []*hostRings) int {
	rails := math.MaxInt
	for _, p := range plans {
		rails = min(rails, len(p.nets))
	}
	return rails
}
