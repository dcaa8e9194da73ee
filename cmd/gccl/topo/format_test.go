package topo

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
)

// loadable are the topologies in the repository and, where they are, those recorded elsewhere.
func loadable(t *testing.T) map[string]*topology.Graph {
	roots := []string{filepath.Join("..", "..", "..", "topology", "testdata")}
	if r := os.Getenv("GCCL_FIXTURES"); r != "" {
		roots = append(roots, r)
	}
	graphs := map[string]*topology.Graph{}
	for _, r := range roots {
		for _, pattern := range []string{"topo-xml/*.xml", "topo-matrix/*.txt"} {
			files, err := filepath.Glob(filepath.Join(r, filepath.FromSlash(pattern)))
			require.NoError(t, err)
			require.NotEmpty(t, files)
			for _, f := range files {
				if strings.Contains(f, "hwloc") || strings.Contains(f, "p2p") {
					continue
				}
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				g, err := topology.Parse(bytes.NewReader(b))
				require.NoError(t, err, f)
				graphs[f] = g
			}
		}
	}
	return graphs
}

func in(t *testing.T, format Format, h *topology.Host, g *topology.Graph) string {
	var b strings.Builder
	require.NoError(t, format(&b, h, g))
	return b.String()
}

func TestEveryFormatOfEveryHost(t *testing.T) {
	for file, g := range loadable(t) {
		for name, format := range Formats() {
			out := in(t, format, nil, g)
			require.NotEmpty(t, out, "%s as %s", file, name)
			if name == "xml" || name == "json" || name == "matrix" && len(g.GPUs()) > 0 {
				again, err := topology.Parse(strings.NewReader(out))
				require.NoError(t, err, "%s as %s", file, name)
				require.Len(t, again.GPUs(), len(g.GPUs()))
				require.Equal(t, out, in(t, format, nil, again), "%s as %s", file, name)
			}
		}
	}
}

func TestTextSaysWhatIsChosen(t *testing.T) {
	g := loadable(t)[filepath.Join("..", "..", "..", "topology", "testdata", "topo-xml", "h100x8-9nic-nvswitch.xml")]
	out := in(t, Text, nil, g)
	for _, want := range []string{
		"CPU0  CPUs 0-47  GenuineIntel", "GPU7  0000:82:00.0  32 GT/s x16  sm 90", "mlx5_8  port 1  400 Gbit/s", "GPU0: 18 to NVS",
		"nvlink: NVL, 370.8 GB/s\n    all", "GPU0  mlx5_8  CPUs 0-47\n    mlx5_8 is at PIX, 48 GB/s",
		"Rings: 16 channels (18 NVLinks a GPU, at most 16)\n  0-15   0 1 2 3 4 5 6 7  (NVL, 20.6 GB/s each)",
	} {
		require.Contains(t, out, want)
	}
	require.Contains(t, out, "Network port of host memory\n  mlx5_1\n    mlx5_1 is at PHB, 48 GB/s; which CPUs the process may use is not known\n    mlx5_0: 25000 Mbit/s is less than half of the fastest's 400000\n\n")
	require.NotContains(t, out, "Unknown", "of a loaded host there are no facts")
}

func TestUC65_TextOfAHostWithNothing(t *testing.T) {
	h := topology.Discover(os.DirFS(t.TempDir()), topology.Unknown[[]topology.GPUFacts]("not asked"))
	out := in(t, Text, h, h.Graph())
	require.Contains(t, out, "CPU0  CPUs unknown")
	require.Contains(t, out, "GPU: none")
	require.Contains(t, out, "PCI: there is no /sys/bus/pci/devices")
	require.Contains(t, out, "RDMA: there is no /sys/class")
	for name, format := range Formats() {
		require.NotEmpty(t, in(t, format, h, h.Graph()), name)
	}
}

func TestRanges(t *testing.T) {
	require.Equal(t, "0-3,6,8-9", ranges([]int{0, 1, 2, 3, 6, 8, 9}))
	require.Equal(t, "", ranges(nil))
}

type shape struct {
	x, y, w, h float64
	text       string
}

func (a shape) overlaps(b shape) bool {
	return a.x < b.x+b.w && b.x < a.x+a.w && a.y < b.y+b.h && b.y < a.y+a.h
}

// shapes reads the rectangles and texts of a picture; a text's extent is estimated.
func shapes(t *testing.T, svg string) (rects, texts []shape, width, height float64) {
	d := xml.NewDecoder(strings.NewReader(svg))
	number := func(s string) float64 {
		f, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return f
	}
	var text *shape
	anchor := ""
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return rects, texts, width, height
		}
		require.NoError(t, err)
		switch e := tok.(type) {
		case xml.StartElement:
			a := map[string]string{}
			for _, attr := range e.Attr {
				a[attr.Name.Local] = attr.Value
			}
			switch e.Name.Local {
			case "svg":
				width, height = number(a["width"]), number(a["height"])
			case "rect":
				if a["class"] == "back" {
					break
				}
				rects = append(rects, shape{number(a["x"]), number(a["y"]), number(a["width"]), number(a["height"]), ""})
			case "circle":
				r := number(a["r"])
				rects = append(rects, shape{number(a["cx"]) - r, number(a["cy"]) - r, 2 * r, 2 * r, ""})
			case "text":
				text, anchor = &shape{x: number(a["x"]), y: number(a["y"]) - 9, h: 11}, a["text-anchor"]
			}
		case xml.CharData:
			if text != nil {
				text.text += string(e)
			}
		case xml.EndElement:
			if e.Name.Local == "text" {
				text.w = 6.2 * float64(len([]rune(text.text)))
				if anchor == "middle" {
					text.x -= text.w / 2
				}
				texts = append(texts, *text)
				text = nil
			}
		}
	}
}

func TestNothingOverlaps(t *testing.T) {
	for file, g := range loadable(t) {
		rects, texts, width, height := shapes(t, in(t, SVG, nil, g))
		require.NotEmpty(t, rects)
		for i, a := range rects {
			require.True(t, a.x >= 0 && a.y >= 0 && a.x+a.w <= width && a.y+a.h <= height, "%s: %v is outside", file, a)
			for _, b := range rects[:i] {
				require.False(t, a.overlaps(b), "%s: %v and %v", file, a, b)
			}
		}
		for i, a := range texts {
			require.True(t, a.x >= 0 && a.x+a.w <= width && a.y+a.h <= height, "%s: %v is outside of %v×%v", file, a, width, height)
			for _, b := range texts[:i] {
				require.False(t, a.overlaps(b), "%s: %v and %v", file, a, b)
			}
			inside := slices.ContainsFunc(rects, func(r shape) bool { return a.x >= r.x && a.x+a.w <= r.x+r.w && a.y >= r.y && a.y+a.h <= r.y+r.h })
			cut := slices.ContainsFunc(rects, a.overlaps)
			require.True(t, inside || !cut, "%s: %v is cut by a box", file, a)
		}
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	for file, g := range loadable(t) {
		out := in(t, HTML, nil, g)
		for _, bad := range []string{"src=", "href=", "@import", "url("} {
			require.NotContains(t, out, bad, file)
		}
		require.Contains(t, out, "prefers-color-scheme: dark")
		require.NotContains(t, out, "ZgotmplZ", file)
	}
}

func TestHostileNamesAreEscaped(t *testing.T) {
	g, err := topology.ParseXML(strings.NewReader(`<system><cpu numaid="0" vendor="&lt;b&gt;"><nic><net name="&lt;script&gt;alert(1)&lt;/script&gt;"/></nic></cpu></system>`))
	require.NoError(t, err)
	require.NotContains(t, in(t, HTML, nil, g), "<script")
	require.NotContains(t, in(t, SVG, nil, g), "<script")
	require.NotContains(t, in(t, SVG, nil, g), "<b>")
}
