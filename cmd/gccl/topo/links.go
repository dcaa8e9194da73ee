package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// links draws what joins GPUs without PCIe: a band for the switches, and a line on a track of its own for each direct bundle.
func (p *picture) links() {
	var direct, switched []topology.Link
	for _, l := range p.g.Links() {
		switch _, placed := p.at[l.B]; {
		case l.Type != topology.LinkNVL:
		case p.g.Nodes[l.B].Type == topology.NVS:
			switched = append(switched, l)
		case placed && p.g.Nodes[l.B].Type == topology.GPU:
			direct = append(direct, l)
		}
	}
	count := map[[2]topology.NodeID]int{}
	for _, l := range p.g.NVLinks {
		key := [2]topology.NodeID{min(l.From, l.To), max(l.From, l.To)}
		if l.From < l.To || !slices.ContainsFunc(p.g.NVLinks, func(m topology.NVLink) bool { return m.From == l.To && m.To == l.From }) {
			count[key] += l.Count
		}
	}
	n := func(l topology.Link) int { return count[[2]topology.NodeID{min(l.A, l.B), max(l.A, l.B)}] }
	bottom := p.y
	if len(direct) > 0 {
		p.tracks(direct, n, bottom)
	}
	if len(switched) > 0 {
		p.y += 2 * rowGap
		whole := span{p.at[switched[0].A].from, p.at[switched[0].A].to}
		for _, l := range switched {
			s := p.at[l.A]
			whole = span{min(whole.from, s.from), max(whole.to, s.to)}
			p.line("linkNVL", l.GBs, fmt.Sprintf("NVL: %d links, %.4g GB/s", n(l), l.GBs), s.middle(), bottom, s.middle(), p.y)
			p.text("small halo", s.middle(), bottom+rowGap+4, "middle", "NV"+strconv.Itoa(n(l)))
		}
		p.text("row", 10, p.y+band/2+4, "start", "NVLink")
		p.rect("nvs", whole.from+6, p.y, whole.to-whole.from-12, band, "NVSwitches")
		p.text("", whole.middle(), p.y+band/2+4, "middle", "NVSwitch")
		p.y += band
	}
}

// tracks draws every bundle as a line down from the one GPU, along its track, and up to the other. At a GPU the lines stand
// side by side; short ones are on the upper tracks, and bundles that are not above each other share one.
func (p *picture) tracks(direct []topology.Link, n func(topology.Link) int, bottom float64) {
	reach := func(l topology.Link) span {
		a, b := p.at[l.A].middle(), p.at[l.B].middle()
		return span{min(a, b), max(a, b)}
	}
	slices.SortStableFunc(direct, func(a, b topology.Link) int {
		x, y := reach(a), reach(b)
		return cmp.Compare(x.to-x.from, y.to-y.from)
	})
	var used [][]span
	track := make([]int, len(direct))
	for i, l := range direct {
		s := reach(l)
		s = span{s.from - box/2, s.to + box/2}
		for track[i] < len(used) && slices.ContainsFunc(used[track[i]], func(u span) bool { return s.from < u.to && u.from < s.to }) {
			track[i]++
		}
		if track[i] == len(used) {
			used = append(used, nil)
		}
		used[track[i]] = append(used[track[i]], s)
	}
	// Where each line leaves each GPU: those to the left on the left.
	type end struct {
		link  int
		other float64
	}
	ends := map[topology.NodeID][]end{}
	for i, l := range direct {
		ends[l.A] = append(ends[l.A], end{i, p.at[l.B].middle()})
		ends[l.B] = append(ends[l.B], end{i, p.at[l.A].middle()})
	}
	x := func(id topology.NodeID, link int) float64 {
		e := ends[id]
		slices.SortStableFunc(e, func(a, b end) int { return cmp.Compare(a.other, b.other) })
		k := slices.IndexFunc(e, func(e end) bool { return e.link == link })
		return p.at[id].middle() + (float64(k)-float64(len(e)-1)/2)*min(14, float64(box-12)/float64(len(e)))
	}
	p.text("row", 10, bottom+trackHigh*2, "start", "NVLink")
	type label struct {
		x, y float64
		s    string
	}
	var labels []label
	for i, l := range direct {
		a, b := x(l.A, i), x(l.B, i)
		y := bottom + 12 + trackHigh*float64(track[i]+1)
		p.line("linkNVL", l.GBs, fmt.Sprintf("NVL: %s to %s, %d links, %.4g GB/s", p.g.Name(l.A), p.g.Name(l.B), n(l), l.GBs), a, bottom, a, y, b, y, b, bottom)
		labels = append(labels, label{(a + b) / 2, y + 4, "NV" + strconv.Itoa(n(l))})
	}
	for _, l := range labels { // over all lines
		p.text("small halo", l.x, l.y, "middle", l.s)
	}
	p.y = bottom + 12 + trackHigh*float64(len(used)+1)
}

// rings draws the distinct rings of a job on this host: a row each, with every GPU's place in the order.
func (p *picture) rings() {
	rings, err := topology.Rings([]topology.Local{topology.AllOf(p.g)}, 0)
	if err != nil || len(p.g.GPUs()) < 2 {
		return
	}
	p.y += rowGap
	gpus := p.g.GPUs()
	var order [][]int
	channels := map[string][]int{}
	for c, r := range rings {
		key := fmt.Sprint(r.Ranks)
		if channels[key] == nil {
			order = append(order, r.Ranks)
		}
		channels[key] = append(channels[key], c)
	}
	for i, ranks := range order {
		if i == maxRings {
			p.text("row", 10, p.y+15, "start", fmt.Sprintf("%d more rings", len(order)-maxRings))
			p.y += 24
			break
		}
		p.text("row", 10, p.y+15, "start", fit("channels "+ranges(channels[fmt.Sprint(ranks)]), 18))
		for k, rank := range ranks {
			x := p.at[gpus[rank]].middle()
			next := gpus[ranks[(k+1)%len(ranks)]]
			fmt.Fprintf(&p.b, `<circle class="step" cx="%.1f" cy="%.1f" r="11"><title>then %s</title></circle>`+"\n", x, p.y+11, p.g.Name(next))
			p.text("", x, p.y+15, "middle", strconv.Itoa(k+1))
		}
		p.y += 28
	}
}

func (p *picture) legend() {
	p.y += rowGap
	x, y := 10.0, p.y
	item := func(width float64, label string, mark func(x, y float64)) {
		if x+width > p.width-10 {
			x, y = 10, y+24
		}
		mark(x, y)
		p.text("small", x+38, y+4, "start", label)
		x += width
	}
	line := func(class string) func(x, y float64) {
		return func(x, y float64) { p.line(class, 50, "", x, y, x+30, y) }
	}
	square := func(class string) func(x, y float64) {
		return func(x, y float64) { p.rect(class, x+4, y-8, 24, 16, "") }
	}
	item(110, "PCIe", line("linkPCI"))
	item(110, "NVLink", line("linkNVL"))
	item(215, "between NUMA nodes (SYS)", line("linkSYS"))
	item(130, "NUMA node", square("cpu"))
	item(130, "PCIe switch", square("pci"))
	item(200, "GPU → its network port", square("gpu"))
	item(130, "network card", square("net"))
	item(150, "a card that is down", square("net down"))
	y += 22
	p.text("small", 10, y+4, "start", strings.Join([]string{
		"Thin to thick: under 10, 30, 100 GB/s, and more.", "NV#: number of NVLinks.",
	}, "  "))
	y += 18
	p.text("small", 10, y+4, "start", "Numbers of a channel: the order in which its ring passes the GPUs; its tree is the chain in that order.")
	p.y = y + 20
}
