package topology

import (
	"io/fs"
	"strings"
)

// Host is what [Discover] read: the raw facts from which [Host.Graph] is made and by which the choices are explained. What
// could not be read is unknown, with the reason. It is plain data.
type Host struct {
	CPU    CPUFacts    `json:"cpu"`
	Memory MemoryFacts `json:"memory"`

	PCI   Fact[[]PCIFacts]  `json:"pci"` // by bus id
	IOMMU Fact[IOMMU]       `json:"iommu"`
	Nets  Fact[[]NetFacts]  `json:"net"`
	RDMA  Fact[[]RDMAFacts] `json:"rdma"`
	GPUs  Fact[[]GPUFacts]  `json:"gpus"` // the driver's; the GPUs on PCI are in PCI

	PeerMemory Fact[string] `json:"peer_memory"` // the module that lets NICs register GPU memory, "" if none is loaded
}

// GPUFacts is what a GPU's driver says of it. It is given to [Discover]: reading it takes the vendor's library.
type GPUFacts struct {
	Bus     string               `json:"bus"`
	Dev     int                  `json:"dev"` // the driver's number
	UUID    string               `json:"uuid,omitempty"`
	Name    string               `json:"name,omitempty"`
	SM      int                  `json:"sm,omitempty"`     // compute capability × 10
	Memory  int64                `json:"memory,omitempty"` // bytes
	NVLinks []NVLinkFacts        `json:"nvlinks,omitempty"`
	P2P     map[string]P2PStatus `json:"p2p,omitempty"` // by the peer's bus id
	Fabric  Fabric               `json:"fabric,omitzero"`
	DMABuf  Fact[bool]           `json:"dmabuf"` // whether its memory can be given to NICs as DMA-BUF
	MIG     bool                 `json:"mig,omitempty"`
	Parts   []string             `json:"parts,omitempty"` // UUIDs of those that MIG has made of it
}

// NVLinkFacts is a bundle of NVLinks to one other device.
type NVLinkFacts struct {
	Target string `json:"target"` // its bus id
	Class  string `json:"class"`  // its PCI class; 0x068000 is a switch
	Count  int    `json:"count"`
}

// Discover reads a host below root: the root folder itself (os.DirFS("/")) or a recorded copy with /sys, /proc and /dev, whose
// symbolic links were kept. Of /proc it reads what belongs to /proc/self. It changes nothing, needs no rights, and never fails:
// what it may not or can't read is unknown.
//
// Gpus are the GPU driver's facts, or the reason why there are none; GPUs are then known by their PCI class.
func Discover(root fs.FS, gpus Fact[[]GPUFacts]) *Host {
	s := sysfs{root}
	h := &Host{CPU: s.cpuFacts(), Memory: s.memoryFacts(), PCI: s.pciFacts(), IOMMU: s.iommu(), GPUs: gpus, PeerMemory: s.peerMemory()}
	h.Nets = s.netFacts()
	h.RDMA = s.rdmaFacts(h.Nets.Or(nil))
	return h
}

// peerMemory looks for the modules that NICs register GPU memory through. DMA-BUF needs none of them; whether it works the
// GPU's driver knows.
func (s sysfs) peerMemory() Fact[string] {
	for _, m := range []string{"nv_mem", "nv_mem_nc", "amdkfd"} {
		if _, err := fs.Stat(s.root, "sys/kernel/mm/memory_peers/"+m); err == nil {
			return Known(m)
		}
	}
	return then(s.text("proc/modules"), func(modules string) (string, error) {
		for line := range strings.Lines(modules) {
			name, rest, _ := strings.Cut(line, " ")
			if (name == "nvidia_peermem" || name == "nv_peer_mem") && strings.Contains(rest, "Live") {
				return name, nil
			}
		}
		return "", nil
	})
}
