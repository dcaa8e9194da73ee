package ibv

// Send is a work request for a send queue. It has no pointers and the layout of gv_send in shim.h.
type Send struct {
	ID           uint64
	Addr         uint64 // of one piece of registered memory, or with Inline of any; unused if Bytes is 0
	Bytes        uint32
	LKey         uint32
	Addr2        uint64 // of a second piece, which goes behind the first; unused if Bytes2 is 0
	Bytes2       uint32
	LKey2        uint32
	Remote       uint64 // address in the peer's memory
	RKey         uint32
	Op           Opcode
	Flags        uint32 // Fence, Signaled, Solicited, Inline
	Imm          uint32
	AddOrCompare uint64 // FetchAdd, CompareSwap; the AddressHandle's number on a UD QP
	Swap         uint64
	RemoteQP     uint32 // UD
	RemoteQKey   uint32 // UD
}

// Recv is a receive request. With Bytes 0 it takes an immediate only.
type Recv struct {
	ID    uint64
	Addr  uint64
	Bytes uint32
	LKey  uint32
}

// Completion says what became of a request. Only ID, Status, Vendor and QP mean anything when it failed.
type Completion struct {
	ID     uint64
	Status Status
	Op     WCOpcode
	Vendor uint32 // the provider's own error number
	Bytes  uint32 // received
	Imm    uint32 // if Flags has WithImm
	QP     uint32
	Source uint32 // QP of the sender (UD)
	Flags  uint32
}

// Opcode is what a Send does.
type Opcode uint32

// Opcodes of requests.
const (
	Write Opcode = iota
	WriteWithImm
	SendOp
	SendWithImm
	Read
	CompareSwap
	FetchAdd
)

// Flags of a Send.
const (
	Fence     = 1 << iota // wait for earlier reads and atomics
	Signaled              // make a completion also on success
	Solicited             // wake a peer that armed its CQ for solicited completions only
	Inline                // read the memory before Post returns
)

// WCOpcode is what completed.
type WCOpcode uint32

// Completed operations. Those of receives have the bit WCRecv.
const (
	WCSend             WCOpcode = 0
	WCWrite            WCOpcode = 1
	WCRead             WCOpcode = 2
	WCCompareSwap      WCOpcode = 3
	WCFetchAdd         WCOpcode = 4
	WCRecv             WCOpcode = 128
	WCRecvWriteWithImm WCOpcode = 129
)

// WithImm is the flag of a Completion that carries an immediate.
const WithImm = 1 << 1
