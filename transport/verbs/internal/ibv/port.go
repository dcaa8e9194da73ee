package ibv

import "fmt"

// Port is a port of a device.
type Port struct {
	Number    uint8
	State     PortState
	LinkLayer LinkLayer
	MaxMTU    MTU
	ActiveMTU MTU
	LID       uint16
	SMLID     uint16
	GIDs      int // length of the table
	PKeys     int
	MaxMsg    uint32 // bytes
	Width     uint8  // code of the number of lanes
	Speed     uint8  // code of the speed of a lane
}

// PortState is a port's.
type PortState uint32

// States of a port.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return "PORT_" + names[s]
	}
	return fmt.Sprintf("port state %d", uint32(s))
}

// LinkLayer is what a port is connected to.
type LinkLayer uint8

// Link layers. Old devices leave theirs unspecified, which means InfiniBand.
const (
	Unspecified LinkLayer = iota
	InfiniBand
	Ethernet
)

func (l LinkLayer) String() string {
	switch l {
	case InfiniBand, Unspecified:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return fmt.Sprintf("link layer %d", uint8(l))
}

// MTU is the code of a path's MTU: 1 is 256 bytes, 5 is 4096.
type MTU uint32

// Bytes is the MTU in bytes, or 0 for a code that is none.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// GID is an entry of a port's GID table.
type GID [16]byte

// GIDType is what frames with a GID are like.
type GIDType uint32

// Types of GIDs.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCE1              // Ethernet frames that no router forwards
	GIDRoCE2              // UDP, port 4791
)

func (t GIDType) String() string {
	switch t {
	case GIDInfiniBand:
		return "IB"
	case GIDRoCE1:
		return "RoCE v1"
	case GIDRoCE2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID type %d", uint32(t))
}

// GIDEntry is a GID with its place.
type GIDEntry struct {
	GID    GID
	Index  int
	Port   int
	Type   GIDType
	NetDev int // index of the network interface; 0: none
}

// Limits are a device's.
type Limits struct {
	Firmware                       string
	Vendor                         uint32
	MaxQP, MaxQPWR, MaxSGE         int
	MaxCQ, MaxCQE, MaxMR, MaxPD    int
	MaxRDAtomic, MaxInitRDAtomic   int // as the target and as the source
	MaxSRQ, MaxSRQWR, MaxAH, Ports int
	MaxMRBytes                     uint64
	Atomics                        bool
	XRC                            bool
}

// CapXRC is the bit of a device's capabilities for XRC.
const CapXRC = 1 << 20

// Access is what a registration or a QP allows.
type Access uint32

// Rights.
const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	OnDemand        Access = 1 << 6
	HugeTLB         Access = 1 << 7
	RelaxedOrdering Access = 1 << 20 // ignored by what does not know it
)

// Caps are a QP's capacities, asked for and given.
type Caps struct{ SendWR, RecvWR, SendSGE, RecvSGE, Inline uint32 }

// Event is an asynchronous event of a device.
type Event uint32

// Events that someone decides on.
const (
	EventCQErr       Event = 0
	EventQPFatal     Event = 1
	EventDeviceFatal Event = 8
	EventPortActive  Event = 9
	EventPortErr     Event = 10
)
