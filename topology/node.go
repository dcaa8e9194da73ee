package topology

// Node is one part of a host. Of the details those of its type are set, and Bus where it sits on PCI.
type Node struct {
	Type   NodeType    `json:"type"`
	Parent NodeID      `json:"parent"` // CPU and NVS have none; always a node before this one
	Bus    *Bus        `json:"bus,omitempty"`
	CPU    *CPUDetails `json:"cpu,omitempty"`
	GPU    *GPUDetails `json:"gpu,omitempty"` // nil: known as a GPU by its class alone
	Net    *NetDetails `json:"net,omitempty"` // nil: a port presumed of a card known by its class alone
}

// Bus is a node's place on PCI. Empty strings and zeros are unknown.
type Bus struct {
	ID              string            `json:"id"` // 0000:17:00.0, in lower case
	Class           string            `json:"class,omitempty"`
	Vendor          string            `json:"vendor,omitempty"`
	Device          string            `json:"device,omitempty"`
	SubsystemVendor string            `json:"subsystem_vendor,omitempty"`
	SubsystemDevice string            `json:"subsystem_device,omitempty"`
	GTs             float64           `json:"gts,omitempty"`    // GT/s, of the slower of the device and the port above
	Width           int               `json:"width,omitempty"`  // lanes, of the narrower of the two
	Bridge          string            `json:"bridge,omitempty"` // the host bridge that it is below, such as pci0000:16
	Port            string            `json:"port,omitempty"`   // the switch or root port above
	ACS             ACSState          `json:"acs,omitempty"`    // of that port
	Extra           map[string]string `json:"extra,omitempty"`  // attributes of a file that gccl has no use for
}

// CPUDetails is what a NUMA node is made of.
type CPUDetails struct {
	NUMA   int               `json:"numa"` // -1: devices whose node is unknown hang here
	CPUs   CPUSet            `json:"cpus,omitempty"`
	Arch   string            `json:"arch,omitempty"`   // x86_64, arm64, ppc64
	Vendor string            `json:"vendor,omitempty"` // GenuineIntel, AuthenticAMD
	Family int               `json:"family,omitempty"`
	Model  int               `json:"model,omitempty"`
	Extra  map[string]string `json:"extra,omitempty"`
}

// GPUDetails is what is known of a GPU besides its place.
type GPUDetails struct {
	Dev    int               `json:"dev"`           // the driver's number; -1 unknown
	Rank   int               `json:"rank"`          // in the job that wrote the file; -1 none
	SM     int               `json:"sm,omitempty"`  // compute capability × 10, or AMD's number of compute units
	GCN    string            `json:"gcn,omitempty"` // AMD's architecture: 906, gfx942
	GDR    bool              `json:"gdr,omitempty"` // its memory can be registered with a NIC
	C2C    []C2C             `json:"c2c,omitempty"` // links to its CPU
	Fabric Fabric            `json:"fabric,omitzero"`
	UUID   string            `json:"uuid,omitempty"` // the driver's
	Extra  map[string]string `json:"extra,omitempty"`
}

// C2C is a bundle of chip-to-chip links between a GPU and its CPU.
type C2C struct {
	MBs   int `json:"mbs"` // MB/s of one link
	Count int `json:"count"`
}

// NetDetails is a port of a network card.
type NetDetails struct {
	Name    string            `json:"name"` // mlx5_0, eth0
	Dev     int               `json:"dev"`  // NCCL's number; -1 unknown
	Port    int               `json:"port"`
	Mbps    int               `json:"mbps,omitempty"`    // Mbit/s; 0 unknown
	Latency float64           `json:"latency,omitempty"` // µs
	GUID    string            `json:"guid,omitempty"`
	MaxConn int               `json:"maxconn,omitempty"`
	GDR     bool              `json:"gdr,omitempty"`    // it can reach GPU memory
	Kind    NetKind           `json:"kind,omitempty"`   // "" unknown
	Subnet  string            `json:"subnet,omitempty"` // of InfiniBand's or IP's addresses, as fe80::/64; "" unknown
	Down    string            `json:"down,omitempty"`   // why it can't be used, "" if it can
	Extra   map[string]string `json:"extra,omitempty"`
}

// NetKind is what a port speaks.
type NetKind string

// Kinds of ports. A RoCE port's net device is not a second port.
const (
	InfiniBand NetKind = "infiniband"
	RoCE       NetKind = "roce"
	Ethernet   NetKind = "ethernet" // sockets only
)

// Sockets reports whether a port has no RDMA. NCCL's files don't say; its ports of sockets are numbered 0, the others from 1.
func (d *NetDetails) Sockets() bool {
	return d.Kind == Ethernet || d.Kind == "" && d.Port == 0 && d.GUID != ""
}

// NVLink is a bundle of links that a GPU lists: to another GPU, to the switches or to a CPU. Both ends of a bundle may list it.
type NVLink struct {
	From   NodeID `json:"from"`
	To     NodeID `json:"to"`     // NoNode: a GPU that can't be seen here
	Target string `json:"target"` // the other end's bus id
	Count  int    `json:"count"`
	Class  string `json:"class,omitempty"` // the other end's PCI class
}
