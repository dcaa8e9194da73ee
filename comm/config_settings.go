package comm

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport/faulty"
)

// setting is a row of the table of all that files and variables may set.
type setting struct {
	settings.Setting
	put func(c *Config, text string) // a checked value into the configuration; nil: nothing obeys it yet
}

// Why nothing obeys a setting. Files may hold it already, so that one file serves all builds.
const (
	noGPU = "whose network transports don't reach GPU memory"
)

// pathWords are NCCL's levels of distance, the nearest first.
var pathWords = []string{"loc", "nvl", "pix", "pxb", "pxn", "phb", "sys"}

// table returns the rows. The names of RDMA settings are those of deployment guides.
func table() []setting {
	duration := func(env, name, def string, field func(*Config) *time.Duration) setting {
		return setting{settings.Setting{Name: name, Env: env, Check: checkDuration, Default: def},
			func(c *Config, text string) { *field(c), _ = time.ParseDuration(text) }}
	}
	text := func(s settings.Setting, field func(*Config) *string) setting {
		return setting{s, func(c *Config, text string) { *field(c) = text }}
	}
	later := func(why string, s settings.Setting) setting {
		s.Unused = why
		return setting{Setting: s}
	}
	whole := func(name, env string, low, high int64) settings.Setting {
		return settings.Setting{Name: name, Env: env, Kind: settings.Whole, Low: low, High: high}
	}
	number := func(s settings.Setting, nccl, def string, field func(*Config, int)) setting {
		s.NCCL, s.Default = nccl, def
		return setting{s, func(c *Config, text string) {
			n, _ := strconv.Atoi(text)
			field(c, n)
		}}
	}
	flag := func(name, env string, field func(*Config, bool)) setting {
		return setting{settings.Setting{Name: name, Env: env, Kind: settings.Switch, Default: "false"}, func(c *Config, text string) { field(c, text == "true") }}
	}
	unsetBelowZero := func(s settings.Setting) settings.Setting {
		s.FromNCCL = func(text string) (string, error) {
			if n, err := strconv.Atoi(text); err == nil && n < 0 {
				return "", nil
			}
			return text, nil
		}
		return s
	}
	return []setting{
		text(settings.Setting{Name: "transport", Env: "GCCL_TRANSPORT", Words: []string{"auto", "shm", "tcp", "verbs"}, Default: "auto"}, func(c *Config) *string { return &c.Transport }),
		text(settings.Setting{Name: "algorithm", Env: "GCCL_ALGO", Words: algorithmNames(), NCCL: "NCCL_ALGO", FromNCCL: algorithmOfNCCL, Default: "chosen by size"},
			func(c *Config) *string { return &c.Algorithm }),
		text(settings.Setting{Name: "socket_ifname", Env: "GCCL_SOCKET_IFNAME", Check: checkFilter, NCCL: "NCCL_SOCKET_IFNAME", Default: "the one that leads to the root"},
			func(c *Config) *string { return &c.Interface }),
		{settings.Setting{Name: "port_range", Env: "GCCL_PORT_RANGE", Check: func(text string) error { _, err := parsePorts(text); return err }, Default: "any"},
			func(c *Config, text string) { c.Ports, _ = parsePorts(text) }},
		text(settings.Setting{Name: "host_id", Env: "GCCL_HOSTID", Check: checkHostID, NCCL: "NCCL_HOSTID", Default: "the boot id"}, func(c *Config) *string { return &c.HostID }),
		text(settings.Setting{Name: "shm_dir", Env: "GCCL_SHM_DIR", Check: checkShmDir, Default: "/dev/shm"}, func(c *Config) *string { return &c.ShmDir }),
		{settings.Setting{Name: "check", Env: "GCCL_CHECK", Words: []string{"none", "crc"}, Default: "none"}, func(c *Config, text string) { c.Checksum = text == "crc" }},
		text(settings.Setting{Name: "recorder", Env: "GCCL_RECORDER", Default: "none"}, func(c *Config) *string { return &c.Recorder }),
		text(settings.Setting{Name: "cpu", Env: "GCCL_CPU", Check: func(text string) error { _, err := cpu.Choose(text); return err }, Default: cpu.Implementations()[0].Name()},
			func(c *Config) *string { return &c.CPU }),
		duration("GCCL_INIT_TIMEOUT", "init_timeout", "1m0s", func(c *Config) *time.Duration { return &c.InitTimeout }),
		duration("GCCL_CALL_TIMEOUT", "call_timeout", "10m0s", func(c *Config) *time.Duration { return &c.CallTimeout }),
		duration("GCCL_WARN_AFTER", "warn_after", "10s", func(c *Config) *time.Duration { return &c.WarnAfter }),
		{settings.Setting{Name: "debug", Env: "GCCL_DEBUG", Words: logWords, NCCL: "NCCL_DEBUG", FromNCCL: debugOfNCCL, Default: "warn"},
			func(c *Config, text string) { c.Logger = stderrLogger(text) }},

		{settings.Setting{Name: "rdma", Env: "GCCL_RDMA", Kind: settings.Switch, Default: "true", NCCL: "NCCL_IB_DISABLE", FromNCCL: func(text string) (string, error) {
			off, err := strconv.ParseBool(text)
			return strconv.FormatBool(!off), err
		}}, func(c *Config, text string) { c.NoRDMA = text == "false" }},
		text(settings.Setting{Name: "rdma_device", Env: "GCCL_RDMA_DEVICE", Check: checkFilter, NCCL: "NCCL_IB_HCA", Default: "the one near the GPU, or near the CPUs"},
			func(c *Config) *string { return &c.RDMADevice }),
		number(unsetBelowZero(whole("gid_index", "GCCL_GID_INDEX", 0, 255)), "NCCL_IB_GID_INDEX", "the best RoCE v2 entry", func(c *Config, n int) { c.RDMA.GIDIndex = &n }),
		number(settings.Setting{Name: "mtu", Env: "GCCL_MTU", Kind: settings.Whole, Low: 256, High: 4096, Check: checkMTU}, "", "the port's", func(c *Config, n int) { c.RDMA.MTU = n }),
		number(unsetBelowZero(whole("traffic_class", "GCCL_TRAFFIC_CLASS", 0, 255)), "NCCL_IB_TC", "0", func(c *Config, n int) { c.RDMA.TrafficClass = uint8(n) }),
		number(whole("service_level", "GCCL_SERVICE_LEVEL", 0, 15), "NCCL_IB_SL", "0", func(c *Config, n int) { c.RDMA.ServiceLevel = uint8(n) }),
		number(whole("pkey", "GCCL_PKEY", 1, 0xffff), "", "the port's first", func(c *Config, n int) { c.RDMA.PKey = uint16(n) }),
		number(whole("rdma_timeout", "GCCL_IB_TIMEOUT", 1, 31), "NCCL_IB_TIMEOUT", "17", func(c *Config, n int) { c.RDMA.Timeout = uint8(n) }),
		number(whole("rdma_retry_count", "GCCL_IB_RETRY_CNT", 1, 7), "NCCL_IB_RETRY_CNT", "6", func(c *Config, n int) { c.RDMA.Retry = uint8(n) }),
		number(whole("qp_count", "GCCL_QP_COUNT", 1, 32), "NCCL_IB_QPS_PER_CONNECTION", "1", func(c *Config, n int) { c.RDMA.QPs = n }),
		number(whole("qp_budget", "GCCL_QP_BUDGET", 1, 1<<24), "", "what the device has", func(c *Config, n int) { c.RDMA.Budget = n }),
		{settings.Setting{Name: "rdma_fallback", Env: "GCCL_RDMA_FALLBACK", Kind: settings.Switch, Default: "true"}, func(c *Config, text string) { c.NoRDMAFallback = text == "false" }},
		flag("rdma_pin", "GCCL_RDMA_PIN", func(c *Config, on bool) { c.RDMAPin = on }),
		flag("cq_moderation.enable", "GCCL_CQ_MODERATION", func(c *Config, on bool) { c.RDMA.Moderation.On = on }),
		number(whole("cq_moderation.period_us", "GCCL_CQ_MODERATION_PERIOD_US", 0, 0xffff), "", "10", func(c *Config, n int) { c.RDMA.Moderation.Period = uint16(n) }),
		number(whole("cq_moderation.count", "GCCL_CQ_MODERATION_COUNT", 0, 0xffff), "", "16", func(c *Config, n int) { c.RDMA.Moderation.Count = uint16(n) }),
		number(whole("memory.pool_size_gb", "GCCL_POOL_SIZE_GB", 1, 1<<16), "", "no bound", func(c *Config, n int) { c.RDMA.Pool = int64(n) << 30 }),
		number(whole("memory.chunk_size_mb", "GCCL_CHUNK_SIZE_MB", 1, 1<<16), "", "what one connection takes", func(c *Config, n int) { c.RDMA.Chunk = int64(n) << 20 }),
		flag("memory.hugepage", "GCCL_HUGEPAGE", func(c *Config, on bool) { c.RDMA.HugePages = on }),
		later(noGPU, settings.Setting{Name: "gpu_direct.enable", Env: "GCCL_GPU_DIRECT", Kind: settings.Switch}),
		later(noGPU, whole("gpu_direct.device_id", "GCCL_GPU_DEVICE_ID", 0, 1023)),
		text(settings.Setting{Name: "p2p_level", Env: "GCCL_P2P_LEVEL", Words: pathWords, NCCL: "NCCL_P2P_LEVEL", FromNCCL: levelOfNCCL, Default: "as far as the driver lets it"},
			func(c *Config) *string { return &c.P2PLevel }),
		text(settings.Setting{Name: "net_gdr_level", Env: "GCCL_NET_GDR_LEVEL", Words: pathWords, NCCL: "NCCL_NET_GDR_LEVEL", FromNCCL: levelOfNCCL, Default: "pxb"},
			func(c *Config) *string { return &c.GDRLevel }),
		text(settings.Setting{Name: "topo_file", Env: "GCCL_TOPO_FILE", NCCL: "NCCL_TOPO_FILE", Default: "none"}, func(c *Config) *string { return &c.Topology }),
		text(settings.Setting{Name: "topo_dump_file", Env: "GCCL_TOPO_DUMP_FILE", NCCL: "NCCL_TOPO_DUMP_FILE", Default: "none"}, func(c *Config) *string { return &c.TopologyDump }),

		{settings.Setting{Name: "faults", Env: "GCCL_FAULTS", EnvOnly: true, Check: func(text string) error { _, err := faulty.Parse(text); return err }, Default: "none"},
			func(c *Config, text string) { c.Hook, _ = faulty.Parse(text) }},
		{settings.Setting{Name: "first_seq", Env: "GCCL_FIRST_SEQ", EnvOnly: true, Check: func(text string) error {
			if _, err := strconv.ParseUint(text, 0, 64); err != nil {
				return fmt.Errorf("%q; want a whole number from 0 to 2^64-1", text)
			}
			return nil
		}, Default: "0"},
			func(c *Config, text string) { c.FirstSeq, _ = strconv.ParseUint(text, 0, 64) }},
	}
}

// otherVariables are gccl's, but no settings: they say who the rank is.
var otherVariables = []string{"GCCL_RANK", "GCCL_WORLD_SIZE", "GCCL_LOCAL_RANK", "GCCL_UNIQUE_ID", "GCCL_ROOT", "GCCL_SECRET", "GCCL_SECRET_FILE", "GCCL_JOB_ID"}

// ignoredNCCL says why variables are ignored that somebody may well miss.
var ignoredNCCL = map[string]string{
	"NCCL_PROTO":      "how a message is sent follows from its size and transport",
	"NCCL_GRAPH_FILE": "rings and trees are computed for the ranks there are",
	"NCCL_COMM_ID":    "set GCCL_ROOT=host:port",
	"NCCL_IB_PKEY":    "it is an index; set pkey, or GCCL_PKEY, to the P_Key itself",
}

// fitTogether checks values against each other, where both were meant for gccl.
func fitTogether(set *settings.Set) error {
	ours := func(name string) (settings.Value, bool) {
		v := set.Of(name)
		return v, v.Source != "" && !v.Foreign
	}
	if pkey, is := ours("pkey"); is {
		for _, name := range []string{"gid_index", "traffic_class"} {
			if v, both := ours(name); both {
				return fmt.Errorf("%s: pkey is for InfiniBand and %s (%s) for RoCE; leave one of them out", pkey.Source, name, v.Source)
			}
		}
	}
	pool, isPool := ours("memory.pool_size_gb")
	chunk, isChunk := ours("memory.chunk_size_mb")
	if isPool && isChunk {
		gb, _ := strconv.Atoi(pool.Text)
		mb, _ := strconv.Atoi(chunk.Text)
		if mb > gb<<10 {
			return fmt.Errorf("%s: memory.chunk_size_mb is %d, more than the whole pool of %d GiB (%s)", chunk.Source, mb, gb, pool.Source)
		}
	}
	return nil
}

// tell logs what came of what was said to NCCL, and what looks like a mistake.
func tell(log *slog.Logger, set *settings.Set) {
	for _, text := range set.Warnings {
		log.Warn("configuration: " + text)
	}
	if len(set.Ignored) > 0 {
		log.Warn("configuration: NCCL's variables that mean nothing to gccl: " + strings.Join(set.Ignored, ", "))
	}
	for _, text := range set.Honoured {
		log.Info("configuration: " + text)
	}
}

func checkDuration(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d <= 0 {
		return fmt.Errorf("%q is not a positive duration such as 30s", text)
	}
	return nil
}

func checkFilter(text string) error {
	_, err := topology.ParseFilter(text)
	return err
}

func checkHostID(text string) error {
	if len(text) > 256 {
		return fmt.Errorf("%d bytes; want at most 256", len(text))
	}
	return nil
}

func checkShmDir(text string) error {
	if !filepath.IsAbs(text) {
		return fmt.Errorf("%q; want an absolute path", text)
	}
	return nil
}

func checkMTU(text string) error {
	if n, _ := strconv.Atoi(text); n&(n-1) != 0 {
		return fmt.Errorf("%s; want 256, 512, 1024, 2048 or 4096", text)
	}
	return nil
}

func parsePorts(text string) (bootstrap.PortRange, error) {
	low, high, ok := strings.Cut(text, "-")
	l, err1 := strconv.ParseUint(low, 10, 16)
	h, err2 := strconv.ParseUint(high, 10, 16)
	if !ok || err1 != nil || err2 != nil || l == 0 || l > h {
		return bootstrap.PortRange{}, fmt.Errorf("%q, want LOW-HIGH within 1-65535", text)
	}
	return bootstrap.PortRange{Low: uint16(l), High: uint16(h)}, nil
}

// algorithmOfNCCL takes one name. Lists, exclusions and names for one kind of collective have no counterpart.
func algorithmOfNCCL(text string) (string, error) {
	word := strings.ToLower(strings.TrimSpace(text))
	if !slices.Contains(algorithmNames(), word) {
		return "", fmt.Errorf("want one algorithm of gccl's: %s", strings.Join(algorithmNames(), ", "))
	}
	return word, nil
}

func debugOfNCCL(text string) (string, error) {
	words := map[string]string{"version": "info", "warn": "warn", "info": "info", "abort": "warn", "trace": "debug", "none": ""}
	word, ok := words[strings.ToLower(strings.TrimSpace(text))]
	if !ok {
		return "", fmt.Errorf("want VERSION, WARN, INFO, ABORT or TRACE")
	}
	return word, nil
}

// levelOfNCCL knows the numbers that levels had before they had names.
func levelOfNCCL(text string) (string, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 0 {
			return "", nil
		}
		return [...]string{"loc", "pix", "pxb", "phb", "sys"}[min(n, 4)], nil
	}
	return text, nil
}
