// Package transport is the contract between the engine, which runs plans, and
// the ways bytes reach another rank: shared memory, TCP, RDMA, in-process memory. It is interfaces, values and errors only.
//
// # Shape
//
// An Endpoint is one communicator family's presence on a transport: it has an
// Address that peers learn from the bootstrap. A Conn joins a pair of ranks of
// one communicator on one channel. A Conn carries Streams, numbered from 0 and
// independent of each other: what one lane of the engine uses. A Stream is an
// ordered sequence of messages in each direction, each a whole piece of a
// collective, at most Options.MaxMessage bytes.
//
// Every call returns at once: it does what can be done now and says whether
// that was all. There is no queue of work requests and completions between the
// engine and a Stream, because a lane waits for exactly one thing at a time,
// and asking that one thing costs a few nanoseconds where a queue costs
// tens; what needs batching (doorbells, half-written sockets) happens in
// Endpoint.Progress.
//
// # Promises
//
// A transport promises, and transporttest checks:
//   - Messages of one direction of a stream arrive once, whole and in the order
//     of Send, or the stream fails with an error that names the conn. A
//     duplicate, reordered, truncated or (with Options.Checksum) altered frame
//     is found by number and is an error, never wrong data.
//   - A Send never waits for the reader's attention, only for room.
//   - Streams of a conn do not block one another.
//   - Connecting is asynchronous: Conn returns at once and needs no step of the
//     peer's user. Until the connection is there Send may say "no room" and
//     receives say "not yet".
//   - The death of the peer is an error wrapping ErrGone on every stream that
//     waits for it.
//   - What our own end lacks, memory or descriptors, is an OwnError, and no ErrGone.
//   - After Endpoint.Leave nothing of that communicator's is left at either end, once what was sent has been read or its reader has left, too.
//   - After Endpoint.Close no goroutine, descriptor, mapping or file is left, and
//     no peer can touch our memory.
//
// # Duties
//
// The caller promises: all methods of an endpoint and what hangs off it are
// called by one goroutine at a time (the holder of the engine's driver token),
// except Address, Close and those documented otherwise; at most one view per
// stream is out at a time; a receive that was started is asked again with the
// same arguments until it is done.
package transport

import (
	"context"
	"time"
	"unsafe"
)

// Key names a connection: the pair (Self, Peer) of ranks on a channel of a
// communicator. Both ends hold the same Comm and Channel, with Self and Peer
// exchanged.
type Key struct {
	Comm       uint64 // communicator id
	Channel    int32  // ≥ 0 collectives; PointToPoint for Send and Recv
	Self, Peer int32  // ranks in Comm
}

// PointToPoint is the channel of point-to-point messages.
const PointToPoint int32 = -1

// Buf is the memory of one message, borrowed by the transport: a sent one until
// Stream.Sent counts it, a received one until Recv says done. Ptr may be nil
// only when N is 0.
type Buf struct {
	Ptr unsafe.Pointer
	N   int // bytes
	// Shared says that Ptr lies in memory from the endpoint's Allocator, or from
	// another's that may be registered with it: a send may then lend it to the peer,
	// or to a device, instead of copying it.
	Shared bool
	// Cold says that what is received will not be read soon, being a part of much: a copy of it
	// may go past the caches.
	Cold bool
}

// Options are set once per endpoint, and MaxMessage, Streams and Checksum must
// be equal on all ranks. Providers check them and name the bad field.
type Options struct {
	Streams    int    // streams per conn, 1…64
	MaxMessage int    // longest message in bytes, 64…64 MiB; longer ones are refused at both ends
	Secret     []byte // proven to peers before anything of theirs is parsed; empty: unauthenticated
	Checksum   bool   // CRC-32C over every payload
	FirstSeq   uint64 // number of the first message of every stream (tests start it near its wrap)
	// Wake makes a sleeping driver look again. The transport calls it, from any
	// goroutine, when something arrived by a way that is neither a Bell nor a
	// descriptor. Nil: nobody sleeps.
	Wake func()
	// Hook, when set, is asked before each outgoing message: fault injection for tests.
	Hook Hook
}

// Endpoint is our end of a transport. See the package comment for who may call.
type Endpoint interface {
	// Name is the transport's: "shm", "tcp", "verbs", "mem".
	Name() string
	// Address is what a peer needs to reach us, opaque, at most 1 KiB, constant.
	// It may be called by anyone.
	Address() []byte
	// Reach proves that this end can reach the peer with that address, and
	// prepares for it (maps its segment). Nil means yes; an error says why not
	// in words a user can act on and is kept as the reason for the choice of
	// another transport. A transport that can only find out by connecting
	// returns nil. It may block until ctx ends and may be called by anyone.
	Reach(ctx context.Context, address []byte) error
	// Conn returns the connection with that key, and begins to connect it to the
	// peer at address if this is the first call with the key. It does not block.
	Conn(key Key, address []byte) (Conn, error)
	// Progress moves what streams have accepted but not yet handed over (half
	// written sockets, batched doorbells), and reports whether anything moved.
	Progress() bool
	// Leave says that our user has closed all conns of that communicator and asks for no more. What peers have connected for it, or will, is
	// closed and forgotten, and they get ErrLeft, as from a conn that was opened and closed; what conns that we have closed had sent is still
	// there for them to read. It does not block. Again, of one that there never was, and after Close it is in order.
	Leave(comm uint64)
	// Stats may be called by anyone.
	Stats() Stats
	// Close breaks all conns and frees everything. Idempotent; may be called by
	// anyone at any time, once no other method is running. Memory from the
	// Allocator is gone afterwards.
	Close() error
}

// Conn is one connection. Its streams live until the endpoint or the conn is
// closed.
type Conn interface {
	// Stream returns stream i, 0 ≤ i < Options.Streams; always the same value.
	Stream(i int) Stream
	// Peer describes the other end for errors and logs: "rank 3 at 192.0.2.1:4711".
	Peer() string
	// Met reports whether the peer's user has been at the other end, as far as we
	// have looked: that the endpoints are connected does not mean that. Of one
	// that went away and was never met, nothing can be on its way for long.
	Met() bool
	// Close ends the connection in both directions once what was sent has been
	// handed over or the peer is known to be gone; the peer's streams get ErrGone
	// when they have read what was sent before. The memory of all that was sent is
	// its owner's again afterwards, counted by Sent or not: the peer reads it as it
	// was, or gets ErrGone. Idempotent.
	Close() error
}

// Stream is an ordered sequence of messages each way. After an error every later
// call on the stream returns an error.
type Stream interface {
	// Send hands b to the peer as the next message. The tag travels with it and
	// must be the one the receiver asks with. False means no room now: try again.
	Send(tag uint32, b Buf) (bool, error)
	// Sent counts the messages of this stream, from the first one on, whose
	// memory is ours again. It never decreases.
	Sent() (uint64, error)
	// Recv receives the next message into b, which must have exactly its length.
	// False means not yet: call again with the same arguments.
	Recv(tag uint32, b Buf) (bool, error)
	// View shows the next message, of n bytes, where it lies (for n = 0 any
	// non-nil pointer). Nil means not yet. The memory is valid and must only be
	// read until Release.
	View(tag uint32, n int) (unsafe.Pointer, error)
	// Release ends the view, and with it our use of the peer's memory. An error says that what was seen may have been something else: the
	// peer lent its memory and closed the connection before we were done, so that it may have written there.
	Release() error
}

// Awaiter is an optional power of a Stream: the 64-bit word in memory that
// changes when the next message arrives. The engine spins on it in a few
// instructions instead of calling View or Recv in a loop.
type Awaiter interface {
	// Awaits returns the word and the value it has as long as nothing arrived.
	// The word stays readable as long as the stream lives. Nil: not now.
	Awaits() (word *uint64, idle uint64)
}

// Stager is an optional power of a Stream that copies what it sends into memory where the peer reads it: a message can be made there, piece
// by piece, while what it is made of is still in a near cache.
type Stager interface {
	// Stage returns memory for the next message, of n bytes, or nil where Send is the way now. The message is put there by Fill and sent by
	// SendStaged, or the memory is forgotten; nothing else is sent on the stream in between.
	Stage(n int) unsafe.Pointer
	// Fill copies n bytes to there, or to memory that is lent next, in the way that is best for who reads them.
	Fill(dst, src unsafe.Pointer, n int)
	// SendStaged is Send of the memory that Stage returned last.
	SendStaged(tag uint32, n int) error
	// Lends reports whether Send lends Shared memory of n bytes now, rather than copying it.
	Lends(n int) bool
	// FillsLent reports whether a message that is made in memory to be lent is better made elsewhere and put there by Fill: the peer's processor is
	// so far that what it reads next is better stored past the caches, or it is time to find out whether it is.
	FillsLent() bool
}

// Lander is an optional power of a Stager: a message can be made in memory of the peer's, where the peer wants to receive it.
type Lander interface {
	Stager
	// Land says that b is where the message from the peer will be received that comes after ahead others. It is Shared memory that nobody else
	// writes, and that nobody reads, before Recv of that message into b is done or the conn is closed. It is a hint: b is also right when the
	// message comes another way. One message at a time can have a place.
	Land(ahead uint64, b Buf)
	// Landing is like Stage, but what it returns is where the peer wants the next message, or nil if that is not known. A failed or closed
	// conn of the peer's is no error to what is written there then: it is lost.
	Landing(n int) unsafe.Pointer
}

// Allocator is an optional power of an Endpoint: memory that peers on this
// transport, or its devices, can read where it lies.
type Allocator interface {
	// Alloc returns zeroed, page-aligned memory of at least n bytes, or an error
	// naming what is missing. It may be called by anyone.
	Alloc(n int64) (unsafe.Pointer, error)
	// Free takes what Alloc returned. It may be called by anyone, once no call uses the memory.
	Free(p unsafe.Pointer) error
	// Owns reports whether the n bytes at p lie in memory that Alloc returned, or that is registered. It may be called by anyone.
	Owns(p unsafe.Pointer, n int64) bool
}

// Bell is an optional power of an Endpoint whose peers wake a sleeper through
// shared memory. The driver calls Arm, looks at its streams once more, sleeps in
// FUTEX_WAIT (not private) while *Word is 1, and calls Disarm. A peer that finds
// the word 1 after publishing a message sets it to 0 and wakes the futex.
type Bell interface {
	Arm()
	Disarm()
	Word() *uint32
}

// Pollable is an optional power of an Endpoint that learns of arrivals from the
// kernel: FD is an epoll descriptor that becomes readable when anything has
// happened since it was last found readable and drained with epoll_wait
// (edge-triggered). Constant for the endpoint's life. Ask for it before each
// sleep, as the driver does: an endpoint may only then begin to watch.
type Pollable interface{ FD() int }

// Stats are the endpoint's counters since it was opened, and the memory it holds
// now. They count what was handed over, not what the peer has read.
type Stats struct {
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64
	Conns                          int
	Memory                         int64 // bytes of buffers and segments, without Allocator memory
	Allocated                      int64 // bytes given out by the Allocator
}

// Hook decides the fate of an outgoing message. It may be called by several
// goroutines for several endpoints.
type Hook func(Frame) Fate

// Frame describes an outgoing message to a Hook.
type Frame struct {
	Transport string
	Key       Key
	Stream    int
	Seq       uint64 // number of the message in its stream
	Bytes     int
}

// Fate is what a Hook wants done to a message. The zero value lets it pass.
type Fate struct {
	Drop  bool          // the message is counted as sent and never arrives
	Reset bool          // the connection breaks, for both ends, instead
	Twice bool          // the message arrives twice
	Delay time.Duration // the message and those behind it arrive that much later
	Flip  int           // if > 0, bit Flip-1 of the payload is flipped on its way

	// Of mem alone; other transports let the message pass.
	Reorder  bool // the next message of the stream arrives before it; where none follows, it arrives when the sender closes
	Truncate int  // if > 0, so many bytes of the payload's end are lost on its way, or all there are
}
