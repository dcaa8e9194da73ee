package comm

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/gccl-project/gccl/transport/verbs"
)

// Config says who we are and how to work. What is zero is taken from files and the environment of the process (see LoadConfig),
// then from defaults, so the zero value works under a launcher. New checks it once and names the field and value that it
// cannot use.
type Config struct {
	// Rank and Size: which member of how many. Size 0 means: from the environment, gccl's own (GCCL_RANK,
	// GCCL_WORLD_SIZE, GCCL_UNIQUE_ID or GCCL_ROOT) or torchrun's, and one rank alone without either, with a warning if mpirun or srun says
	// that it started more.
	Rank, Size int
	// ID is where the ranks meet, the same on all of them: bootstrap.ID of a root that somebody serves. Zero: from
	// the environment. One rank alone needs none.
	ID bootstrap.ID

	// File is the configuration file. Empty: the one that GCCL_CONFIG names, or none.
	File string
	// Transport is "auto": the best for each pair: shared memory where it can be proven, RDMA between hosts whose topologies have ports that
	// speak to each other, if the memory that it takes may be pinned, and unless NoRDMA; else TCP; or "shm", "tcp", "verbs": that one or an error; or "mem": Memory. RDMA devices that are
	// software are not used unless RDMADevice names them.
	Transport string
	// Algorithm, of collective.Catalog, for every call that names none. Empty: the tuner's choice.
	Algorithm string
	// Interface is a filter in the syntax of GCCL_SOCKET_IFNAME. Empty: the interface that leads to the root.
	Interface string

	// RDMADevice is a filter in the syntax of GCCL_RDMA_DEVICE: which ports of which RDMA devices to use, all at once. Empty: the one
	// that the topology chooses for our GPU or, without one, for the processors that we may run on; Comm.Site says which, and why.
	RDMADevice string
	// NoRDMA has "auto" do without RDMA.
	NoRDMA bool
	// RDMAPin binds all threads of the process, for good, to the processors near the RDMA port that it uses, of those that it may use: whoever
	// waits polls the port.
	RDMAPin bool
	// NoRDMAFallback makes a connection whose last QP has failed an error; else it goes on over TCP until one works again. It must be
	// equal on all ranks.
	NoRDMAFallback bool
	// RDMA is how connections over RDMA are made. Its address, TCP ports, time-out of connecting, log and fallback are ours, and its Devices
	// RDMADevice's unless they are set.
	RDMA verbs.Config
	// Device is the GPU of this rank, for calls on its memory. Zero: none. Several ranks may share one. A rank without a
	// device leaves a communicator to host memory.
	Device kernels.Device
	// CPU names the kernels that fold host memory, of cpu.Implementations. Empty: the fastest. All give the same bits.
	CPU string

	// Topology is a file that says how this host's devices hang together, where that is not what the system says, as in virtual
	// machines: NCCL's XML, gccl's JSON or the output of nvidia-smi topo -m. Empty: none. TopologyDump is a file that rank 0 writes its
	// host's topology to, as XML.
	Topology, TopologyDump string
	// P2PLevel is how far GPUs may be from each other to use each other's memory, GDRLevel how far a GPU from a network port that reads
	// its memory, in NCCL's words from "loc" to "sys". Empty: P2P as far as the driver lets it, ports through switches ("pxb").
	P2PLevel, GDRLevel string

	InitTimeout time.Duration // of New and Split; 0: 60 s
	CallTimeout time.Duration // of every call; 0: 10 min
	WarnAfter   time.Duration // log the ranks that a call waits for; 0: 10 s

	Logger *slog.Logger   // nil: warnings to stderr
	Driver *engine.Driver // nil: one for the process

	// Lanes is how many rounds of a message are in flight, 1…16; 0: 4. MaxMessage is the longest piece on the wire in bytes;
	// 0: 1 MiB. Both must be equal on all ranks.
	Lanes      int
	MaxMessage int
	// Checksum protects every payload by CRC-32C. It must be equal on all ranks.
	Checksum bool
	// HostID stands for the host's boot id in deciding who shares memory. Empty: the boot id.
	HostID string
	// ShmDir is where ranks of one host meet to share memory: a directory that they share, in which nothing takes room; empty: /dev/shm.
	ShmDir string
	// Recorder is a directory: a communicator that fails, or that gets a SIGUSR1, writes its Record there, and logs where. Empty: none. A launcher that
	// ends all ranks when one fails must leave them time for that: gccl run does where GCCL_RECORDER says so, and can't see what is set here.
	Recorder string
	// Ports limits the ports we listen at.
	Ports bootstrap.PortRange

	// For tests. Memory joins ranks of one process for Transport "mem", Network replaces TCP for the bootstrap, Hook sees every
	// message before it is sent, FirstSeq is the number of every stream's first message.
	Memory   *mem.Network
	Network  bootstrap.Network
	Hook     transport.Hook
	FirstSeq uint64

	// Who named Topology, and whether that was said to NCCL.
	topologyFrom    string
	topologyForeign bool
}

// Transports are what Config.Transport may say.
var transports = []string{"auto", "shm", "tcp", "verbs", "mem"}

// LoadConfig returns the configuration that the files and variables of the sources ask for, apart from rank, size and id, and
// the settings it comes from. Package settings says which source goes before which, and `gccl config` shows what came of it:
//
//	GCCL_CONFIG          a file, TOML or JSON, with the names that `gccl config` lists
//	GCCL_TRANSPORT       auto, shm, tcp, verbs
//	GCCL_ALGO            name of an algorithm
//	GCCL_SOCKET_IFNAME   interface filter: eth, =eth1, ^docker,lo
//	GCCL_P2P_LEVEL       how far GPUs may be from each other to use each other's memory: loc, nvl, pix, pxb, phb, sys
//	GCCL_NET_GDR_LEVEL   how far from a network port that uses their memory
//	GCCL_TOPO_FILE       a topology file, GCCL_TOPO_DUMP_FILE one to write
//	GCCL_RDMA_DEVICE     filter of RDMA devices and ports: mlx5_0, =mlx5_0:1,mlx5_1:1, ^mlx5_bond
//	GCCL_RDMA            false: no RDMA unless the transport is verbs
//	GCCL_RDMA_PIN        run near the RDMA port
//	GCCL_QP_COUNT, GCCL_QP_BUDGET, GCCL_GID_INDEX, GCCL_MTU, GCCL_TRAFFIC_CLASS, GCCL_SERVICE_LEVEL, GCCL_PKEY, GCCL_IB_TIMEOUT,
//	GCCL_IB_RETRY_CNT, GCCL_RDMA_FALLBACK, GCCL_CQ_MODERATION, GCCL_POOL_SIZE_GB, GCCL_CHUNK_SIZE_MB, GCCL_HUGEPAGE   see verbs.Config
//	GCCL_CPU             avx2, generic: the kernels that fold host memory
//	GCCL_HOSTID          host identity
//	GCCL_SHM_DIR         directory where ranks of one host meet to share memory
//	GCCL_PORT_RANGE      LOW-HIGH
//	GCCL_CHECK           none, crc
//	GCCL_RECORDER        directory for records of failures, see gccl recorder
//	GCCL_INIT_TIMEOUT, GCCL_CALL_TIMEOUT, GCCL_WARN_AFTER   durations such as 30s
//	GCCL_DEBUG           debug, info, warn, error: what is logged to stderr
//	GCCL_FAULTS          fault injection for tests, see transport/faulty
//	GCCL_FIRST_SEQ       number of the first message, for tests
func LoadConfig(from settings.Sources) (Config, *settings.Set, error) {
	var c Config
	rows := table()
	list := make([]settings.Setting, len(rows))
	for i, row := range rows {
		list[i] = row.Setting
	}
	set, err := settings.Resolve(list, otherVariables, ignoredNCCL, from)
	if err == nil {
		err = fitTogether(set)
	}
	if err != nil {
		return c, nil, &misconfigured{fmt.Errorf("comm: configuration: %w", err)}
	}
	for i, v := range set.Values {
		if v.Text != "" && rows[i].put != nil {
			rows[i].put(&c, v.Text)
		}
	}
	if v := set.Of("topo_file"); v.Text != "" {
		c.topologyFrom, c.topologyForeign = v.Source, v.Foreign
	}
	return c, set, nil
}

// or takes what is zero from another configuration.
func (c Config) or(e Config) Config {
	c.Transport, c.Algorithm, c.Interface = cmp.Or(c.Transport, e.Transport), cmp.Or(c.Algorithm, e.Algorithm), cmp.Or(c.Interface, e.Interface)
	if c.Topology == "" {
		c.Topology, c.topologyFrom, c.topologyForeign = e.Topology, e.topologyFrom, e.topologyForeign
	}
	c.TopologyDump, c.P2PLevel, c.GDRLevel = cmp.Or(c.TopologyDump, e.TopologyDump), cmp.Or(c.P2PLevel, e.P2PLevel), cmp.Or(c.GDRLevel, e.GDRLevel)
	c.CPU, c.RDMADevice, c.RDMA = cmp.Or(c.CPU, e.CPU), cmp.Or(c.RDMADevice, e.RDMADevice), orRDMA(c.RDMA, e.RDMA)
	c.HostID, c.ShmDir, c.Recorder = cmp.Or(c.HostID, e.HostID), cmp.Or(c.ShmDir, e.ShmDir), cmp.Or(c.Recorder, e.Recorder)
	c.InitTimeout, c.CallTimeout, c.WarnAfter = cmp.Or(c.InitTimeout, e.InitTimeout), cmp.Or(c.CallTimeout, e.CallTimeout), cmp.Or(c.WarnAfter, e.WarnAfter)
	c.Ports, c.FirstSeq = cmp.Or(c.Ports, e.Ports), cmp.Or(c.FirstSeq, e.FirstSeq)
	c.Logger = cmp.Or(c.Logger, e.Logger)
	c.Checksum = c.Checksum || e.Checksum
	c.NoRDMA, c.NoRDMAFallback, c.RDMAPin = c.NoRDMA || e.NoRDMA, c.NoRDMAFallback || e.NoRDMAFallback, c.RDMAPin || e.RDMAPin
	if c.Hook == nil {
		c.Hook = e.Hook
	}
	return c
}

// orRDMA is Config.or for what settings say about RDMA.
func orRDMA(c, e verbs.Config) verbs.Config {
	c.GIDIndex, c.MTU, c.TrafficClass, c.ServiceLevel, c.PKey = cmp.Or(c.GIDIndex, e.GIDIndex), cmp.Or(c.MTU, e.MTU), cmp.Or(c.TrafficClass, e.TrafficClass), cmp.Or(c.ServiceLevel, e.ServiceLevel), cmp.Or(c.PKey, e.PKey)
	c.Timeout, c.Retry, c.QPs, c.Budget = cmp.Or(c.Timeout, e.Timeout), cmp.Or(c.Retry, e.Retry), cmp.Or(c.QPs, e.QPs), cmp.Or(c.Budget, e.Budget)
	c.Moderation, c.Pool, c.Chunk, c.HugePages = cmp.Or(c.Moderation, e.Moderation), cmp.Or(c.Pool, e.Pool), cmp.Or(c.Chunk, e.Chunk), cmp.Or(c.HugePages, e.HugePages)
	return c
}

// withDefaults checks the configuration and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	orDuration := func(d *time.Duration, name string, def time.Duration) error {
		if *d < 0 {
			return fmt.Errorf("comm: Config.%s is %v, want a positive duration", name, *d)
		}
		if *d == 0 {
			*d = def
		}
		return nil
	}
	orInt := func(n *int, name string, def, low, high int) error {
		if *n == 0 {
			*n = def
		}
		if *n < low || *n > high {
			return fmt.Errorf("comm: Config.%s is %d, want %d…%d", name, *n, low, high)
		}
		return nil
	}
	if c.Transport == "" {
		c.Transport = "auto"
	}
	for _, err := range []error{
		orDuration(&c.InitTimeout, "InitTimeout", 60*time.Second),
		orDuration(&c.CallTimeout, "CallTimeout", 10*time.Minute),
		orDuration(&c.WarnAfter, "WarnAfter", 10*time.Second),
		orInt(&c.Lanes, "Lanes", 4, 1, 16),
		orInt(&c.MaxMessage, "MaxMessage", 1<<20, transport.MinMessage, transport.MostMessage),
	} {
		if err != nil {
			return c, err
		}
	}
	if !slices.Contains(transports, c.Transport) {
		return c, fmt.Errorf("comm: Config.Transport is %q, want one of %v", c.Transport, transports)
	}
	if c.Transport == "mem" && c.Memory == nil && c.Size > 1 {
		return c, fmt.Errorf("comm: Config.Transport is mem, but Config.Memory is nil")
	}
	if _, err := topology.ParseFilter(c.Interface); err != nil {
		return c, fmt.Errorf("comm: Config.Interface: %w", err)
	}
	if err := checkHostID(c.HostID); err != nil {
		return c, fmt.Errorf("comm: Config.HostID: %w", err)
	}
	if c.ShmDir != "" {
		if err := checkShmDir(c.ShmDir); err != nil {
			return c, fmt.Errorf("comm: Config.ShmDir: %w", err)
		}
	}
	for _, l := range []struct{ field, word string }{{"P2PLevel", c.P2PLevel}, {"GDRLevel", c.GDRLevel}} {
		if l.word != "" && !slices.Contains(pathWords, l.word) {
			return c, fmt.Errorf("comm: Config.%s is %q, want one of %v", l.field, l.word, pathWords)
		}
	}
	c.topologyFrom = cmp.Or(c.topologyFrom, "Config.Topology")
	if _, err := topology.ParseFilter(c.RDMADevice); err != nil {
		return c, fmt.Errorf("comm: Config.RDMADevice: %w", err)
	}
	if c.Algorithm != "" && !knownAlgorithm(c.Algorithm) {
		return c, fmt.Errorf("comm: Config.Algorithm is %q, want one of %v", c.Algorithm, algorithmNames())
	}
	if _, err := cpu.Choose(c.CPU); err != nil {
		return c, fmt.Errorf("comm: Config.CPU: %w", err)
	}
	if c.Size < 0 || c.Rank < 0 || c.Size > 0 && c.Rank >= c.Size {
		return c, fmt.Errorf("comm: Config.Rank is %d of Size %d", c.Rank, c.Size)
	}
	if c.Logger == nil {
		c.Logger = stderrLogger("warn")
	}
	if c.Driver == nil {
		c.Driver = processDriver()
	}
	return c, nil
}
