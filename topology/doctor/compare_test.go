package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestCompareFindsWhatDiffers(t *testing.T) {
	ours := report(sound())
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, *Report)
		level Level
		id    string
		of    string
		says  string
	}{
		{"layer", spoilTree(change("mlx5_0/ports/1/link_layer", "InfiniBand")), Fail, "against_rdma_link", "mlx5_0 port 1", "Ethernet here, InfiniBand there"},
		{"rate", spoilTree(change("mlx5_0/ports/1/rate", "100 Gb/sec (2X HDR)")), Warn, "against_rdma_link", "mlx5_0 port 1", "200 Gb/sec (2X NDR) here, 100 Gb/sec (2X HDR) there"},
		{"port down", spoilTree(change("mlx5_1/ports/1/state", "1: DOWN")), Warn, "against_rdma_link", "mlx5_1 port 1", "no such port that is usable"},
		{"GID family", spoilTree(change("mlx5_0/ports/1/gids/1", "2001:db8::1")), Fail, "against_gid", "mlx5_0 port 1", "index 1, RoCE v2, 192.0.2.1 here, index 1, RoCE v2, 2001:db8::1 there"},
		{"no GID", spoilTree(func(t *testing.T, tree topologytest.Tree) {
			change("mlx5_0/ports/1/gids/0", "::")(t, tree)
			change("mlx5_0/ports/1/gids/1", "::")(t, tree)
		}), Fail, "against_gid", "mlx5_0 port 1", "on the other host: no usable GID: mlx5_0 port 1 has none of RoCE v2"},
		{"kernel", spoilTree(put("proc/sys/kernel", "osrelease", "5.4.0")), Warn, "against_versions", "", "kernel: 6.8.0-50-generic here, 5.4.0 there"},
		{"firmware", spoilTree(change("mlx5_0/fw_ver", "28.0.0")), Warn, "against_versions", "", "firmware of mlx5_0: 28.1.2 here, 28.0.0 there"},
		{"driver", spoilTree(put("sys/module/nvidia", "version", "570.1")), Warn, "against_versions", "", "module nvidia: 580.1 here, 570.1 there"},
		{"GPUs", func(_ *testing.T, r *Report) { r.Host.GPUs = topology.Known(driven()[:2]) }, Warn, "against_gpu", "", "4 × H200, compute capability 9.0, 140 GiB here, 2 × H200"},
		{"no RDMA", func(_ *testing.T, r *Report) { r.Host.RDMA = topology.Unknown[[]topology.RDMAFacts]("hidden") }, Unknown, "against_rdma_link", "", "hidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs := report(sound())
			c.spoil(t, theirs)
			findings := Compare(ours, theirs, Wants{})
			var devices []string
			if c.of != "" {
				devices = []string{c.of}
			}
			require.Contains(t, only(t, findings, c.level, c.id, devices...).Seen, c.says)
			// Seen from the other side it is as bad.
			require.Equal(t, c.level, of(Compare(theirs, ours, Wants{}), c.id, devices...)[0].Level)
		})
	}
}

func TestCompareSubnets(t *testing.T) {
	cabled := func(first, second string) *Report {
		tree := sound()
		set(t, tree, "mlx5_0/ports/1/gids/1", first)
		set(t, tree, "mlx5_1/ports/1/gids/1", second)
		return report(tree)
	}
	ours := cabled("2001:db8:0:1::1", "2001:db8:0:2::1")
	require.Empty(t, of(Compare(ours, cabled("2001:db8:0:1::2", "2001:db8:0:2::2"), Wants{}), "against_subnet"))
	crossed := Compare(ours, cabled("2001:db8:0:2::2", "2001:db8:0:1::2"), Wants{})
	require.Equal(t, "2001:db8:0:1::/64 here, 2001:db8:0:2::/64 there, where mlx5_1 port 1 is in 2001:db8:0:1::/64", only(t, crossed, Warn, "against_subnet", "mlx5_0 port 1").Seen)
	only(t, crossed, Warn, "against_subnet", "mlx5_1 port 1")
	routed := Compare(ours, cabled("2001:db8:0:3::2", "2001:db8:0:4::2"), Wants{})
	require.Equal(t, "2001:db8:0:1::/64 here, 2001:db8:0:3::/64 there", only(t, routed, Info, "against_subnet", "mlx5_0 port 1").Seen)
}

func spoilTree(spoil func(*testing.T, topologytest.Tree)) func(*testing.T, *Report) {
	return func(t *testing.T, r *Report) {
		tree := sound()
		spoil(t, tree)
		*r = *report(tree)
	}
}
