package topology

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// asText writes a topologytest.Tree as lines "name=text", with \n for line ends, and "name>where a link leads".
func asText(tr topologytest.Tree) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(tr.MapFS)) {
		f := tr.MapFS[name]
		sign := "="
		if f.Mode&fs.ModeSymlink != 0 {
			sign = ">"
		}
		b.WriteString(name + sign + strings.ReplaceAll(string(f.Data), "\n", `\n`) + "\n")
	}
	return b.String()
}

func fromText(text string) fs.FS {
	tr := topologytest.NewTree()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		at := strings.IndexAny(line, "=>")
		if at < 0 || !fs.ValidPath(line[:at]) || len(tr.MapFS) > 2000 {
			continue
		}
		f := &fstest.MapFile{Data: []byte(strings.ReplaceAll(line[at+1:], `\n`, "\n")), Mode: 0o444}
		if line[at] == '>' {
			f.Mode = fs.ModeSymlink | 0o777
		}
		tr.MapFS[line[:at]] = f
	}
	return tr
}

func TestTreesAsText(t *testing.T) {
	h, g := discover(t, topologytest.TwoSockets())
	again, same := discover(t, fromText(asText(topologytest.TwoSockets())))
	require.Equal(t, g, same)
	a, err := json.Marshal(h)
	require.NoError(t, err)
	b, err := json.Marshal(again)
	require.NoError(t, err)
	require.JSONEq(t, string(a), string(b))
}

// TestLinksThatLeadNowhere: a link to itself, to another that leads back, and one that grows.
func TestLinksThatLeadNowhere(t *testing.T) {
	tr := topologytest.TwoSockets()
	tr.Link("sys/class/net", "sys/class/net")
	tr.Link("sys/class/infiniband", "sys/class/iommu")
	tr.Link("sys/class/iommu", "sys/class/infiniband")
	tr.Link("sys/bus", "sys/bus/pci")
	h, g := discover(t, tr)
	require.NoError(t, g.Check())
	require.Contains(t, h.Nets.Why(), "too many levels of symbolic links")
	require.Contains(t, h.PCI.Why(), "too many levels of symbolic links")
}

func FuzzSysfs(f *testing.F) {
	f.Add(asText(topologytest.TwoSockets()))
	small := topologytest.NewTree()
	small.CPUs(2, 1)
	dir := small.Device(0, "0x020000", "0x15b3", "0000:01:00.0")
	port := small.RDMA(dir, "mlx5_0", "Ethernet", "4: ACTIVE", "100 Gb/sec")
	small.GID(port, 3, "::ffff:192.0.2.1", "RoCE v2", "eth0")
	small.NetDevice(dir, "eth0", "up", "100000", "1500")
	small.Put("proc/net", "route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF")
	small.NetDevice("", "bond0", "up", "100000", "1500")
	small.Put("sys/devices/virtual/net/bond0/bonding", "mode", "802.3ad 4", "slaves", "eth0")
	f.Add(asText(small))
	f.Fuzz(func(t *testing.T, text string) {
		h, g := discover(t, fromText(text))
		_, err := json.Marshal(h)
		require.NoError(t, err)
		g.PairNICs(g.GPUs())
		g.HostNIC(h.CPU.Allowed().Or(nil))
		for _, gpu := range g.GPUs() {
			g.Pin(gpu, h.CPU.Allowed())
		}
		for _, d := range h.RDMA.Or(nil) {
			for _, p := range d.Ports {
				_, _ = ChooseGID(p, GIDQuery{})
			}
		}
		dump := write(t, g.WriteXML)
		again, err := ParseXML(strings.NewReader(string(dump)))
		require.NoError(t, err, "%s", dump)
		require.Len(t, again.GPUs(), len(g.GPUs()))
	})
}

// TestRecordedOnDisk reads a recording as gccl topo --root does: a folder with symbolic links.
func TestRecordedOnDisk(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, topologytest.TwoSockets().MapFS))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	_, g := discover(t, root.FS())
	_, want := discover(t, topologytest.TwoSockets())
	require.Equal(t, want, g)
}
