// Package topology describes the machine a rank runs on and chooses among its parts.
//
// # What there is
//
// [Discover] reads a host's /sys and /proc into a [Host]: raw facts, each of them known or unknown with the reason. [Host.Graph]
// makes of it a [Graph] in NCCL's words: nodes (GPU PCI NVS CPU NIC NET), links (NVL C2C PCI SYS NET) and paths
// (LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS DIS) with NCCL's bandwidths. [Parse] reads a graph from NCCL's topology XML, from the
// matrix of nvidia-smi topo -m or from gccl's JSON instead, and [Merge] places a host's devices as such a file says.
//
// # What to choose
//
// Everything else is a pure function of these, and says its reasons as data:
//
//   - [Choose] the network interface that ranks meet on, among [Interfaces]
//   - [ChoosePorts] and [ChooseGID] which RDMA ports to use, and from which address
//   - [Graph.PairNICs] and [Graph.HostNIC] the network port of each GPU, and of host memory
//   - [Graph.Transport] and [Between] how two ranks reach each other
//   - [Graph.Pin] the CPUs for what serves a device, and [Host.Share] those of each rank
//   - [Orders] in which order schedules pass through the ranks of a job, on each channel
//   - [Rings], [Trees] and [Channels] along which edges a job's GPUs pass data
//
// So a recorded host gives the same answers as the live one, and every rank that has the graphs of all hosts comes to the same
// plan. Graphs travel as JSON, and [Graph.Digest] tells whether two ranks have the same.
//
// # What it promises and what it asks
//
// Only Interfaces, and below the root that they are given Discover, ReadMemory and ReadText, look at the machine; none changes it or needs
// rights. What can't be read, and input that makes no sense, is never a crash or a guess: it is unknown with a reason, or an error that
// says where. A Graph must not be changed while others read it.
//
//	host := topology.Discover(os.DirFS("/"), topology.Unknown[[]topology.GPUFacts]("NVML was not asked"))
//	graph := host.Graph()
//	for _, c := range graph.PairNICs(graph.GPUs()) {
//		fmt.Println(graph.Name(c.GPU), graph.Name(c.Net), c.Path.Type, c.Reasons)
//	}
//	rings, err := topology.Rings([]topology.Local{topology.AllOf(graph)}, 0)
//
// [EncodeAddr] and [FormatAddr] are how an address travels to another host: without the scope of a link-local address, which
// means something only on the host that wrote it.
package topology
