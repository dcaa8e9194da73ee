package topology

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func matrixFiles(t *testing.T) []string {
	var matrices []string
	for _, f := range files(t, "topo-matrix/*.txt") {
		if !strings.Contains(f, "p2p") {
			matrices = append(matrices, f)
		}
	}
	return matrices
}

// cellsOf reads the device cells of a matrix without our reader: by "GPU0 NIC1", names resolved by the legend.
func cellsOf(t *testing.T, file []byte) map[string]string {
	cells := map[string]string{}
	var header []string
	for line := range strings.Lines(string(file)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		switch {
		case header == nil && len(f) > 1:
			header = f
		case len(f) > 1:
			for i := 1; i < len(f) && !strings.HasSuffix(header[i], "Affinity"); i++ {
				cells[strings.ReplaceAll(f[0], "mlx5_", "NIC")+" "+strings.ReplaceAll(header[i], "mlx5_", "NIC")] = strings.TrimSpace(f[i])
			}
		}
	}
	require.NotEmpty(t, cells)
	return cells
}

func TestUC60_MatrixOfEveryGeneration(t *testing.T) {
	for _, f := range matrixFiles(t) {
		g := parseMatrix(t, f)
		require.NoError(t, g.Check(), f)
		dump := write(t, g.WriteMatrix)
		require.Equal(t, cellsOf(t, read(t, f)), cellsOf(t, dump), f)
		again, err := ParseMatrix(bytes.NewReader(dump))
		require.NoError(t, err, f)
		require.Equal(t, g, again, f)
	}
}

func TestMatrixAffinity(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/h100x8-9nic-reversed.txt")
	require.Equal(t, "0-79", g.Nodes[g.CPUOf(g.GPUs()[3])].CPU.CPUs.String())
	require.Equal(t, 1, g.Nodes[g.CPUOf(g.GPUs()[4])].CPU.NUMA)
	require.Equal(t, "mlx5_0", g.Name(g.Nets()[0]))
}

func TestMatrixOfSeveralNUMANodes(t *testing.T) {
	g, err := ParseMatrix(strings.NewReader("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\tX\tSYS\t0-7\t2-3\tN/A\nGPU1\tSYS\tX\tN/A\t5,7\t\n"))
	require.NoError(t, err)
	require.Equal(t, 2, g.Nodes[g.CPUOf(g.GPUs()[0])].CPU.NUMA)
	require.Equal(t, 5, g.Nodes[g.CPUOf(g.GPUs()[1])].CPU.NUMA)
	require.Nil(t, g.Nodes[g.CPUOf(g.GPUs()[1])].CPU.CPUs)
}

func TestMatrixWithAndWithoutNVSwitch(t *testing.T) {
	square := func(n, links int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "\tGPU%d", i)
		}
		for i := range n {
			fmt.Fprintf(&b, "\nGPU%d", i)
			for j := range n {
				b.WriteString(map[bool]string{true: "\tX", false: fmt.Sprintf("\tNV%d", links)}[i == j])
			}
		}
		return b.String()
	}
	for _, tt := range []struct {
		gpus, links int
		nvs         bool
	}{{4, 4, false}, {4, 6, false}, {2, 18, false}, {3, 12, true}, {8, 12, true}, {8, 18, true}, {4, 18, true}} {
		g, err := ParseMatrix(strings.NewReader(square(tt.gpus, tt.links)))
		require.NoError(t, err)
		require.Equal(t, tt.nvs, len(g.of(NVS)) == 1, "%d GPUs, %d links", tt.gpus, tt.links)
		p := g.Path(g.GPUs()[0], g.GPUs()[1])
		require.Equal(t, PathNVL, p.Type)
		require.Equal(t, 20*float64(tt.links), p.GBs)
	}
}

func TestMatrixAsPasted(t *testing.T) {
	want := parseMatrix(t, "testdata/topo-matrix/mixed5-uneven-1plus4.txt")
	text := string(read(t, "testdata/topo-matrix/mixed5-uneven-1plus4.txt"))
	for name, pasted := range map[string]string{
		"spaces":    strings.ReplaceAll(text, "\t", "    "),
		"underline": "\x1b[4m" + strings.Replace(text, "\n", "\x1b[0m\n", 1),
		"crlf":      strings.ReplaceAll(text, "\n", "\r\n"),
		"old name":  strings.ReplaceAll(text, "SYS", "SOC"),
		"tab end":   strings.ReplaceAll(text, "\n", "\t\n"),
	} {
		g, err := ParseMatrix(strings.NewReader(pasted))
		require.NoError(t, err, name)
		require.Equal(t, want, g, name)
	}
}

func TestBadMatrices(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "it is empty"},
		{"hello world", "want the header"},
		{"\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPXB\tX\n", "GPU0 to GPU1 is PIX, but the way back is PXB"},
		{"\tGPU0\tGPU1\nGPU0\tX\tNEAR\n", `line 2: GPU0 to GPU1: "NEAR"`},
		{"\tGPU0\tGPU1\nGPU0\tX\tNV0\n", "no NVLink"},
		{"\tGPU0\tGPU1\nGPU0\tX\n", "nothing is said of GPU0 and GPU1"},
		{"\tGPU0\tGPU0\nGPU0\tX\tX\n", "GPU0; want GPUs first"},
		{"\tGPU1\nGPU1\tX\n", "numbered from 0"},
		{"\tGPU0\nGPU7\tX\n", `line 2 is of "GPU7"`},
		{"\tGPU0\tGPU1\nGPU0\tPIX\tX\n", `GPU0 to GPU0 is "PIX"`},
		{"\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tSYS\nGPU2\tPIX\tSYS\tX\n", "GPU1 and GPU2 are said to be at SYS, but"},
		{"\tGPU0\tCPU Affinity\nGPU0\tX\t0-99999999\n", "CPU list"},
		{"\tGPU0\tNUMA Affinity\nGPU0\tX\tnone\n", "NUMA node"},
	}
	for _, tt := range tests {
		_, err := ParseMatrix(strings.NewReader(tt.text))
		require.ErrorContains(t, err, tt.want, tt.text)
	}
}

func TestUC68_P2PStatus(t *testing.T) {
	g := parseMatrix(t, "testdata/topo-matrix/rtx5090x2-phb.txt")
	require.Equal(t, P2PUnknown, g.status(g.GPUs()[0], g.GPUs()[1]))
	require.NoError(t, g.ReadP2P(bytes.NewReader(read(t, "testdata/topo-matrix/rtx5090x2-p2p-rw-GNS.txt"))))
	require.Equal(t, P2PGPUNotSupported, g.status(g.GPUs()[0], g.GPUs()[1]))
	require.Equal(t, P2PGPUNotSupported, g.status(g.GPUs()[1], g.GPUs()[0]))
	again, err := ParseJSON(bytes.NewReader(write(t, g.WriteJSON)))
	require.NoError(t, err)
	require.Equal(t, g, again)
}

func TestUC68_EveryStatus(t *testing.T) {
	nobody := parseMatrix(t, "testdata/topo-matrix/rtx5090x2-phb.txt")
	require.Equal(t, P2PUnknown, nobody.status(nobody.GPUs()[0], nobody.GPUs()[1]))
	for _, row := range []struct{ there, back, worse P2PStatus }{
		{P2PUnknown, P2POK, P2PUnknown}, {P2POK, P2POK, P2POK}, {P2PChipsetNotSupported, P2POK, P2PChipsetNotSupported}, {P2PGPUNotSupported, P2POK, P2PGPUNotSupported},
		{P2PTopologyNotSupported, P2POK, P2PTopologyNotSupported}, {P2PNotSupported, P2POK, P2PNotSupported}, {P2PDisabledByRegKey, P2POK, P2PDisabledByRegKey},
		{P2PGPUNotSupported, P2PUnknown, P2PGPUNotSupported},
	} {
		for _, cells := range [][2]P2PStatus{{row.there, row.back}, {row.back, row.there}} {
			g := parseMatrix(t, "testdata/topo-matrix/rtx5090x2-phb.txt")
			require.NoError(t, g.ReadP2P(strings.NewReader(" \tGPU0\tGPU1\t\n GPU0\tX\t"+string(cells[0])+"\t\n GPU1\t"+string(cells[1])+"\tX\t\n")))
			require.Equal(t, row.worse, g.status(g.GPUs()[0], g.GPUs()[1]), "%v: the worse of the two ways counts", cells)
			require.Equal(t, row.worse, g.status(g.GPUs()[1], g.GPUs()[0]), "%v", cells)
		}
	}
	g := parseMatrix(t, "testdata/topo-matrix/rtx5090x2-phb.txt")
	require.ErrorContains(t, g.ReadP2P(strings.NewReader(" \tGPU0\tGPU1\n GPU0\tX\tXYZ\n")), `GPU0 to GPU1 is "XYZ"`)
	require.ErrorContains(t, g.ReadP2P(strings.NewReader(" \tGPU0\tGPU9\n GPU0\tX\tOK\n")), "the host has 2 GPUs")
	require.Empty(t, g.P2P)
}

func FuzzMatrix(f *testing.F) {
	seeds, err := filepath.Glob("testdata/topo-matrix/*.txt")
	require.NoError(f, err)
	for _, s := range seeds {
		f.Add(read(f, s))
	}
	for _, s := range []string{
		"", "# nothing\n", "\t\n", "x\ty\n", "\tGPU0\tGPU1\nGPU0\tX\tPIX\tSYS\n", "\tGPU0\tGPU1\nGPU0\tX\n", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n", "\tGPU0\tGPU1\nGPU0\tX\tNV\nGPU1\tNV2\tX\n",
		"\x1b[4m\tGPU0\tGPU1\x1b[0m\nGPU0\tX\tPIX\nGPU1\tPIX\tX\x1b[", "        GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X PHB 0-3 0 N/A\nGPU1 PHB X 0-3 0 N/A\n\nLegend:\nNIC Legend:\nNIC0: mlx5_0\n",
		"\tGPU0\tNIC0\nGPU0\tX\tPIX\nNIC0\tPIX\tX\nNIC Legend:\n  NIC0: mlx5_0\n", "\tGPU0\tGPU0\nGPU0\tX\tX\n", "\tNIC0\tGPU0\nGPU0\tX\tX\n", "\tGPU1\nGPU1\tX\n", "\tGPU0\nGPU1\tX\n", "\tGPU0\nGPU0\tPIX\n", "\tGPU0\tGPU1\nGPU0\tX\tWHAT\nGPU1\tWHAT\tX\n",
		"\tGPU0\tGPU1\nGPU0\tX\tN/A\nGPU1\tN/A\tX\n", "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tx-y\tz\n", "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\t0-3\tz\n", "\tGPU0\tFOO\nGPU0\tX\tX\n", strings.Repeat("x", 2<<20),
		"\tGPU0\tGPU1\nGPU0\tX\tPIX\n", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU0\tX\tPIX\n",
	} {
		f.Add([]byte(s))
	}
	two := parseMatrix(f, "testdata/topo-matrix/rtx5090x2-phb.txt")
	for _, s := range []string{" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n", " \tGPU0\tGPU1\n GPU0\tX\tXYZ\n", " \tGPU0\tGPU9\n GPU0\tX\tOK\n", " \tGPU0\tGPU1\n GPU7\tX\tOK\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := *two
		_ = h.ReadP2P(bytes.NewReader(b))
		g, err := ParseMatrix(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.NoError(t, g.Check())
		dump := write(t, g.WriteMatrix)
		again, err := ParseMatrix(bytes.NewReader(dump))
		require.NoError(t, err, "%s", dump)
		require.Equal(t, string(dump), string(write(t, again.WriteMatrix)))
		_ = g.ReadP2P(bytes.NewReader(b))
	})
}

// TestErrorsAboutAnyFileAreShort: whatever is given for a topology file, a program or an archive, is not printed whole.
func TestErrorsAboutAnyFileAreShort(t *testing.T) {
	long := strings.Repeat("\x01x", 1<<18)
	for _, text := range []string{long, strings.Repeat(long, 4), "\tGPU0\tGPU1\n" + long + "\t X\tPIX\n", "\tGPU0\tGPU1\nGPU0\t X \t" + long + "\nGPU1\tPIX\t X\n", "<" + strings.Repeat("x", 1<<18) + "/>"} {
		_, err := Parse(strings.NewReader(text))
		require.Error(t, err)
		require.Less(t, len(err.Error()), 400, "%.500s", err)
	}
}
