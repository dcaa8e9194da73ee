package ibv

import "fmt"

// State is a QP's.
type State uint32

// States of a QP.
const (
	Reset State = iota
	Init
	RTR // ready to receive
	RTS // ready to send
	SQD // send queue drained
	SQE // send queue error
	Err
)

func (s State) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// QPType is the service that a QP gives.
type QPType uint32

// Services.
const (
	RC QPType = 2 // reliable, connected
	UC QPType = 3 // unreliable, connected
	UD QPType = 4 // datagrams
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("QP type %d", uint32(t))
}

// Mask names fields of an Attr.
type Mask uint32

// Fields of an Attr.
const (
	MaskState           Mask = 1 << 0
	MaskAccess          Mask = 1 << 3
	MaskPKey            Mask = 1 << 4
	MaskPort            Mask = 1 << 5
	MaskQKey            Mask = 1 << 6
	MaskAV              Mask = 1 << 7
	MaskMTU             Mask = 1 << 8
	MaskTimeout         Mask = 1 << 9
	MaskRetry           Mask = 1 << 10
	MaskRNRRetry        Mask = 1 << 11
	MaskRQPSN           Mask = 1 << 12
	MaskMaxRDAtomic     Mask = 1 << 13
	MaskMinRNRTimer     Mask = 1 << 15
	MaskSQPSN           Mask = 1 << 16
	MaskMaxDestRDAtomic Mask = 1 << 17
	MaskDestQPN         Mask = 1 << 20
)

// Attr is what Modify sets and Query tells. Mask says which fields count.
type Attr struct {
	Mask            Mask
	State           State
	Access          Access
	PKeyIndex       uint16
	Port            uint8
	QKey            uint32
	AV              AddressVector
	MTU             MTU
	DestQPN         uint32
	RQPSN, SQPSN    uint32 // 24 bits
	Timeout         uint8  // 4.096 µs × 2^Timeout until a packet is sent again; 0: for ever
	Retry           uint8  // 0…7
	RNRRetry        uint8  // 0…6; 7: for ever
	MinRNRTimer     uint8  // code of the pause before a receiver that was not ready is asked again; 12: 0.64 ms
	MaxRDAtomic     uint8  // reads and atomics under way
	MaxDestRDAtomic uint8
}

// AddressVector is the way to a peer's port.
type AddressVector struct {
	Global       bool // GID counts, as always with RoCE
	GID          GID
	GIDIndex     uint8 // ours
	HopLimit     uint8
	TrafficClass uint8
	FlowLabel    uint32
	LID          uint16
	SL           uint8 // service level
	Port         uint8 // ours
}
