package nvml

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/gccl-project/gccl/topology"
)

// Library is what is opened.
const Library = "libnvidia-ml.so.1"

// GPUs returns what NVML says of the GPUs that this process may see, in NVML's order, or why that is not known.
func GPUs() topology.Fact[[]topology.GPUFacts] { return gpus(Library) }

func gpus(library string) topology.Fact[[]topology.GPUFacts] {
	devices, err := read(library)
	if err != nil {
		return topology.Unknown[[]topology.GPUFacts]("%v", err)
	}
	facts, err := factsOf(devices)
	if err != nil {
		return topology.Unknown[[]topology.GPUFacts]("NVML: %v", err)
	}
	return topology.Known(facts)
}

// device is a GPU in NVML's own numbers.
type device struct {
	bus, uuid, name string
	major, minor    int // compute capability
	memory          int64
	mig             bool
	parts           []string
	links           []link // active ones
	fabric          *fabric
	peers           map[int][2]int // status of reading and writing, by the peer's number; -1: not known
}

type link struct {
	bus  string // of the other end
	kind int    // see switchEnd and gpuEnd
}

// hiddenSwitch stands for the switches whose bus ids a virtual machine or a fabric hides.
const hiddenSwitch = "ffff:ff:00.0"

// nvmlIntNvLinkDeviceType
const gpuEnd, switchEnd = 0, 2

type fabric struct {
	cluster [16]byte
	status  string // "" for success
	clique  uint32
	state   int
}

// factsOf puts NVML's numbers in topology's words.
func factsOf(devices []device) ([]topology.GPUFacts, error) {
	ids := make([]string, len(devices))
	for i, d := range devices {
		id, err := topology.ParseBusID(d.bus)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		ids[i] = id
	}
	facts := []topology.GPUFacts{}
	for i, d := range devices {
		f := topology.GPUFacts{
			Bus: ids[i], Dev: i, UUID: d.uuid, Name: d.name, SM: 10*d.major + d.minor, Memory: d.memory, MIG: d.mig, Parts: d.parts,
			NVLinks: bundles(d.links), DMABuf: topology.Unknown[bool]("NVML does not tell, only CUDA does"),
		}
		if d.fabric != nil {
			f.Fabric = d.fabric.fact()
		}
		for j, s := range d.peers {
			if f.P2P == nil {
				f.P2P = map[string]topology.P2PStatus{}
			}
			f.P2P[ids[j]] = worse(status(s[0]), status(s[1]))
		}
		facts = append(facts, f)
	}
	return facts, nil
}

// bundles counts the links to each other end.
func bundles(links []link) []topology.NVLinkFacts {
	var all []topology.NVLinkFacts
	at := map[string]int{}
	for _, l := range links {
		target, err := topology.ParseBusID(l.bus)
		if err != nil {
			if l.kind != switchEnd {
				continue
			}
			target = hiddenSwitch
		}
		class := ""
		switch l.kind {
		case switchEnd:
			class = "0x068000"
		case gpuEnd:
			class = "0x030200"
		}
		key := class + target
		if i, ok := at[key]; ok {
			all[i].Count++
			continue
		}
		at[key] = len(all)
		all = append(all, topology.NVLinkFacts{Target: target, Class: class, Count: 1})
	}
	return all
}

func (f *fabric) fact() topology.Fabric {
	states := []string{"not supported", "not started", "in progress", "completed"}
	state := "state " + strconv.Itoa(f.state)
	if f.state >= 0 && f.state < len(states) {
		state = states[f.state]
	}
	if f.state == 0 {
		return topology.Fabric{State: state} // the rest means nothing
	}
	h := hex.EncodeToString(f.cluster[:])
	cluster := h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	return topology.Fabric{State: state, Status: f.status, Cluster: cluster, Clique: int(f.clique)}
}

// status puts nvmlGpuP2PStatus in nvidia-smi's words.
func status(n int) topology.P2PStatus {
	words := []topology.P2PStatus{
		topology.P2POK, topology.P2PChipsetNotSupported, topology.P2PGPUNotSupported, topology.P2PTopologyNotSupported,
		topology.P2PDisabledByRegKey, topology.P2PNotSupported,
	}
	if n < 0 || n >= len(words) {
		return topology.P2PUnknown
	}
	return words[n]
}

func worse(read, write topology.P2PStatus) topology.P2PStatus {
	if read == topology.P2POK || read == topology.P2PUnknown && write != topology.P2POK {
		return write
	}
	return read
}
