package comm

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/transport/verbs"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gccl.toml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestTableOfSettings(t *testing.T) {
	names, variables, foreign := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range table() {
		require.False(t, names[s.Name] || variables[s.Env] || foreign[s.NCCL] && s.NCCL != "", s.Name)
		names[s.Name], variables[s.Env], foreign[s.NCCL] = true, true, true
		require.Regexp(t, `^GCCL_[A-Z0-9_]+$`, s.Env)
		require.Regexp(t, `^[a-z0-9_]+(\.[a-z0-9_]+)?$`, s.Name)
		require.Equal(t, s.put == nil, s.Unused != "", "%s: obeyed or not?", s.Name)
		require.Empty(t, ignoredNCCL[s.NCCL], s.NCCL)
	}
	// The names of deployment guides.
	for _, name := range []string{"rdma_device", "gid_index", "mtu", "traffic_class", "service_level", "qp_count", "pkey", "cq_moderation.enable", "cq_moderation.period_us", "cq_moderation.count",
		"memory.pool_size_gb", "memory.chunk_size_mb", "memory.hugepage", "gpu_direct.enable", "gpu_direct.device_id"} {
		require.True(t, names[name], name)
	}
}

// TestDefaultsAreThoseOfConfig: what gccl config prints for a default is what holds.
func TestDefaultsAreThoseOfConfig(t *testing.T) {
	want, err := Config{}.withDefaults()
	require.NoError(t, err)
	var got Config
	for _, name := range []string{"transport", "check", "init_timeout", "call_timeout", "warn_after", "first_seq"} {
		rows := table()
		i := slices.IndexFunc(rows, func(s setting) bool { return s.Name == name })
		rows[i].put(&got, rows[i].Default)
	}
	require.Equal(t, want.Transport, got.Transport)
	require.Equal(t, want.Checksum, got.Checksum)
	require.Equal(t, []time.Duration{want.InitTimeout, want.CallTimeout, want.WarnAfter}, []time.Duration{got.InitTimeout, got.CallTimeout, got.WarnAfter})
}

func TestLoadConfig(t *testing.T) {
	file := configFile(t, `
transport = "tcp"
algorithm = "ring"
socket_ifname = "eth0"
port_range = "5000-5100"
host_id = "a"
shm_dir = "/tmp"
check = "crc"
recorder = "/tmp/r"
cpu = "generic"
init_timeout = "1s"
call_timeout = "2s"
warn_after = "3s"
debug = "error"
rdma_device = "=mlx5_0:1,mlx5_1:1"
gid_index = 0
mtu = 2048
traffic_class = 106
service_level = 3
rdma_timeout = 18
rdma_retry_count = 5
qp_count = 4
qp_budget = 1000
[cq_moderation]
enable = true
period_us = 20
count = 8
[memory]
pool_size_gb = 2
chunk_size_mb = 64
hugepage = true
`)
	zero := 0
	c, set, err := LoadConfig(settings.Sources{File: file, Environ: []string{"GCCL_TRANSPORT=shm", "GCCL_FIRST_SEQ=0xffffffff", "GCCL_FAULTS=peer=1:drop", "NCCL_ALGO=Tree"}})
	require.NoError(t, err)
	require.NotNil(t, c.Logger)
	require.NotNil(t, c.Hook)
	c.Logger, c.Hook = nil, nil
	require.Equal(t, Config{Transport: "shm", Algorithm: "ring", Interface: "eth0", Ports: bootstrap.PortRange{Low: 5000, High: 5100}, HostID: "a", ShmDir: "/tmp", Checksum: true, Recorder: "/tmp/r", CPU: "generic",
		InitTimeout: time.Second, CallTimeout: 2 * time.Second, WarnAfter: 3 * time.Second, FirstSeq: 1<<32 - 1, RDMADevice: "=mlx5_0:1,mlx5_1:1", RDMA: verbs.Config{
			GIDIndex: &zero, MTU: 2048, TrafficClass: 106, ServiceLevel: 3, Timeout: 18, Retry: 5, QPs: 4, Budget: 1000,
			Moderation: verbs.Moderation{On: true, Count: 8, Period: 20}, Pool: 2 << 30, Chunk: 64 << 20, HugePages: true}}, c)
	require.Equal(t, c.RDMA, Config{}.or(c).RDMA)
	own := verbs.Config{MTU: 256, Timeout: 1}
	require.Equal(t, []int{256, 1, 5}, []int{Config{RDMA: own}.or(c).RDMA.MTU, int(Config{RDMA: own}.or(c).RDMA.Timeout), int(Config{RDMA: own}.or(c).RDMA.Retry)})
	require.Equal(t, "GCCL_TRANSPORT", set.Of("transport").Source)
	require.Equal(t, []string{"NCCL_ALGO=Tree gives way to " + file + ":3"}, set.Honoured)

	merged, err := Config{Algorithm: "tree"}.or(c).withDefaults() // the program's own goes before all
	require.NoError(t, err)
	require.Equal(t, []string{"tree", "shm"}, []string{merged.Algorithm, merged.Transport})
}

func TestNCCLVariablesThatMeanSomething(t *testing.T) {
	for _, c := range []struct{ variable, setting, text string }{
		{"NCCL_SOCKET_IFNAME==eth1,eth2", "socket_ifname", "=eth1,eth2"},
		{"NCCL_ALGO=Ring", "algorithm", "ring"},
		{"NCCL_HOSTID=rack7", "host_id", "rack7"},
		{"NCCL_DEBUG=TRACE", "debug", "debug"},
		{"NCCL_DEBUG=VERSION", "debug", "info"},
		{"NCCL_DEBUG=Warn", "debug", "warn"},
		{"NCCL_IB_HCA=^mlx5_1:1", "rdma_device", "^mlx5_1:1"},
		{"NCCL_IB_GID_INDEX=3", "gid_index", "3"},
		{"NCCL_IB_GID_INDEX=-1", "gid_index", ""},
		{"NCCL_IB_TC=106", "traffic_class", "106"},
		{"NCCL_IB_SL=3", "service_level", "3"},
		{"NCCL_IB_TIMEOUT=22", "rdma_timeout", "22"},
		{"NCCL_IB_RETRY_CNT=7", "rdma_retry_count", "7"},
		{"NCCL_IB_QPS_PER_CONNECTION=4", "qp_count", "4"},
		{"NCCL_P2P_LEVEL=NVL", "p2p_level", "nvl"},
		{"NCCL_NET_GDR_LEVEL=PXB", "net_gdr_level", "pxb"},
		{"NCCL_NET_GDR_LEVEL=5", "net_gdr_level", "sys"},
		{"NCCL_TOPO_FILE=/x.xml", "topo_file", "/x.xml"},
		{"NCCL_TOPO_DUMP_FILE=/y.xml", "topo_dump_file", "/y.xml"},
	} {
		_, set, err := LoadConfig(settings.Sources{Environ: []string{c.variable}})
		require.NoError(t, err, c.variable)
		v := set.Of(c.setting)
		require.Equal(t, c.text, v.Text, c.variable)
		require.Equal(t, c.text != "", v.Foreign)
		require.Empty(t, set.Ignored)
		if c.text != "" {
			require.Len(t, set.Honoured, 1)
			require.Equal(t, v.Setting.Unused != "", len(set.Warnings) == 1, "an unused setting is told: %v", set.Warnings)
		}
	}
	for variable, want := range map[string]string{
		"NCCL_ALGO=^Tree":             "NCCL_ALGO=^Tree is ignored: want one algorithm of gccl's: ",
		"NCCL_ALGO=allreduce:ring":    "NCCL_ALGO=allreduce:ring is ignored",
		"NCCL_IB_HCA=mlx5_1:-1":       "NCCL_IB_HCA=mlx5_1:-1 is ignored: device filter",
		"NCCL_SOCKET_IFNAME=eth0,^lo": "NCCL_SOCKET_IFNAME=eth0,^lo is ignored: device filter",
		"NCCL_DEBUG=loud":             "NCCL_DEBUG=loud is ignored: want VERSION",
		"NCCL_P2P_LEVEL=FAR":          `NCCL_P2P_LEVEL=FAR is ignored: "FAR"; want one of loc, nvl`,
	} {
		_, set, err := LoadConfig(settings.Sources{Environ: []string{variable}})
		require.NoError(t, err)
		require.Len(t, set.Warnings, 1, variable)
		require.Contains(t, set.Warnings[0], want)
	}
	_, set, err := LoadConfig(settings.Sources{Environ: []string{"NCCL_PROTO=LL128", "NCCL_IB_PKEY=1"}})
	require.NoError(t, err)
	require.Equal(t, []string{"NCCL_IB_PKEY (" + ignoredNCCL["NCCL_IB_PKEY"] + ")", "NCCL_PROTO (" + ignoredNCCL["NCCL_PROTO"] + ")"}, set.Ignored)
}

// NCCL's words for its default hide what NCCL's files say.
func TestNCCLVariablesThatAskForTheDefault(t *testing.T) {
	system := configFile(t, "NCCL_DEBUG=INFO\nNCCL_IB_TC=106\nNCCL_P2P_LEVEL=SYS\nNCCL_IB_HCA=mlx5_1\n")
	c, set, err := LoadConfig(settings.Sources{Environ: []string{"NCCL_DEBUG=NONE", "NCCL_IB_TC=-1", "NCCL_P2P_LEVEL=-1", "NCCL_IB_HCA="}, System: system})
	require.NoError(t, err)
	require.Equal(t, Config{}, c)
	for _, v := range set.Values {
		require.Empty(t, v.Source, v.Setting.Name)
	}
}

func TestImpossibleConfigurations(t *testing.T) {
	for text, want := range map[string]string{
		`transport = "smh"`:            `gccl.toml:1: transport: "smh"; did you mean shm?`,
		`transport = "mem"`:            `gccl.toml:1: transport: "mem"; want one of auto, shm, tcp`,
		`port_range = "9-5"`:           `gccl.toml:1: port_range: "9-5", want LOW-HIGH within 1-65535`,
		`init_timeout = "60"`:          `gccl.toml:1: init_timeout: "60" is not a positive duration such as 30s`,
		`init_timeout = 60`:            `gccl.toml:1: init_timeout: is the number 60; want a text`,
		`warn_after = "-1s"`:           `gccl.toml:1: warn_after: "-1s" is not a positive duration`,
		`mtu = 1500`:                   `gccl.toml:1: mtu: 1500; want 256, 512, 1024, 2048 or 4096`,
		`mtu = 9000`:                   `gccl.toml:1: mtu: 9000; want 256 to 4096`,
		`traffic_clas = 1`:             `gccl.toml:1: unknown key "traffic_clas"; did you mean traffic_class?`,
		"[cq_moderation]\nperiod = 5":  `gccl.toml:2: unknown key "cq_moderation.period"; did you mean cq_moderation.period_us?`,
		`rdma_device = "mlx5_1:0"`:     `gccl.toml:1: rdma_device: device filter "mlx5_1:0"`,
		`socket_ifname = "^"`:          `gccl.toml:1: socket_ifname: device filter "^"`,
		"pkey = 0x8001\ngid_index = 3": `gccl.toml:1: pkey is for InfiniBand and gid_index (`,
		"[memory]\npool_size_gb = 1\nchunk_size_mb = 1025": `gccl.toml:3: memory.chunk_size_mb is 1025, more than the whole pool of 1 GiB (`,
		`first_seq = 3`: `gccl.toml:1: unknown key "first_seq"`,
	} {
		_, _, err := LoadConfig(settings.Sources{File: configFile(t, text)})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "comm: configuration: ")
	}
	_, _, err := LoadConfig(settings.Sources{Environ: []string{"GCCL_CPU=avx1024"}})
	require.ErrorContains(t, err, `GCCL_CPU=avx1024: kernels: "avx1024" is no set of kernels that this machine can run; accepted: `)
	require.ErrorContains(t, err, "generic")
	_, err = New(t.Context(), Config{Size: 1, CPU: "neon"})
	require.ErrorContains(t, err, `Config.CPU: kernels: "neon" is no set of kernels`)
	_, _, err = LoadConfig(settings.Sources{Environ: []string{"GCCL_FAULTS=nonsense"}})
	require.ErrorContains(t, err, "GCCL_FAULTS=nonsense: ")

	_, err = New(t.Context(), Config{Size: 1, File: configFile(t, `transprot = "tcp"`)})
	require.ErrorContains(t, err, `gccl.toml:1: unknown key "transprot"; did you mean transport?`)
}

func TestNewTellsWhatItMakesOfTheConfiguration(t *testing.T) {
	t.Setenv("NCCL_NVLS_ENABLE", "0")
	t.Setenv("NCCL_HOSTID", "h")
	t.Setenv("HOME", t.TempDir())
	var log bytes.Buffer
	c, err := New(t.Context(), Config{Size: 1, File: configFile(t, "[gpu_direct]\nenable = true\n"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Contains(t, log.String(), "level=INFO msg=\"configuration: NCCL_HOSTID=h sets host_id to h\"")
	require.Contains(t, log.String(), "level=WARN msg=\"configuration: NCCL's variables that mean nothing to gccl: NCCL_NVLS_ENABLE\"")
	require.Contains(t, log.String(), "gccl.toml:2)")
}

// What a launcher says of us is wrong, or says that we are not alone: then nobody has a rank yet, and the error claims none.
func TestNumbered(t *testing.T) {
	said := func(c Config, env map[string]string) (Config, string, error) {
		var log bytes.Buffer
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c, _, err := c.numbered(func(name string) string { return env[name] })
		return c, log.String(), err
	}
	c, log, err := said(Config{}, map[string]string{"GCCL_RANK": "0", "GCCL_WORLD_SIZE": "1", "SLURM_NTASKS": "2"})
	require.NoError(t, err)
	require.Empty(t, log)
	require.Equal(t, 1, c.Size)
	_, log, err = said(Config{}, map[string]string{"OMPI_COMM_WORLD_SIZE": "1"})
	require.NoError(t, err)
	require.Empty(t, log)
	_, log, err = said(Config{Size: 1}, map[string]string{"OMPI_COMM_WORLD_SIZE": "2", "GCCL_RANK": "x"})
	require.NoError(t, err)
	require.Empty(t, log)
	_, log, err = said(Config{}, map[string]string{"OMPI_COMM_WORLD_SIZE": "2"})
	require.NoError(t, err)
	require.Contains(t, log, "one rank alone, though a launcher started more")
	require.Contains(t, log, "launched=2 variable=OMPI_COMM_WORLD_SIZE")

	t.Setenv("GCCL_RANK", "2")
	t.Setenv("GCCL_WORLD_SIZE", "2")
	_, err = New(t.Context(), Config{})
	require.EqualError(t, err, `comm: environment: GCCL_RANK="2": want a number from 0 to 1, as GCCL_WORLD_SIZE=2`)
}
