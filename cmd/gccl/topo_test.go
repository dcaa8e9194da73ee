package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestTopo(t *testing.T) {
	data := filepath.Join("..", "..", "topology", "testdata")
	matrix := filepath.Join(data, "topo-matrix", "h100x8-9nic-reversed.txt")

	out := command(t, nil, "topo")
	require.Equal(t, 0, out.code, out.stderr)
	require.Contains(t, out.stdout, "Topology\n")

	out = command(t, nil, "topo", "--format", "json")
	require.Equal(t, 0, out.code, out.stderr)
	require.True(t, json.Valid([]byte(out.stdout)))

	out = command(t, nil, "topo", "--load", matrix, "--format", "xml")
	require.Equal(t, 0, out.code, out.stderr)
	file := filepath.Join(t.TempDir(), "host.xml")
	require.NoError(t, os.WriteFile(file, []byte(out.stdout), 0o600))
	out = command(t, nil, "topo", "--load", file)
	require.Equal(t, 0, out.code, out.stderr)
	require.Contains(t, out.stdout, "GPU7  mlx5_1")

	for says, args := range map[string][]string{
		`--format "pdf"; want one of html, json, matrix, svg, text, xml`: {"topo", "--format", "pdf"},
		"either discovered or loaded":                                    {"topo", "--root", "/", "--load", matrix},
		"unexpected argument":                                            {"topo", "x"},
	} {
		out = command(t, nil, args...)
		require.Equal(t, 2, out.code, args)
		require.Contains(t, out.stderr, says)
	}
	out = command(t, nil, "topo", "--load", filepath.Join(data, "hwloc.xml"))
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, "hwloc")
}

func TestTopoOfARecordedHost(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, topologytest.TwoSockets().MapFS))
	out := command(t, nil, "topo", "--root", dir)
	require.Equal(t, 0, out.code, out.stderr)
	for _, want := range []string{
		"GPU2  0000:a3:00.0  32 GT/s x16  ACS redirects at 0000:a2:00.0", "shm: ACS of the ports [0000:a2:00.0 0000:a2:01.0]",
		"GPU3  mlx5_1  CPUs 8-15", "mlx5_0 port 1  ACTIVE  Ethernet  200 Gb/sec (2X NDR)  MTU 4096", "index 1 of mlx5_0 port 1 is RoCE v2 at eth0",
	} {
		require.Contains(t, out.stdout, want)
	}
}

func TestUC65_TopoOfAHiddenSys(t *testing.T) {
	out := command(t, nil, "topo", "--root", hidden(t))
	require.Equal(t, 0, out.code, out.stderr)
	require.Contains(t, out.stdout, "GPU: none")
	require.Contains(t, out.stdout, "there is no /sys/bus/pci/devices")
}
