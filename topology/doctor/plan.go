package doctor

import (
	"fmt"
	"math"
	"slices"

	"github.com/gccl-project/gccl/topology"
)

// Plan is not what a schedule is compiled to, but what a rank of a job takes at most, when it talks to all others as in an all-to-all. Rings and trees take a few connections.
type Plan struct {
	World         int             `json:"world"`
	RanksOnDevice int             `json:"ranks_on_device"` // of one host, that share an RDMA device
	Demand        topology.Demand `json:"demand"`
	Totals        topology.Totals `json:"totals"`     // a rank's, against the device that has least
	OpenFiles     int64           `json:"open_files"` // of rank 0, which also serves the meeting; others take World+1 less
}

// MaxWorld is the most ranks that a job is planned for.
const MaxWorld = 1 << 24

// DefaultDemand is what a connection takes by default: one queue pair with 256 sends and 256 receives outstanding, and 4 MiB of
// buffers.
func DefaultDemand(world int) topology.Demand {
	return topology.Demand{Peers: world - 1, QPsPerPeer: 1, Entries: 512, Bytes: 4 << 20}
}

// filesOfRank are those besides connections: standard streams, the poller's, the listeners' and the links to neighbours in the
// bootstrap, and what libraries open.
const filesOfRank = 32

// Estimate adds up what ranks of a job take and compares it with a host's limits. World is from 1 to [MaxWorld].
func Estimate(h *topology.Host, s *System, w Wants, d topology.Demand, world int) (Plan, []Finding) {
	p := Plan{World: world, RanksOnDevice: ranksOnDevice(h), Demand: d}
	p.OpenFiles = filesOfRank + int64(d.Peers) + int64(world) + 1
	x := &exam{h: h, s: s, w: w}
	limits := x.leastLimits()
	p.Totals = d.Totals(limits, p.RanksOnDevice)
	qps := fmt.Sprintf("%d queue pairs per rank = (%d - 1) peers × %d", p.Totals.QPs, world, d.QPsPerPeer)
	if p.RanksOnDevice > 1 {
		qps += fmt.Sprintf("; × %d ranks on a device = %d", p.RanksOnDevice, p.Totals.QPs*int64(p.RanksOnDevice))
	}
	x.compare("plan_qps", "fewer per peer: GCCL_QP_COUNT=1", qps, p.Totals.QPs*int64(p.RanksOnDevice), limits.MaxQP, "max_qp")
	x.compare("plan_cq_entries", "GCCL_QP_COUNT=1", fmt.Sprintf("%d completion entries per rank = %d queue pairs × %d", p.Totals.CQEs, p.Totals.QPs, d.Entries),
		p.Totals.CQEs, limits.MaxCQE, "max_cqe")

	pinned := fmt.Sprintf("%s pinned per rank = (%d - 1) peers × %s", bytes(p.Totals.Bytes), world, bytes(d.Bytes))
	const lockFix = "ulimit -l unlimited / LimitMEMLOCK=infinity / --ulimit memlock=-1"
	memory, known := h.Memory.Most().Get()
	switch l, ok := s.Memlock.Get(); {
	case x.noRDMA() != "":
		x.add(Info, "plan_pinned_bytes", "", "", "none: %s; with RDMA %s", x.noRDMA(), pinned)
	case known && p.Totals.Bytes*int64(ranks(h, world)) > memory:
		x.add(Fail, "plan_pinned_bytes", "", "GCCL_QP_COUNT=1, or connect only to peers that are sent to", "%s; %s of memory for %d ranks", pinned, has(h.Memory), ranks(h, world))
	case s.IPCLock.Or(false) || ok && l.Soft == unlimited:
		x.add(OK, "plan_pinned_bytes", "", "", "%s; memlock is no limit", pinned)
	case !ok:
		x.unknown("plan_pinned_bytes", "", lockFix, pinned+"; memlock", s.Memlock.Why())
	case p.Totals.Bytes > l.Soft:
		x.add(Fail, "plan_pinned_bytes", "", lockFix, "%s, and memlock is %s", pinned, bytes(l.Soft))
	default:
		x.add(OK, "plan_pinned_bytes", "", "", "%s, memlock %s", pinned, bytes(l.Soft))
	}

	files := fmt.Sprintf("%d open files on rank 0 = %d + (%d - 1) peers over TCP + (%d + 1) while it serves the meeting", p.OpenFiles, filesOfRank, world, world)
	switch l, ok := s.OpenFiles.Get(); {
	case !ok:
		x.unknown("plan_open_files", "", filesFix, files+"; nofile", s.OpenFiles.Why())
	case p.OpenFiles > l.Hard:
		x.add(Fail, "plan_open_files", "", filesFix, "%s; nofile %s of need about %d", files, count(l.Hard), p.OpenFiles)
	default:
		x.add(OK, "plan_open_files", "", "", "%s; nofile %s", files, count(l.Hard))
	}
	return p, sorted(x.all)
}

// compare sets what is needed against a limit of RDMA devices.
func (x *exam) compare(id, fix, need string, n int64, most topology.Fact[int], name string) {
	limit, ok := most.Get()
	switch {
	case x.noRDMA() != "":
		x.add(Info, id, "", "", "none: %s; with RDMA %s", x.noRDMA(), need)
	case !ok:
		x.unknown(id, "", "ibv_devinfo -v | grep "+name, need+"; "+name, most.Why())
	case n > int64(limit):
		x.add(Fail, id, "", fix+", or connect only to peers that are sent to", "%s; the device has %s %d", need, name, limit)
	default:
		x.add(OK, id, "", "", "%s; the device has %s %d", need, name, limit)
	}
}

// ranksOnDevice is how many GPUs share the busiest port, as GPUs are paired with ports; 1 without GPUs.
func ranksOnDevice(h *topology.Host) int {
	g, most := h.Graph(), 1
	on := map[topology.NodeID]int{}
	for _, c := range g.PairNICs(g.GPUs()) {
		if c.Net != topology.NoNode {
			on[c.Net]++
			most = max(most, on[c.Net])
		}
	}
	return most
}

// ranks is how many run on a host: one for each GPU.
func ranks(h *topology.Host, world int) int { return max(1, min(len(h.Graph().GPUs()), world)) }

// has says who bounds the memory of processes, and by how much.
func has(m topology.MemoryFacts) string {
	most := m.Most().Or(0)
	if most == m.Limit.Or(0) {
		return "the process's control group, or one above it, allows " + bytes(most)
	}
	return "the host has " + bytes(most)
}

// leastLimits are the smallest of the limits of all devices that are used.
func (x *exam) leastLimits() topology.RDMALimits {
	none := topology.Unknown[int]("libibverbs was not asked")
	l := topology.RDMALimits{MaxQP: none, MaxCQE: none, MaxMR: none}
	for _, d := range x.h.RDMA.Or(nil) {
		of, ok := x.s.RDMALimits[d.Name]
		if !ok || x.unused(d) != "" {
			continue
		}
		l.MaxQP, l.MaxCQE, l.MaxMR = least(l.MaxQP, of.MaxQP), least(l.MaxCQE, of.MaxCQE), least(l.MaxMR, of.MaxMR)
	}
	return l
}

func least(a, b topology.Fact[int]) topology.Fact[int] {
	n := slices.Min([]int{a.Or(math.MaxInt), b.Or(math.MaxInt)})
	if n == math.MaxInt {
		return b // which says why
	}
	return topology.Known(n)
}
