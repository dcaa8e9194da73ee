package topology

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// twins are of a host whose cores have two CPUs each, n and n + half of all, as Linux numbers them.
func twins(tr topologytest.Tree, cpus int) {
	for n := range cpus {
		core := n % (cpus / 2)
		tr.Put(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index0", n), "level", "1", "type", "Data", "size", "48K",
			"shared_cpu_list", fmt.Sprintf("%d,%d", core, core+cpus/2))
	}
}

func TestUC39_Share(t *testing.T) {
	share := func(tr topologytest.Tree, allowed string, ranks int) (all []string) {
		tr.Put("proc/self", "status", "Cpus_allowed_list:\t"+allowed)
		h, _ := discover(t, tr)
		for _, p := range h.Share(ranks, nil) {
			require.NotEmpty(t, p.Reasons)
			all = append(all, p.CPUs.String())
		}
		return all
	}
	plain := func(cpus, nodes int) topologytest.Tree {
		tr := topologytest.NewTree()
		tr.CPUs(cpus, nodes)
		return tr
	}
	require.Equal(t, []string{"0", "1"}, share(plain(2, 1), "0-1", 2))
	require.Equal(t, []string{"0-1"}, share(plain(2, 1), "0-1", 1))
	require.Equal(t, []string{"0-1", "0-1", "0-1"}, share(plain(2, 1), "0-1", 3), "too few: shared")
	require.Equal(t, []string{"1", "1"}, share(plain(2, 1), "1", 2))
	require.Equal(t, []string{"0-1", "2-3", "4-5", "6-7"}, share(plain(8, 2), "0-7", 4))
	require.Equal(t, []string{"0-3", "4-7"}, share(plain(8, 2), "0-7", 2))
	require.Equal(t, []string{"1", "2-3", "6-7"}, share(plain(8, 2), "1-3,6-7", 3), "what is allowed, node by node")
	require.Equal(t, []string{"5-7"}, share(plain(8, 2), "5-7", 1))

	smt := plain(8, 1)
	twins(smt, 8)
	require.Equal(t, []string{"0-1,4-5", "2-3,6-7"}, share(smt, "0-7", 2), "whole cores")
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, share(smt, "0-7", 8), "cores are too few, CPUs are not")
	require.Equal(t, []string{"0,4", "1"}, share(smt, "0-1,4", 2))

	// GPUs 0 and 1 are on socket 0, 2 and 3 on socket 1; CPUs 0-7 and 8-15.
	require.Equal(t, []string{"0-3", "4-7", "8-11", "12-15"}, share(topologytest.TwoSockets(), "0-15", 4))
	require.Equal(t, []string{"0-7"}, share(topologytest.TwoSockets(), "0-15", 1))
	require.Equal(t, []string{"0-1", "2-3"}, share(topologytest.TwoSockets(), "0-3", 2))
	require.Equal(t, []string{"0-1", "2-3", "0-1", "2-3"}, share(topologytest.TwoSockets(), "0-3", 4), "no CPU of socket 1: any")

	h, _ := discover(t, topologytest.NewTree())
	for _, p := range h.Share(2, nil) {
		require.Empty(t, p.CPUs)
		require.Contains(t, p.Reasons[0], "not known")
	}
	require.Empty(t, h.Share(0, nil))
	require.Empty(t, h.Share(-1, nil))
}
