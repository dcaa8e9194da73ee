package transport

import "github.com/gccl-project/gccl/kernels"

// Registrar is an optional power of an Endpoint whose peers can use its memory without its doing, by a Conn that is OneSided.
type Registrar interface {
	// Register lets peers that get the Region's token read and change the memory, which stays as it is until the Region is closed: of the
	// host, whole pages that the caller has mapped for that, outside Go's heap; of a GPU that the endpoint was told of, any part of an
	// allocation. A part of what is registered may be registered once more, which costs nothing. It may be called by anyone. Errors say
	// what the device or the system lacks.
	Register(m kernels.Mem) (Region, error)
}

// Region is registered memory of ours.
type Region interface {
	// Token is what a peer needs to use the memory: opaque, at most 1 KiB. It may be called by anyone. Memory that the device does not get at by
	// itself has none: that is an error wrapping errors.ErrUnsupported which says why; operations of ours can still use it.
	Token() ([]byte, error)
	// String says where the memory is and how the device gets at it, with the reasons against better ways. It may be called by anyone.
	String() string
	// Close takes the memory back; afterwards no peer can touch it, and what one has under way breaks its connection. It fails as long as
	// operations of ours use the memory. It may be called by anyone.
	Close() error
}

// Window is a peer's registered memory.
type Window interface {
	Bytes() int64
}

// OneSided is an optional power of a Conn: operations on the peer's memory in which the peer takes no part. They are performed in the order
// in which they were accepted. A Region or Window of another transport, and bytes outside of one, are an error that ends nothing. False means
// no room now: drive the endpoint and try again.
type OneSided interface {
	// Window is the peer's memory with a token that it gave us.
	Window(token []byte) (Window, error)
	// Get copies n bytes from the offset in the window to at in our region.
	Get(to Region, at int64, from Window, offset int64, n int) (bool, error)
	// FetchAdd adds to the 8 bytes at the offset in the window, in the byte order of the hosts, and puts what was there at at in our region.
	// Both are multiples of 8. No other operation on the same device's port comes in between.
	FetchAdd(to Region, at int64, on Window, offset int64, add uint64) (bool, error)
	// CompareSwap is the same, and replaces old by new if it finds it.
	CompareSwap(to Region, at int64, on Window, offset int64, old, new uint64) (bool, error)
	// Performed counts the operations whose results are in our memory, where the processor, or work that the GPU begins from now on, sees
	// them. After an error the outcome of the others is unknown: each was
	// performed once or not at all.
	Performed() (uint64, error)
}
