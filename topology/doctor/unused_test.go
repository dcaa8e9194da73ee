package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

// soft is a host whose one RDMA device is software that nobody can open, with no GID that serves and a low limit of locked memory.
func soft() topologytest.Tree {
	tree := bare()
	tree.GID(tree.RDMA("sys/devices/virtual", "rxe0", "Ethernet", "4: ACTIVE", "100 Gb/sec (2X HDR)"), 0, "::ffff:192.0.2.1", "IB/RoCE v1", "eth0")
	tree.Put("sys/class/infiniband_verbs", "abi_version", "6")
	tree.Put("dev/infiniband", "rdma_cm", "")
	return tree
}

// broken is the sound host with its RDMA spoilt in each way that is a failure or a warning.
func broken(t *testing.T) topologytest.Tree {
	tree := sound()
	tree.Put("proc/self", "limits", limits("65536", "65536", "1024", "4096"))
	for _, spoil := range []func(*testing.T, topologytest.Tree){
		remove("dev/infiniband/uverbs0"), change("mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1"), change("mlx5_0/ports/1/gid_attrs/types/1", "IB/RoCE v1"), change("net/eth0/mtu", "1500"),
		change("0000:15:00.0/current_link_width", "8"), change("mlx5_0/ports/1/hw_counters/out_of_sequence", "17"), put("proc", "modules", "xfs 1 0 - Live 0x0"),
	} {
		spoil(t, tree)
	}
	return tree
}

// TestWhatIsNotUsedMayBeBroken: RDMA that jobs don't use, being switched off, filtered out, or software that nobody named, fails nothing.
func TestWhatIsNotUsedMayBeBroken(t *testing.T) {
	ids := []string{"memlock", "rdma_access", "rdma_gid"}
	off, only0, only1 := Wants{NoRDMA: "not used with GCCL_RDMA=false"}, Wants{RDMA: filter("=mlx5_0")}, Wants{RDMA: filter("=mlx5_1")}
	for _, c := range []struct {
		name  string
		tree  topologytest.Tree
		wants Wants
		fails []string
		why   string // of mlx5_0 or rxe0, where it is not used
	}{
		{"used", broken(t), Wants{}, ids, ""},
		{"named", broken(t), only0, ids, ""},
		{"off", broken(t), off, nil, "not used with GCCL_RDMA=false"},
		{"filtered", broken(t), only1, []string{"memlock"}, "not used: the filter =mlx5_1 does not take it"},
		{"software", soft(), Wants{}, nil, "not used: devices of software are where GCCL_RDMA_DEVICE names them"},
		{"software by name", soft(), Wants{RDMA: filter("rxe0")}, ids, ""},
		{"software by transport", soft(), Wants{Software: true}, ids, ""},
	} {
		gpus := driven()
		for i := range gpus {
			gpus[i].DMABuf = topology.Known(false)
		}
		h, s := look(c.tree, topology.Known(gpus))
		findings := Examine(h, s, c.wants)
		var fails []string
		for _, f := range findings {
			if f.Level == Fail {
				fails = append(fails, f.ID)
			}
		}
		require.ElementsMatch(t, c.fails, fails, "%s: %+v", c.name, findings)
		if c.why == "" {
			continue
		}
		for _, f := range findings {
			require.False(t, (f.Of == "mlx5_0" || f.Of == "mlx5_0 port 1" || f.ID == "gpu_direct" && c.wants.NoRDMA != "") && (f.Level == Warn || f.Level == Fail), "%s: %+v", c.name, f)
		}
		access := of(findings, "rdma_access", "mlx5_0", "rxe0")[0]
		require.Equal(t, Info, access.Level)
		require.Contains(t, access.Seen, c.why, c.name)
		if c.fails == nil {
			require.Contains(t, only(t, findings, Info, "memlock").Seen, "memlock 64 KiB; it would matter with RDMA, and RDMA is "+c.why)
		}
	}
	theirs := report(sound())
	require.Zero(t, Count(Compare(report(broken(t)), theirs, off), Fail))
	require.NotZero(t, Count(Compare(report(broken(t)), theirs, Wants{}), Fail))
}

// TestPlanWithoutRDMA: what RDMA would pin or take of a device bounds no job that does not use it.
func TestPlanWithoutRDMA(t *testing.T) {
	for _, c := range []struct {
		tree  topologytest.Tree
		wants Wants
		why   string
	}{
		{bare(), Wants{}, "there is no RDMA device here"},
		{soft(), Wants{}, "RDMA is not used: devices of software are where GCCL_RDMA_DEVICE names them"},
		{broken(t), Wants{NoRDMA: "not used with GCCL_TRANSPORT=tcp"}, "RDMA is not used with GCCL_TRANSPORT=tcp"},
		{topologytest.NewTree(), Wants{}, "whether there is an RDMA device is not known"},
	} {
		h, s := look(c.tree, noDriver)
		s.RDMALimits = map[string]topology.RDMALimits{"mlx5_0": {MaxQP: topology.Known(1), MaxCQE: topology.Known(1)}, "rxe0": {MaxQP: topology.Known(1)}}
		p, findings := Estimate(h, s, c.wants, DefaultDemand(5600), 5600)
		for _, id := range []string{"plan_pinned_bytes", "plan_qps", "plan_cq_entries"} {
			require.True(t, strings.HasPrefix(only(t, findings, Info, id).Seen, "none: "+c.why+"; with RDMA "), "%+v", findings)
		}
		require.Empty(t, p.Totals.Exceed)
	}
	h, s := look(broken(t), noDriver)
	_, findings := Estimate(h, s, Wants{}, DefaultDemand(5600), 5600)
	only(t, findings, Fail, "plan_pinned_bytes")
}
