package topology

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func write(t testing.TB, to func(io.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, to(&b))
	return b.Bytes()
}

// xmlFiles are NCCL's, without what another program wrote.
func xmlFiles(t *testing.T) []string {
	var nccl []string
	for _, f := range files(t, "topo-xml/*.xml") {
		if !strings.HasPrefix(filepath.Base(f), "hwloc") {
			nccl = append(nccl, f)
		}
	}
	return nccl
}

func TestUC54_DumpMeansTheSame(t *testing.T) {
	for _, f := range xmlFiles(t) {
		g := parseXML(t, f)
		dump := write(t, g.WriteXML)
		for line := range strings.Lines(string(dump)) {
			if strings.Contains(line, "<pci ") { // NCCL 2.28 refuses a device without them
				require.Regexp(t, ` link_speed=".*" link_width="\d+"`, line, f)
			}
		}
		again, err := ParseXML(bytes.NewReader(dump))
		require.NoError(t, err, "%s\n%s", f, dump)
		require.Equal(t, byPlace(g), byPlace(again), f)
		require.Equal(t, meaning(t, read(t, f)), meaning(t, dump), f)
		require.Equal(t, string(dump), string(write(t, again.WriteXML)), f)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	for _, f := range xmlFiles(t) {
		g := parseXML(t, f)
		again, err := ParseJSON(bytes.NewReader(write(t, g.WriteJSON)))
		require.NoError(t, err)
		require.Equal(t, g, again, f)
		require.Equal(t, g.Digest(), again.Digest(), f)
	}
	for _, f := range matrixFiles(t) {
		g := parseMatrix(t, f)
		again, err := ParseJSON(bytes.NewReader(write(t, g.WriteJSON)))
		require.NoError(t, err)
		require.Equal(t, g, again, f)
	}
}

func TestUC54_CloudTopologies(t *testing.T) {
	tests := []struct {
		file              string
		bridges, gpus     int // bridges of the host, devices of each kind below each
		numa, devicesEach int
	}{
		{"testdata/topo-xml/cloud-4-bridges-classes-only.xml", 4, 8, 4, 2},
		{"testdata/topo-xml/cloud-8-bridges-one-pair-each.xml", 8, 8, 2, 1},
		{"fixture:topo-xml/azure-nda100v4-8xA100.xml", 4, 8, 4, 2},
		{"fixture:topo-xml/azure-ndh100v5-8xH100.xml", 8, 8, 2, 1},
	}
	for _, tt := range tests {
		t.Run(filepath.Base(tt.file), func(t *testing.T) {
			f, isFixture := strings.CutPrefix(tt.file, "fixture:")
			if isFixture {
				f = recorded(t, f)
			}
			g := parseXML(t, f)
			require.Len(t, g.GPUs(), tt.gpus)
			require.Len(t, g.Nets(), tt.gpus)
			require.Len(t, g.CPUs(), tt.numa)
			below := map[NodeID]map[NodeType]int{}
			for _, n := range g.Nodes {
				if n.Type == GPU || n.Type == NIC {
					if below[n.Parent] == nil {
						below[n.Parent] = map[NodeType]int{}
					}
					below[n.Parent][n.Type]++
				}
			}
			require.Len(t, below, tt.bridges)
			for bridge, n := range below {
				require.True(t, strings.HasPrefix(g.Nodes[bridge].Bus.ID, "ffff:ff:0"))
				require.Equal(t, map[NodeType]int{GPU: tt.devicesEach, NIC: tt.devicesEach}, n)
			}
		})
	}
}

func TestUC54_VirtualDomains(t *testing.T) {
	like := parseXML(t, "testdata/topo-xml/vm-wide-domains.xml")
	var buses []string
	for _, id := range like.GPUs() {
		buses = append(buses, like.Nodes[id].Bus.ID)
	}
	require.Equal(t, []string{"9e07:00:00.0", "c8a3:00:00.0", "5b1c:00:00.0", "20d4:00:00.0"}, buses, "the driver's numbers, not the file's order")
	p := like.Path(like.ByBus("5B1C:00:00.0"), like.ByBus("9e07:00:00.0"))
	require.Equal(t, PathNVL, p.Type)
	require.Equal(t, 2*like.Path(like.ByBus("5b1c:00:00.0"), like.ByBus("20d4:00:00.0")).GBs, p.GBs, "two links and one")
	require.Equal(t, NoNode, like.ByBus("5b1:00:00.0"))

	g := parseXML(t, recorded(t, "topo-xml/vm-mi250-16gcd-pci-domains.xml"))
	require.Len(t, g.GPUs(), 16)
	require.NotEqual(t, NoNode, g.ByBus("3436:00:00.0"))
	p = g.Path(g.ByBus("3436:00:00.0"), g.ByBus("D2A8:00:00.0"))
	require.Equal(t, Path{PathNVL, 4 * 36, []NodeID{g.ByBus("3436:00:00.0"), g.ByBus("d2a8:00:00.0")}}, p)

	g = parseXML(t, recorded(t, "topo-xml/vm-mi300x-8gpu-virtual-domains.xml"))
	gpus := g.GPUs()
	require.Equal(t, g.ByBus("0011:00:00.0"), gpus[0], "the driver's number, not the file's order")
	require.Equal(t, g.ByBus("0021:00:00.0"), gpus[1])
}

func TestUC54_WhatGcclDoesNotKnowIsKeptOrLeftOut(t *testing.T) {
	g := parseXML(t, "testdata/topo-xml/docker-nics-even-cpus.xml")
	require.Equal(t, map[string]string{"hyperthreads": "2"}, g.Nodes[g.CPUs()[0]].CPU.Extra)
	require.Equal(t, map[string]string{"color": "grey"}, g.Nodes[g.GPUs()[0]].GPU.Extra)
	dump := string(write(t, g.WriteXML))
	require.Contains(t, dump, `hyperthreads="2"`)
	require.NotContains(t, dump, "memory")
}

func TestUC63_CPUsOfLookAlikes(t *testing.T) {
	dell := parseXML(t, "testdata/topo-xml/docker-nics-even-cpus.xml")
	even := dell.Nodes[dell.CPUs()[0]].CPU.CPUs
	require.Equal(t, 40, even.Len())
	for n := range 80 {
		require.Equal(t, n%2 == 0, even.Has(n))
	}
	require.Equal(t, []int{0, 0, 0, 0}, pairs(dell), "neither docker0 nor a veth")
	_, dropped := dell.UsableNets()
	require.Contains(t, dropped, Reason("docker0: a container bridge, pair or tunnel"))

	nps4 := parseXML(t, "testdata/topo-xml/nps4-2gpu-dualport.xml")
	require.Equal(t, "6-7,14-15", nps4.Nodes[nps4.CPUs()[0]].CPU.CPUs.String())
	require.Equal(t, []int{0, 1}, pairs(nps4))
	require.Equal(t, 12.0, nps4.Path(nps4.GPUs()[0], nps4.GPUs()[1]).GBs, "the narrower of the two")

	// The kernel shows a node's CPUs in both forms; either will do.
	tr := topologytest.NewTree()
	tr.CPUs(80, 1)
	tr.Put("sys/devices/system/node/node0", "cpumap", "5555,55555555,55555555", "cpulist", even.String())
	h, g := discover(t, tr)
	require.Equal(t, even, g.Nodes[g.CPUs()[0]].CPU.CPUs)
	delete(tr.MapFS, "sys/devices/system/node/node0/cpulist")
	again, _ := discover(t, tr)
	require.Equal(t, h.CPU.Nodes.Or(nil)[0].CPUs, again.CPU.Nodes.Or(nil)[0].CPUs)
}

func TestXMLOfAnotherKind(t *testing.T) {
	_, err := ParseXML(bytes.NewReader(read(t, "testdata/hwloc.xml")))
	require.ErrorContains(t, err, "hwloc")
	require.ErrorContains(t, err, "line 3")
}

func TestXMLOfHwlocRecorded(t *testing.T) {
	_, err := ParseXML(bytes.NewReader(read(t, recorded(t, "topo-xml/hwloc-aws-c5n.18xlarge-nogpu.xml"))))
	require.ErrorContains(t, err, "hwloc")
}

func TestBadXML(t *testing.T) {
	in := func(s string) string { return "<system>\n<cpu numaid=\"0\">\n" + s + "\n</cpu></system>" }
	tests := []struct{ text, want string }{
		{"", "is empty"},
		{"<graphs/>", "begins with <graphs>"},
		{"<system><cpu numaid=\"0\">", "no XML"},
		{"<system>\n<cpu numaid=\"zero\"/></system>", `line 2: <cpu>: numaid="zero"`},
		{"<system><cpu affinity=\"xyz\"/></system>", `"xyz" is not 32 bits`},
		{in(`<pci busid="17:00"/>`), `line 3: <pci>: bus id "17:00"`},
		{in(`<pci/>`), `bus id ""`},
		{in(`<pci busid="0:17:00.0"/><pci busid="0000:17:00.0"/>`), "stands twice"},
		{in(`<pci busid="0:17:00.0" link_width="900"/>`), `link_width="900"`},
		{in(`<gpu dev="0"/>`), "want one in the <pci>"},
		{in(`<nvlink target="0:1:0.0"/>`), "it stands in no <gpu>"},
		{in(`<pci busid="0:17:00.0" class="0x030200"><gpu dev="0"><nvlink target="GPU1"/></gpu></pci>`), `target: bus id "GPU1"`},
		{in(`<pci busid="0:17:00.0" class="0x030200"><gpu dev="0"/><pci busid="0:18:00.0"/></pci>`), "neither in a <cpu> nor"},
		{in(`<net name="x"/>`), "it stands in no <nic>"},
		{in(`<nic><net dev="0"/></nic>`), "no name"},
		{in(`<nic><net name="x" latency="NaN"/></nic>`), `latency="NaN"`},
		{in(strings.Repeat(`<pci busid="0:0:0.0">`, 1)+strings.Repeat("<nic>", 80)) + ">", "line 3"},
		{"<system></system><cpu/>", "behind the end"},
	}
	for _, tt := range tests {
		_, err := ParseXML(strings.NewReader(tt.text))
		require.ErrorContains(t, err, tt.want, tt.text)
	}
}

func TestXMLSpellings(t *testing.T) {
	for text, want := range map[string]float64{"16 GT/s": 16, "16.0 GT/s PCIe": 16, "2.5 GT/s": 2.5, "": 0, "Unknown": 0, "Unknown speed": 0, "-1 GT/s": 0, "NaN GT/s": 0} {
		require.Equal(t, want, parseGTs(text), text)
	}
}

// byPlace is g without what its order of nodes gives: a dump may order children otherwise.
func byPlace(g *Graph) any {
	type node struct {
		parent string
		n      Node
	}
	place := func(id NodeID) string {
		if id == NoNode {
			return ""
		}
		n := g.Nodes[id]
		if n.Bus != nil {
			return n.Bus.ID
		}
		return g.Name(id)
	}
	all := map[string]node{}
	for i, n := range g.Nodes {
		parent := place(n.Parent)
		n.Parent = NoNode
		all[fmt.Sprint(n.Type, place(NodeID(i)), len(all)*btoi(n.Bus == nil && n.Type != NET))] = node{parent, n}
	}
	links := map[string]int{}
	for _, l := range g.NVLinks {
		links[place(l.From)+" "+place(l.To)+" "+l.Target+l.Class] += l.Count
	}
	return []any{all, links}
}

// meaning is a file as a sorted list of elements with what is above them, without what has no meaning: the spelling of numbers
// and absent values.
func meaning(t *testing.T, file []byte) []string {
	var out, path []string
	d := xml.NewDecoder(bytes.NewReader(file))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			sort.Strings(out)
			return out
		}
		require.NoError(t, err)
		switch e := tok.(type) {
		case xml.StartElement:
			if e.Name.Local == "gin" || e.Name.Local == "memory" {
				require.NoError(t, d.Skip())
				continue
			}
			attrs := []string{}
			for _, a := range e.Attr {
				v := strings.ToLower(strings.TrimSpace(a.Value))
				switch a.Name.Local {
				case "version":
					continue
				case "busid", "target":
					v, err = ParseBusID(v)
					require.NoError(t, err)
				case "link_speed":
					v = strings.Fields(v + " x")[0]
					f, _ := strconv.ParseFloat(v, 64)
					v = fmt.Sprint(f)
				case "affinity":
					set, err := ParseCPUMask(v)
					require.NoError(t, err)
					v = set.String()
				case "latency":
					f, err := strconv.ParseFloat(v, 64)
					require.NoError(t, err)
					v = fmt.Sprint(f)
				}
				if v == "0" || v == "" {
					if a.Name.Local != "numaid" && a.Name.Local != "dev" && a.Name.Local != "rank" {
						continue
					}
				}
				attrs = append(attrs, a.Name.Local+"="+v)
			}
			sort.Strings(attrs)
			path = append(path, e.Name.Local+" "+strings.Join(attrs, " "))
			out = append(out, strings.Join(path, " > "))
		case xml.EndElement:
			path = path[:len(path)-1]
		}
	}
}

func FuzzXML(f *testing.F) {
	seeds, err := filepath.Glob("testdata/topo-xml/*.xml")
	require.NoError(f, err)
	for _, s := range seeds {
		f.Add(read(f, s))
	}
	for _, s := range []string{
		``, `<topology/>`, `<system/><system/>`, `<system version="1"><cpu><c2c count="1"/></cpu></system>`, `<system version="1"><gpu><c2c bw="1"/></gpu></system>`,
		`<system version="1">` + strings.Repeat("<pci>", 70), `<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink target="x" count="-1"/></gpu></pci></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink tclass="0x068000" count="1"/><c2c bw="-1" count="2"/></gpu></pci></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink tclass="0x068000" count="1"/><c2c bw="10" count="2"/></gpu><nic><net dev="1"/></nic></pci></cpu></system>`,
		`<system version="1"><cpu numaid="0" affinity="x"/></system>`, `<system version="1"><cpu numaid="0"/><cpu numaid="0"/></system>`, `<system version="1"><cpu host_hash="x" numaid="0"/></system>`, `<system version="1"><cpu numaid="0"><pci busid="x"/></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="x"/></cpu></system>`, `<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x060400" link_speed="fast" link_width="x"/></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0"/><pci busid="0000:01:00.0"/></cpu></system>`, `<system version="1"><cpu numaid="0"><nic><net dev="x"/></nic></cpu></system>`, `<system version="1"><cpu numaid="0"><nic><net name="a" speed="x"/></nic></cpu></system>`,
		`<system version="1"><cpu numaid="0"><nic><net name="a"/><net name="a"/></nic></cpu></system>`, `<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="x"/></pci></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink target="0000:02:00.0" count="x"/></gpu></pci></cpu></system>`, `<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><c2c bw="x" count="1"/></gpu></pci></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink target="0000:02:00.0" count="1" tclass="y"/></gpu></pci></cpu></system>`, `<system version="1"><what/></system>`, `<other/>`, `<system version="1"><cpu numaid="0"><nvlink target="0000:02:00.0" count="1"/></cpu></system>`,
		`<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"><gpu dev="0"><nvlink target="0000:02:00.0" count="1" tclass="0x068001"/><nvlink target="0000:03:00.0" count="1" tclass="0x030200"/></gpu></pci></cpu></system>`,
		`<system version="1">text</system>`, `<?xml version="1.0"?><!-- x --><system version="1">`,
		`<system version="x">`, `<system><cpu numaid="y"/></system>`, `<system><nic/></system>`, `<system><net/></system>`, `<system><gpu/></system>`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseXML(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.NoError(t, g.Check())
		dump := write(t, g.WriteXML)
		again, err := ParseXML(bytes.NewReader(dump))
		require.NoError(t, err, "%s", dump)
		require.Equal(t, string(dump), string(write(t, again.WriteXML)))
		_ = g.Digest()
		if len(g.Nodes) < 64 {
			for _, a := range g.GPUs() {
				g.Paths(a)
			}
		}
	})
}
