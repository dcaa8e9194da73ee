package doctor

import "slices"

// Check is what is looked at, and why.
type Check struct{ ID, Why string }

// Checks returns all checks in the order of their findings.
func Checks() []Check { return slices.Clone(checks) }

var checks = []Check{
	{"transports", "gccl uses the fastest of them that two ranks have in common"},
	{"setting_file", "a file that a setting names and that is wrong ends a job where it is read; one that can't be written is missed when it is too late"},
	{"socket_interface", "ranks meet, and talk where there is nothing faster, over this interface; the others must reach its address"},
	{"firewall", "ranks listen on TCP ports, and RoCE is UDP to port 4791: what is dropped on the way looks like a peer that never answers"},
	{"bond", "one connection uses one member of a bond; with a hash that looks at MAC addresses alone all connections to a peer use the same"},
	{"cpu_quota", "when the quota is used up all threads stop for the rest of its period, also those that others wait for"},
	{"numa", "threads and buffers far from a device cross the link between sockets"},
	{"shm_size", "ranks of one host meet in /dev/shm, or in GCCL_SHM_DIR, and use TCP where there is none; what they share is not in it, so its size does not matter to gccl"},
	{"shm_leftovers", "what crashed jobs left where ranks meet stays until somebody removes it: sockets of gccl's, which take no room, and segments of NCCL's, which do"},
	{"open_files", "every connection takes a file descriptor"},
	{"huge_pages", "large registered buffers take fewer entries in a network card's translation tables with huge pages"},
	{"ptrace", "reading a peer's memory in place (process_vm_readv) saves a copy; it needs the rights of ptrace"},
	{"rdma", "without RDMA hosts talk over TCP"},
	{"rdma_access", "applications reach RDMA devices through /dev/infiniband"},
	{"rdma_port", "a port that is not active carries nothing"},
	{"rdma_software", "Soft-RoCE and siw do RDMA on the CPU: right for tests, no faster than TCP"},
	{"rdma_gid", "connections made from a wrong GID time out: RoCE v2 at a routable address is needed, whatever its index"},
	{"rdma_mtu", "small packets cost bandwidth, and both ends must use the smaller of their MTUs"},
	{"rdma_rate", "a slot that is narrower or slower than the port bounds its bandwidth"},
	{"rdma_congestion", "RoCE loses packets where neither PFC nor ECN keeps queues short, and each loss stalls a connection"},
	{"rdma_firmware", "hosts of a job should have the same firmware and drivers"},
	{"memlock", "memory that a network card reads must be locked; beyond the limit, registering it or creating a queue fails with ENOMEM"},
	{"gpu", "GPU memory is exchanged by the GPUs themselves where they can reach each other"},
	{"gpu_driver", "hosts of a job should have the same driver, and the fabric manager must have its version"},
	{"gpu_mig", "parts of one GPU (MIG) can't reach other GPUs' memory"},
	{"gpu_p2p", "where the driver refuses P2P, GPUs exchange data through host memory"},
	{"nvlink_fabric", "GPUs behind NVSwitches can't be used until the fabric manager has set these up"},
	{"acs", "a port with ACS redirection sends traffic between devices up to the CPU: P2P and GPUDirect RDMA are slow, hang, or are wrong"},
	{"iommu", "an IOMMU that translates addresses slows P2P and GPUDirect RDMA down, and makes them wrong on some hosts"},
	{"gpu_direct", "without peer memory or DMA-BUF network cards can't read GPU memory, and all of it is copied through the host"},
	{"gpu_nic_distance", "GPUDirect RDMA is fast through PCI switches and slow through a CPU"},
	{"plan_qps", "a device has so many queue pairs, for all its users together"},
	{"plan_cq_entries", "a completion queue that can't hold all completions overflows, and its connections are lost"},
	{"plan_pinned_bytes", "buffers of all connections are locked at once"},
	{"plan_open_files", "a rank that may not open another file can't connect"},
	{"against_rdma_mtu", "both ends of a connection use the smaller MTU"},
	{"against_rdma_link", "an InfiniBand port can't talk to an Ethernet one, and the slower port bounds the job"},
	{"against_gid", "ranks whose addresses are of different families or RoCE versions can't connect"},
	{"against_subnet", "ports of different subnets reach each other through a router alone"},
	{"against_gpu", "a job goes as fast as its slowest GPU"},
	{"against_versions", "different kernels, drivers and firmware are the first suspects when only some hosts misbehave"},
}
