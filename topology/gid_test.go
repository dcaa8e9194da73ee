package topology

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// gidHost makes a recorded GID table a host, and returns the right index, which the file's last line says.
func gidHost(t *testing.T, file string) (topologytest.Tree, int) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	ports := map[string]string{}
	want := -1
	for line := range strings.Lines(string(read(t, file))) {
		if m := regexp.MustCompile(`expect: index (\d+)`).FindStringSubmatch(line); m != nil {
			want, _ = strconv.Atoi(m[1])
		}
		col := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(col) < 6 {
			continue
		}
		port, ok := ports[col[0]]
		if !ok {
			dir := tr.Device(0, "0x020000", "0x15b3", "0000:0"+strconv.Itoa(len(ports)+1)+":00.0")
			port = tr.RDMA(dir, col[0], "Ethernet", "4: ACTIVE", "100 Gb/sec (2X HDR)")
			tr.NetDevice(dir, col[5], "up", "100000", "1500")
			ports[col[0]] = port
		}
		index, err := strconv.Atoi(col[2])
		require.NoError(t, err)
		tr.GID(port, index, col[3], col[4], col[5])
	}
	return tr, want
}

func TestUC42_GIDTables(t *testing.T) {
	wants := map[string]int{"a-two-ports-v4v2-at-3.tsv": 3, "b-macvlan-pod-first4-empty.tsv": 7, "d-two-linklocals-v4-at-4.tsv": 5, "e-ipv6-only-ula.tsv": 3}
	for _, file := range files(t, "gid/*.tsv") {
		tr, said := gidHost(t, file)
		require.Equal(t, wants[filepath.Base(file)], said, file)
		h, _ := discover(t, tr)
		require.NotEmpty(t, h.RDMA.Or(nil), file)
		for _, d := range h.RDMA.Or(nil) {
			c, err := ChooseGID(d.Ports[0], GIDQuery{})
			require.NoError(t, err, file)
			require.Equal(t, said, c.GID.Index, "%s: %v", file, c.Reasons)
			require.Contains(t, c.Reasons[0], "RoCE v2")
			require.False(t, c.GID.Addr.IsLinkLocalUnicast())
		}
	}
}

func TestUC42_GIDWishes(t *testing.T) {
	tr, _ := gidHost(t, "testdata/gid/d-two-linklocals-v4-at-4.tsv")
	tr.GID("sys/devices/pci0000:01/0000:01:00.0/infiniband/mlx5_0/ports/1", 6, "::ffff:198.51.100.9", "RoCE v2", "vlan7")
	tr.GID("sys/devices/pci0000:01/0000:01:00.0/infiniband/mlx5_0/ports/1", 7, "2001:db8::9", "RoCE v2", "ens1f0")
	h, _ := discover(t, tr)
	p := h.RDMA.Or(nil)[0].Ports[0]
	index := func(q GIDQuery) int {
		c, err := ChooseGID(p, q)
		require.NoError(t, err)
		return c.GID.Index
	}
	require.Equal(t, 5, index(GIDQuery{}))
	require.Equal(t, 7, index(GIDQuery{IPv6: true}))
	require.Equal(t, 4, index(GIDQuery{V1: true}))
	require.Equal(t, 6, index(GIDQuery{Range: netip.MustParsePrefix("198.51.100.0/24")}))
	require.Equal(t, 6, index(GIDQuery{Nets: []string{"lo", "vlan7"}}), "the right network device")
	_, err := ChooseGID(p, GIDQuery{Range: netip.MustParsePrefix("203.0.113.0/24")})
	require.ErrorIs(t, err, ErrNoGID)
	require.ErrorContains(t, err, "none of RoCE v2 in 203.0.113.0/24")
	_, err = ChooseGID(p, GIDQuery{Nets: []string{"lo"}})
	require.ErrorContains(t, err, "belongs to ens1f0, which this process doesn't see")
}

func TestUC42_ThePortsOwnNetDeviceFirst(t *testing.T) {
	p := PortFacts{
		Device: "mlx5_0", Number: 1, State: Known("ACTIVE"), Layer: Known("Ethernet"), NetDevice: Known("eth0"),
		GIDs: []GID{
			{1, netip.MustParseAddr("::ffff:198.51.100.1"), Known("RoCE v2"), Known("eth0.7")},
			{2, netip.MustParseAddr("::ffff:192.0.2.1"), Known("RoCE v2"), Known("eth0")},
			{3, netip.MustParseAddr("::ffff:192.0.2.2"), Known("RoCE v2"), Known("eth0")},
		},
	}
	c, err := ChooseGID(p, GIDQuery{})
	require.NoError(t, err)
	require.Equal(t, 2, c.GID.Index)
	p.GIDs = p.GIDs[:1]
	c, err = ChooseGID(p, GIDQuery{})
	require.NoError(t, err)
	require.Equal(t, 1, c.GID.Index, "a VLAN's serves where there is no other")
}

func TestUC44_ForcedGID(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	dir := tr.Device(0, "0x020000", "0x15b3", "0000:01:00.0")
	port := tr.RDMA(dir, "mlx5_0", "Ethernet", "4: ACTIVE", "100 Gb/sec")
	for i := range 16 {
		tr.GID(port, i, "0000:0000:0000:0000:0000:0000:0000:0000", "EINVAL", "")
	}
	tr.GID(port, 1, "fe80::1", "RoCE v2", "eth0")
	tr.GID(port, 3, "::ffff:192.0.2.7", "RoCE v2", "eth0")
	delete(tr.Fail, "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1")
	delete(tr.Fail, "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3")
	h, _ := discover(t, tr)
	p := h.RDMA.Or(nil)[0].Ports[0]
	force := func(i int) (GIDChoice, error) { return ChooseGID(p, GIDQuery{Forced: &i}) }

	_, err := force(0)
	require.ErrorIs(t, err, ErrNoGID)
	require.ErrorContains(t, err, "mlx5_0 port 1 GID index 0 is empty; try 3")
	_, err = force(16)
	require.ErrorContains(t, err, "GID index 16 is outside its table of 16; try 3")
	_, err = force(-1)
	require.ErrorContains(t, err, "outside its table")
	c, err := force(3)
	require.NoError(t, err)
	require.Len(t, c.Reasons, 1)
	c, err = force(1)
	require.NoError(t, err)
	require.Contains(t, c.Reasons[1], "link-local")
}

// TestUC44_Ports makes each row of ports.tsv a device.
func TestUC44_Ports(t *testing.T) {
	rows := 0
	for line := range strings.Lines(string(read(t, "testdata/ports.tsv"))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		col := strings.Split(strings.TrimSpace(line), "\t")
		tr := topologytest.NewTree()
		tr.CPUs(2, 1)
		dir := tr.Device(0, "0x020000", col[7], "0000:01:00.0")
		layer := strings.TrimPrefix(col[2], "-")
		port := tr.RDMA(dir, col[1], layer, "4: "+col[3], "100 Gb/sec")
		if layer == "InfiniBand" {
			tr.Put(port, "gids/0", "fe80::200:0:0:1")
		} else {
			tr.GID(port, 0, "fe80::1", "RoCE v2", col[8])
			tr.GID(port, 1, "::ffff:192.0.2.8", "RoCE v2", col[8])
		}
		mtu := map[string]string{"1024": "1500", "4096": "9000"}[col[4]]
		tr.NetDevice(dir, col[8], strings.ToLower(col[9]), "100000", mtu)
		h, g := discover(t, tr)
		use, dropped := ChoosePorts(h.RDMA.Or(nil), Filter{})
		if strings.HasPrefix(col[10], "skip") {
			require.Empty(t, use, line)
			require.Contains(t, dropped[0], "port 1 is DOWN", line)
			require.NotEmpty(t, g.Nodes[g.Nets()[0]].Net.Down)
			_, err := ChooseGID(h.RDMA.Or(nil)[0].Ports[0], GIDQuery{})
			require.ErrorContains(t, err, col[1]+" port 1 is DOWN")
			continue
		}
		require.Len(t, use, 1, line)
		require.Empty(t, g.Nodes[g.Nets()[0]].Net.Down, line)
		c, err := ChooseGID(use[0], GIDQuery{})
		require.NoError(t, err, line)
		if layer == "InfiniBand" {
			require.Equal(t, 0, c.GID.Index)
			require.False(t, use[0].MTU.known)
			require.Contains(t, use[0].MTU.Why(), "libibverbs")
			continue
		}
		require.Equal(t, 1, c.GID.Index)
		require.Equal(t, col[4], use[0].MTU.String(), line)
	}
	require.Equal(t, 8, rows)
}

func TestUC45_ActiveMTUOfRoCE(t *testing.T) {
	for mtu, want := range map[string]string{
		"9000": "4096", "4200": "4096", "4192": "4096", "4191": "2048", "4096": "2048", "1500": "1024", "1119": "512", "352": "256",
		"351": "unknown: the MTU 351 of eth0 is too small for RoCE",
	} {
		tr := topologytest.NewTree()
		tr.CPUs(2, 1)
		dir := tr.Device(0, "0x020000", "0x15b3", "0000:01:00.0")
		tr.GID(tr.RDMA(dir, "mlx5_0", "Ethernet", "4: ACTIVE", "100 Gb/sec"), 0, "fe80::1", "RoCE v2", "eth0")
		tr.NetDevice(dir, "eth0", "up", "100000", mtu)
		h, _ := discover(t, tr)
		require.Equal(t, want, h.RDMA.Or(nil)[0].Ports[0].MTU.String())
	}
}

func TestUC45_PathMTU(t *testing.T) {
	require.Equal(t, Known(1024), PathMTU(Known(4096), Known(1024)))
	require.Equal(t, Known(1024), PathMTU(Known(1024), Known(4096)))
	require.Equal(t, Known(2048), PathMTU(Unknown[int]("x"), Known(2048)))
	require.Equal(t, Known(2048), PathMTU(Known(2048), Unknown[int]("x")))
	require.Equal(t, Unknown[int]("x"), PathMTU(Unknown[int]("x"), Unknown[int]("y")))
}

func TestUC47_HCAFilters(t *testing.T) {
	for text, token := range map[string]string{
		"mlx5_1:-1": `"-1"`, "mlx5_1:99999999999999999999": `"99999999999999999999"`, "mlx5_1:0": `"0"`, "mlx5_1:": `""`, ":1": `""`, "=": "names no device", "^": "names no device",
	} {
		_, err := ParseFilter(text)
		require.ErrorContains(t, err, token, text)
	}
	var devices []RDMAFacts
	for _, name := range []string{"mlx5_1", "mlx5_10", "mlx5_11"} {
		up := PortFacts{Device: name, Number: 1, State: Known("ACTIVE")}
		second := up
		second.Number = 2
		devices = append(devices, RDMAFacts{Name: name, Ports: []PortFacts{up, second}})
	}
	for text, want := range map[string]int{"": 6, "mlx5_1": 6, "=mlx5_1": 2, "=mlx5_1:2": 1, "mlx5_1:2": 3, "^=mlx5_1": 4, "=mlx5_1:1,mlx5_10:2": 2} {
		f, err := ParseFilter(text)
		require.NoError(t, err)
		use, dropped := ChoosePorts(devices, f)
		require.Len(t, use, want, text)
		require.Len(t, dropped, 6-want, text)
	}
}

// TestLongGIDTable: of a table far longer than any card's all is read as far as a card's would go behind the last entry that is set.
func TestLongGIDTable(t *testing.T) {
	tr := topologytest.NewTree()
	tr.CPUs(2, 1)
	port := tr.RDMA(tr.Device(0, "0x020000", "0x15b3", "0000:01:00.0"), "rxe0", "Ethernet", "4: ACTIVE", "100 Gb/sec")
	for i := range maxGIDs {
		tr.Put(port, fmt.Sprint("gids/", i), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	for _, i := range []int{0, gapGIDs, 2*gapGIDs + 2} { // and one more than a card has behind that
		tr.GID(port, i, "::ffff:192.0.2.8", "RoCE v2", "eth0")
	}
	h, _ := discover(t, tr)
	p := h.RDMA.Or(nil)[0].Ports[0]
	require.Equal(t, maxGIDs, p.TableSize)
	var set []int
	for _, g := range p.GIDs {
		set = append(set, g.Index)
	}
	require.Equal(t, []int{0, gapGIDs}, set)
}
