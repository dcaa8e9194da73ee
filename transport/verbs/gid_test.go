package verbs

import (
	"bufio"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// gids makes a table: "index type address [netdev]", of port 1.
func gids(t *testing.T, lines ...string) (table []ibv.GIDEntry) {
	for _, line := range lines {
		f := strings.Fields(line)
		index, err := strconv.Atoi(f[0])
		require.NoError(t, err)
		e := ibv.GIDEntry{Index: index, Port: 1, Type: map[string]ibv.GIDType{"v1": ibv.GIDRoCE1, "v2": ibv.GIDRoCE2, "ib": ibv.GIDInfiniBand}[f[1]]}
		if f[2] != "-" {
			e.GID = netip.MustParseAddr(f[2]).As16()
		}
		if len(f) > 3 {
			e.NetDev, err = strconv.Atoi(f[3])
			require.NoError(t, err)
		}
		table = append(table, e)
	}
	return table
}

func ethernet() ibv.Port { return ibv.Port{Number: 1, LinkLayer: ibv.Ethernet, State: ibv.PortActive} }

func TestUC42_GIDChoice(t *testing.T) {
	for _, c := range []struct {
		name   string
		netDev int
		table  []string
		want   int
	}{
		{"v2 and IPv4", 0, []string{"0 v1 fe80::1", "1 v2 fe80::1", "2 v1 192.0.2.1", "3 v2 192.0.2.1"}, 3},
		{"first ones empty", 0, []string{"0 v2 -", "4 v1 fe80::1", "5 v2 fe80::1", "6 v1 192.0.2.1", "7 v2 192.0.2.1"}, 7},
		{"two link-locals", 0, []string{"1 v2 fe80::1", "3 v2 fe80::2", "4 v1 192.0.2.1", "5 v2 192.0.2.1"}, 5},
		{"IPv6 that is routed", 0, []string{"1 v2 fe80::1", "3 v2 fd93::6"}, 3},
		{"link-local alone", 0, []string{"0 v1 fe80::1", "1 v2 fe80::1"}, 1},
		{"v1 alone", 0, []string{"0 v1 fe80::1", "2 v1 192.0.2.1"}, 2},
		{"order of the table does not matter", 0, []string{"9 v2 192.0.2.2", "3 v2 192.0.2.1"}, 3},
		{"the interface", 7, []string{"3 v2 192.0.2.1 5", "5 v2 198.51.100.1 7"}, 5},
		{"the interface, IPv6 there", 7, []string{"3 v2 192.0.2.1 5", "5 v2 fd93::1 7"}, 5},
		{"not v1 for the interface's sake", 7, []string{"3 v2 192.0.2.1 5", "5 v1 192.0.2.9 7"}, 3},
		{"no such interface", 9, []string{"3 v2 192.0.2.1 5", "5 v2 198.51.100.1 7"}, 3},
	} {
		got, err := gidChoice{device: "mlx5_0", port: ethernet(), table: gids(t, c.table...), netDev: c.netDev}.choose()
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got.Index, c.name)
	}
	infiniBand := ibv.Port{Number: 1, LinkLayer: ibv.InfiniBand}
	got, err := gidChoice{device: "mlx5_0", port: infiniBand, table: gids(t, "1 ib fd00::2", "0 ib fe80::1")}.choose()
	require.NoError(t, err)
	require.Zero(t, got.Index)
}

// TestUC42_GIDChoiceFromFixtures takes the tables of real machines, which end in "expect: index N".
func TestUC42_GIDChoiceFromFixtures(t *testing.T) {
	dir := os.Getenv("GCCL_FIXTURES")
	if dir == "" {
		t.Skip("GCCL_FIXTURES is not set: no recorded machines here")
	}
	files, err := filepath.Glob(filepath.Join(dir, "gid", "*.tsv"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		f, err := os.Open(file)
		require.NoError(t, err)
		tables := map[string][]ibv.GIDEntry{}
		want := -1
		for lines := bufio.NewScanner(f); lines.Scan(); {
			line := lines.Text()
			if _, expected, ok := strings.Cut(line, "expect: index "); ok {
				want, err = strconv.Atoi(strings.TrimRight(strings.Fields(expected)[0], ","))
				require.NoError(t, err)
			}
			columns := strings.Split(line, "\t")
			if strings.HasPrefix(line, "#") || len(columns) < 6 || columns[4] == "EINVAL" {
				continue
			}
			index, err := strconv.Atoi(columns[2])
			require.NoError(t, err)
			kind := ibv.GIDRoCE1
			if columns[4] == "RoCE v2" {
				kind = ibv.GIDRoCE2
			}
			tables[columns[0]] = append(tables[columns[0]], ibv.GIDEntry{GID: netip.MustParseAddr(columns[3]).As16(), Index: index, Port: 1, Type: kind})
		}
		require.NoError(t, f.Close())
		require.NotEmpty(t, tables, file)
		for device, table := range tables {
			got, err := gidChoice{device: device, port: ethernet(), table: table}.choose()
			require.NoError(t, err)
			require.Equal(t, want, got.Index, "%s of %s", device, file)
		}
	}
}

// TestUC44_EmptyGIDIsNamed: an index that the user forces and that is empty is an error with the port, the index and a better one.
func TestUC44_EmptyGIDIsNamed(t *testing.T) {
	zero, three := 0, 3
	c := gidChoice{device: "mlx5_0", port: ethernet(), table: gids(t, "0 v1 -", "2 v1 192.0.2.1", "3 v2 192.0.2.1"), forced: &zero}
	_, err := c.choose()
	require.ErrorContains(t, err, "mlx5_0 port 1 GID index 0 is empty; try 3")
	c.forced = &three
	got, err := c.choose()
	require.NoError(t, err)
	require.Equal(t, 3, got.Index)
	c.table, c.forced = nil, nil
	_, err = c.choose()
	require.ErrorContains(t, err, "mlx5_0 port 1 has no GID")
}
