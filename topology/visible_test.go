package topology

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

// fourGPUs are those of TwoSockets, as a driver names them: 0 and 1 on socket 0 with the CPUs 0-7, 2 and 3 on socket 1.
func fourGPUs() []GPUFacts {
	return []GPUFacts{
		{Bus: "0000:13:00.0", Dev: 0, Name: "H200", UUID: "GPU-a6eab09d-2376-324e-2bdc-8cceff28ee60"},
		{Bus: "0000:14:00.0", Dev: 1, Name: "H200", UUID: "GPU-a6ff0000-2376-324e-2bdc-8cceff28ee60"},
		{Bus: "0000:a3:00.0", Dev: 2, Name: "H200", UUID: "GPU-b0000000-2376-324e-2bdc-8cceff28ee60"},
		{Bus: "0000:a4:00.0", Dev: 3, Name: "H200", UUID: "GPU-c0000000-2376-324e-2bdc-8cceff28ee60"},
	}
}

// The lists of one GPU were tried on CUDA's driver.
func TestVisibleGPUs(t *testing.T) {
	h := Discover(topologytest.TwoSockets(), Known(fourGPUs()))
	g := h.Graph()
	const uuid = "GPU-a6eab09d-2376-324e-2bdc-8cceff28ee60"
	for _, tt := range []struct {
		list string
		want []int
	}{
		{"0", []int{0}}, {"3,1", []int{3, 1}}, {"1,7,0", []int{1}}, {"1,-1,0", []int{1}}, {"-1,0", nil}, {"-1", nil}, {"", nil}, {" ", nil}, {"4", nil},
		{"0,0", nil}, {"1,0,1", nil}, {"0,0,x", nil}, {"0, 1", []int{0, 1}}, {" 1", []int{1}}, {"1x", []int{1}}, {"0x1", []int{0}}, {"01", []int{1}}, {"010", nil}, {"-0", []int{0}}, {"+1", []int{1}},
		{"+", nil}, {"x,1", nil}, {"1,,0", []int{1}}, {",0", nil}, {"0,", []int{0}}, {"0 1", []int{0}}, {"1.5", []int{1}}, {"NoDevFiles", nil}, {"99999999999999999999", nil},
		{uuid, []int{0}}, {uuid + "f", []int{0}}, {"GPU-b", []int{2}}, {"GPU-B0", []int{2}}, {"gpu-b", nil}, {"GPU-", nil}, {"GPU", nil}, {"b0000000", nil}, {" GPU-b", nil},
		{"GPU-a6", nil}, {"GPU-a6e", []int{0}}, {"GPU-c,GPU-b", []int{3, 2}}, {"GPU-c,GPU-no,GPU-b", []int{3}}, {"GPU-c,GPU-a6,GPU-b", []int{3}}, {"GPU-c,GPU-c0", nil},
		{"GPU-c,0", []int{3}}, {"0,GPU-c", []int{0}},
		{"MIG-" + uuid + "/1/0", []int{0}}, {"MIG-GPU-c/1/0,MIG-GPU-b/1/0", []int{3}}, {"MIG-GPU-c/1/0,GPU-b", []int{3}}, {"GPU-b,MIG-GPU-c/1/0", []int{2}},
		{"MIG-11111111-2376-324e-2bdc-8cceff28ee60", []int{-1}},
	} {
		got, _ := h.visible(g, []string{"CUDA_VISIBLE_DEVICES=2", "CUDA_VISIBLE_DEVICES=" + tt.list})
		var want []NodeID
		for _, n := range tt.want {
			if n < 0 {
				want = append(want, NoNode)
				continue
			}
			want = append(want, g.GPUs()[n])
		}
		require.Equal(t, want, got, "%q", tt.list)
	}
	got, note := h.visible(g, []string{"CUDA_VISIBLE_DEVICES_X=1"})
	require.Equal(t, g.GPUs(), got)
	require.Empty(t, note)

	some := fourGPUs()
	some[2].MIG = true
	h = Discover(topologytest.TwoSockets(), Known(some))
	got, _ = h.visible(h.Graph(), []string{"CUDA_VISIBLE_DEVICES=MIG-11111111-2376-324e-2bdc-8cceff28ee60"})
	require.Equal(t, h.Graph().GPUs()[2:3], got, "the only one that has parts")

	parted := fourGPUs()
	for i, part := range map[int]string{1: "MIG-11111111-2376-324e-2bdc-8cceff28ee60", 3: "MIG-33333333-2376-324e-2bdc-8cceff28ee60"} {
		parted[i].MIG, parted[i].Parts = true, []string{"MIG-00000000-0000-0000-0000-00000000000" + string(rune('0'+i)), part}
	}
	h = Discover(topologytest.TwoSockets(), Known(parted))
	for part, gpu := range map[string]int{"MIG-11111111-2376-324e-2bdc-8cceff28ee60": 1, "MIG-33333333-2376-324E-2BDC-8CCEFF28EE60": 3} {
		got, _ = h.visible(h.Graph(), []string{"CUDA_VISIBLE_DEVICES=" + part})
		require.Equal(t, h.Graph().GPUs()[gpu:gpu+1], got, part)
	}
	got, _ = h.visible(h.Graph(), []string{"CUDA_VISIBLE_DEVICES=MIG-22222222-2376-324e-2bdc-8cceff28ee60"})
	require.Equal(t, []NodeID{NoNode}, got, "of none that the driver lists, and several GPUs have parts")

	some[3].Name = "T4"
	h = Discover(topologytest.TwoSockets(), Known(some))
	for _, environ := range [][]string{nil, {"CUDA_VISIBLE_DEVICES=3"}} {
		_, note = h.visible(h.Graph(), environ)
		require.Contains(t, note, "set CUDA_DEVICE_ORDER=PCI_BUS_ID")
		_, note = h.visible(h.Graph(), append(environ, "CUDA_DEVICE_ORDER=PCI_BUS_ID"))
		require.NotContains(t, note, "CUDA_DEVICE_ORDER")
	}
	_, note = h.visible(h.Graph(), []string{"CUDA_VISIBLE_DEVICES=GPU-c"})
	require.NotContains(t, note, "CUDA_DEVICE_ORDER", "a UUID has no order")

	h = Discover(topologytest.TwoSockets(), Unknown[[]GPUFacts]("there is no driver"))
	got, _ = h.visible(h.Graph(), []string{"CUDA_VISIBLE_DEVICES=GPU-c,GPU-b"})
	require.Equal(t, []NodeID{NoNode, NoNode}, got)
}

// Ranks are bound near the GPUs that CUDA shows them.
func TestShareAmongVisibleGPUs(t *testing.T) {
	h := Discover(topologytest.TwoSockets(), Known(fourGPUs()))
	share := func(ranks int, environ ...string) (all []string, why Reason) {
		for _, p := range h.Share(ranks, environ) {
			all = append(all, p.CPUs.String())
			why = p.Reasons[0]
		}
		return all, why
	}
	got, why := share(2, "CUDA_VISIBLE_DEVICES=2,3")
	require.Equal(t, []string{"8-11", "12-15"}, got)
	require.Equal(t, Reason("GPU3 by CUDA_VISIBLE_DEVICES=2,3 is on CPU1"), why)
	got, _ = share(2, "CUDA_VISIBLE_DEVICES=3,0")
	require.Equal(t, []string{"8-15", "0-7"}, got)
	got, _ = share(2, "CUDA_VISIBLE_DEVICES=GPU-c,9,GPU-a6e")
	require.Equal(t, []string{"8-11", "12-15"}, got, "both on GPU 3")
	got, _ = share(2, "CUDA_VISIBLE_DEVICES=")
	require.Equal(t, []string{"0-7", "8-15"}, got, "spread, without GPUs")
	got, why = share(1, "CUDA_VISIBLE_DEVICES=MIG-11111111-2376-324e-2bdc-8cceff28ee60")
	require.Equal(t, []string{"0-15"}, got)
	require.Contains(t, why, "which GPU it has is not known by CUDA_VISIBLE_DEVICES=MIG-1111")
	got, _ = share(4)
	require.Equal(t, []string{"0-3", "4-7", "8-11", "12-15"}, got)
}
