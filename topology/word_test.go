package topology

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// Words of topology files that are none of gccl's are refused: taken as they are, acs="Redirect" would be a port that does not redirect.
func TestUnknownWordsOfTopologies(t *testing.T) {
	gpus := fourGPUs()
	gpus[0].P2P = map[string]P2PStatus{"0000:14:00.0": P2PChipsetNotSupported}
	g := Discover(topologytest.TwoSockets(), Known(gpus)).Graph()
	var text bytes.Buffer
	require.NoError(t, g.WriteJSON(&text))
	_, err := ParseJSON(strings.NewReader(text.String()))
	require.NoError(t, err)
	for _, c := range []struct{ old, made, want string }{
		{`"acs": "redirect"`, `"acs": "Redirect"`, `: acs="Redirect"; want one of off, redirect`},
		{`"kind": "roce"`, `"kind": "RoCEv2"`, `network port "mlx5_0": kind="RoCEv2"; want one of infiniband, roce, ethernet`},
		{`"iommu": "translate"`, `"iommu": "on"`, `the topology: iommu="on"; want one of off, passthrough, translate`},
		{`"status": "CNS"`, `"status": "ok"`, `P2P status 0 of the topology: status="ok"; want one of OK, CNS, GNS, TNS, NS, DR, U`},
		{`"status": "CNS"`, `"status": ""`, `P2P status 0 of the topology: status=""; want one of OK`},
	} {
		require.Contains(t, text.String(), c.old)
		_, err := ParseJSON(strings.NewReader(strings.Replace(text.String(), c.old, c.made, 1)))
		require.ErrorContains(t, err, "read topology as JSON: ")
		require.ErrorContains(t, err, c.want)
	}
	for _, other := range []string{`{"version": 1, "host": {}}`, `{"Comm": "c", "Rank": 0}`} { // a report of gccl doctor, a record
		_, err := Parse(strings.NewReader(other))
		require.ErrorContains(t, err, "want what gccl topo --format json writes", "and not a host without devices")
	}
	for _, none := range []string{`"acs": "redirect"`, `"kind": "roce"`, `"iommu": "translate"`} {
		name, _, _ := strings.Cut(none, ":")
		_, err := ParseJSON(strings.NewReader(strings.Replace(text.String(), none, name+`: ""`, 1)))
		require.NoError(t, err, "not known")
	}

	text.Reset()
	require.NoError(t, g.WriteXML(&text))
	_, err = ParseXML(strings.NewReader(text.String()))
	require.NoError(t, err)
	for _, c := range []struct{ old, made, want string }{
		{`acs="redirect"`, `acs="1"`, `<pci>: acs="1"; want one of off, redirect`},
		{`kind="roce"`, `kind="RoCE"`, `<net>: kind="RoCE"; want one of infiniband, roce, ethernet`},
	} {
		before, after, ok := strings.Cut(text.String(), c.old)
		require.True(t, ok)
		_, err := ParseXML(strings.NewReader(before + c.made + after))
		require.ErrorContains(t, err, c.want)
		require.Contains(t, err.Error(), "line "+strconv.Itoa(1+strings.Count(before, "\n"))+": ")
	}
}
