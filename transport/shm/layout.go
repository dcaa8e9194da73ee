//go:build linux && (amd64 || arm64)

package shm

import (
	"hash/fnv"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

const (
	segmentMagic  = 0x316d6873_6c636367 // "gcclshm1"
	layoutVersion = 5

	lengthMask = 1<<30 - 1
	farBit     = 1 << 30
	lentBit    = 1 << 31 // and it lies in memory that is its user's again when the connection is closed
	landedBit  = 1 << 32 // and it lies in the receiver's segment, where a landing was; only without checksums, whose bit it is
	ackShift   = 48      // from here on, how many messages its sender has read, modulo 2¹⁶; only without checksums

	headerBytes   = 8192 // header and first piece of the directory
	firstPieceAt  = 4096
	pieceEntries  = 64 // in the first piece; each further one has twice as many
	pieces        = 12
	entryBytes    = 64
	probeDistance = 8 // entries of a piece that a key may be in
	leftMost      = 256
)

// header is the beginning of a segment. Words that are written while peers read
// them are at least 128 bytes apart, since caches fetch lines in pairs.
type header struct {
	magic      uint64 // stored last
	version    uint32
	streams    uint32
	size       uint64
	nonce      [16]byte
	maxMessage uint64
	firstSeq   uint64
	checksum   uint32
	pid        uint32

	piece [pieces]uint64 // offset of each piece of the directory, 0: not there yet
	full  uint32         // 1: the directory could not grow
	shut  uint32         // 1: the endpoint was closed
	_     [88]byte

	gen   uint64 // counts changes of the directory, full, shut and leaves
	_     [120]byte
	sleep uint32 // 1: the owner sleeps and wants a futex wake; see transport.Bell
	_     [124]byte

	counters counters
	_        [96]byte

	leaves uint64           // communicators that the owner has left
	left   [leftMost]uint64 // the latest of them, a ring
}

// counters have one writer, the driver of the segment's owner, and readers that
// load them atomically. They are in mapped memory because there a plain store to
// an aligned word is enough; an atomic one would be a fence more per message.
type counters struct{ messagesSent, messagesReceived, bytesSent, bytesReceived uint64 }

// States of an entry.
const (
	entryFree    = 0
	entryOpen    = 1 << 0
	entryClosed  = 1 << 1 // this end neither sends nor reads any more
	entryRefused = 1 << 2 // no room for the rings or the staging of this end
	entryBroken  = 1 << 3 // broken on purpose: transport.Fate.Reset
)

// entry is one end of a connection in the directory of its segment.
type entry struct {
	state   uint64 // stored last
	comm    uint64
	channel int32
	from    int32
	to      int32
	_       int32
	ring    uint64 // offset of the rings, 0: nothing was sent yet
	id      uint64 // of this use of the entry; never repeats
	ack     uint64 // the peer stores id here when it has closed its end
	_       uint64
}

// is and becomes are atomic, word by word: plain accesses may pass those of id and state, between which they must stay, on arm64.
func (e *entry) is(k transport.Key, from, to int32) bool {
	return atomic.LoadUint64(&e.comm) == k.Comm && atomic.LoadInt32(&e.channel) == k.Channel && atomic.LoadInt32(&e.from) == from && atomic.LoadInt32(&e.to) == to
}

func (e *entry) becomes(k transport.Key) {
	atomic.StoreUint64(&e.comm, k.Comm)
	atomic.StoreInt32(&e.channel, k.Channel)
	atomic.StoreInt32(&e.from, k.Self)
	atomic.StoreInt32(&e.to, k.Peer)
}

// Both ends must agree, in any build: a fixed hash.
func hashKey(k transport.Key, from, to int32) uint64 {
	var b [20]byte
	*(*uint64)(unsafe.Pointer(&b)) = k.Comm
	*(*int32)(unsafe.Pointer(&b[8])) = k.Channel
	*(*int32)(unsafe.Pointer(&b[12])) = from
	*(*int32)(unsafe.Pointer(&b[16])) = to
	h := fnv.New64a()
	h.Write(b[:])
	return h.Sum64()
}

// slots calls f for the entries of piece i, which begins at p, that may hold the
// key with that hash, until f returns false.
func slots(p unsafe.Pointer, i int, hash uint64, f func(*entry) bool) {
	n := uint64(pieceEntries) << i
	for k := range uint64(probeDistance) {
		if !f((*entry)(unsafe.Add(p, (hash+k)%n*entryBytes))) {
			return
		}
	}
}

// mapping is a segment in our address space. Offsets are checked by the caller.
type mapping struct {
	base unsafe.Pointer
	size int64
}

func (m mapping) at(off int64) unsafe.Pointer { return unsafe.Add(m.base, off) }
func (m mapping) header() *header             { return (*header)(m.base) }

// holds reports whether n bytes at off, a multiple of align, lie in the mapping
// behind its header.
func (m mapping) holds(off uint64, n, align int64) bool {
	return off >= headerBytes && off <= uint64(m.size) && n >= 0 && uint64(n) <= uint64(m.size)-off && off%uint64(align) == 0
}

// offset is the inverse of at; false when the n bytes at p are not all inside.
func (m mapping) offset(p unsafe.Pointer, n int) (int64, bool) {
	off := int64(uintptr(p) - uintptr(m.base))
	return off, uintptr(p) >= uintptr(m.base) && n >= 0 && off <= m.size && int64(n) <= m.size-off
}

// find returns the entry of the connection k in the direction from → to, and its
// id, or nil. It trusts nothing that it reads; check proves that a part of the
// mapping can be read.
func (m mapping) find(k transport.Key, from, to int32, check func(off, n int64) error) (*entry, uint64, error) {
	hash := hashKey(k, from, to)
	var found *entry
	var id uint64
	for i := range pieces {
		off, n := atomic.LoadUint64(&m.header().piece[i]), int64(pieceEntries<<i*entryBytes)
		if off == 0 {
			break
		}
		if i == 0 && off != firstPieceAt || i > 0 && !m.holds(off, n, entryBytes) {
			return nil, 0, &descriptorError{What: "a piece of the directory", Offset: off, Bytes: n, Segment: m.size}
		}
		if i > 0 {
			if err := check(int64(off), n); err != nil {
				return nil, 0, err
			}
		}
		slots(m.at(int64(off)), i, hash, func(e *entry) bool {
			if atomic.LoadUint64(&e.state) == entryFree {
				return true
			}
			id = atomic.LoadUint64(&e.id)
			if e.is(k, from, to) && atomic.LoadUint64(&e.id) == id && atomic.LoadUint64(&e.state) != entryFree {
				found = e
			}
			return found == nil
		})
		if found != nil {
			return found, id, nil
		}
	}
	return nil, 0, nil
}

// left reports whether the owner has left that communicator, as far as it remembers: whoever does not look while it leaves so many more does not hear of it.
func (m mapping) left(comm uint64) bool {
	h := m.header()
	for i := range min(atomic.LoadUint64(&h.leaves), leftMost) {
		if atomic.LoadUint64(&h.left[i]) == comm {
			return true
		}
	}
	return false
}

func (m mapping) bytes(off, n int64) []byte { return unsafe.Slice((*byte)(m.at(off)), n) }
