//go:build linux && cgo

package nvml

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
)

// library compiles the test's own one, with some of its variants.
func library(t *testing.T, variants ...string) string {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	file := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := []string{"-shared", "-fPIC", "-w", "-o", file, filepath.Join("testdata", "library.c")}
	for _, v := range variants {
		args = append(args, "-D"+v)
	}
	out, err := exec.Command(cc, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

func TestWholeLibrary(t *testing.T) {
	facts, ok := gpus(library(t)).Get()
	require.True(t, ok)
	require.Len(t, facts, 2)
	require.Equal(t, topology.GPUFacts{
		Bus: "0000:13:00.0", Dev: 0, UUID: "GPU-0000", Name: "NVIDIA Test", SM: 90, Memory: 80 << 30,
		NVLinks: []topology.NVLinkFacts{{Target: "0000:06:00.0", Class: "0x068000", Count: 9}, {Target: "0000:05:00.0", Class: "0x068000", Count: 8}},
		P2P:     map[string]topology.P2PStatus{"0000:a3:00.0": topology.P2POK},
		Fabric:  topology.Fabric{State: "completed", Cluster: "ab000000-0000-0000-0000-000000000000", Clique: 7},
		DMABuf:  facts[0].DMABuf,
	}, facts[0])
	require.Equal(t, "GPU-1000", facts[1].UUID)
	require.True(t, facts[1].MIG)
	require.Equal(t, []string{"MIG-1000", "MIG-4000"}, facts[1].Parts)
	require.Equal(t, topology.P2PGPUNotSupported, facts[1].P2P["0000:13:00.0"], "writing is refused")
	require.Equal(t, "Driver Not Loaded", facts[1].Fabric.Status)
}

// TestOldLibrary: what it lacks is not known, the rest is.
func TestOldLibrary(t *testing.T) {
	facts, ok := gpus(library(t, "OLD")).Get()
	require.True(t, ok)
	require.Len(t, facts, 2)
	require.False(t, facts[1].MIG)
	require.Zero(t, facts[0].Fabric)
	require.Equal(t, int64(80<<30), facts[0].Memory)
	require.Equal(t, []topology.NVLinkFacts{{Target: "0000:06:00.0", Count: 9}, {Target: "0000:05:00.0", Count: 8}}, facts[0].NVLinks)
}

func TestLibrariesThatFail(t *testing.T) {
	for says, file := range map[string]string{
		"no-such-library.so.1":                          "no-such-library.so.1",
		"nvmlInit_v2: Driver Not Loaded":                library(t, "REFUSED"),
		"has no nvmlDeviceGetPciInfo_v3":                library(t, "BROKEN"),
		"GPU 1: GPU is lost (nvidia-smi -q shows more)": library(t, "LOST"),
	} {
		f := gpus(file)
		_, ok := f.Get()
		require.False(t, ok)
		require.Contains(t, f.Why(), says)
		require.Contains(t, f.Why(), "NVML")
	}
}

// TestThisHost asks the real library, where there is one.
func TestThisHost(t *testing.T) {
	f := GPUs()
	facts, ok := f.Get()
	if !ok {
		require.Contains(t, f.Why(), Library)
		t.Skip(f.Why())
	}
	for _, g := range facts {
		require.Regexp(t, `^GPU-[0-9a-f-]{36}$`, g.UUID)
		require.NotEmpty(t, g.Name)
		require.GreaterOrEqual(t, g.SM, 30)
		require.Len(t, g.P2P, len(facts)-1)
		t.Logf("%+v", g)
	}
}
