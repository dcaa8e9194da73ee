package cuda

import "unsafe"

// Messages is a launch of messages to other sites and from them, each direction of a pair a FIFO of LL128 groups in the receiver's memory for them. Its
// zero value is to be Reset. See messages.h.
type Messages struct {
	args  messagesArgs // first
	count int
	limit uint32 // warps
}

const (
	messageLines  = 256
	messageDepth  = 16
	messageRing   = messageLines * messageDepth * groupBytes
	messageRings  = 64 << 10 // where they begin in a site's memory
	messageBlocks = 32       // so that there is room beside exchanges: a warp for each line of two directions
	messagesTold  = 32
)

type messageArgs struct{ at, bytes, what uint64 }

type directionArgs struct {
	site, takes                  uint8
	first, messages, warp, warps uint16
	_                            uint16
}

type messagesArgs struct {
	abort, report, stage uint64
	me, directions       uint8
	_                    [6]uint8
	area                 [MaxSites]uint64
	direction            [2 * MaxSites]directionArgs
	message              [MaxMessages]messageArgs
	_                    [4096 - 288 - 24*MaxMessages]byte
}

// MaxMessages is the most of a launch.
const MaxMessages = 158

// MessageBytes is a site's memory for messages, of so many sites. It is zero at first, and the kernels' own.
func MessageBytes(sites int) int64 { return messageRings + int64(sites-1)*messageRing }

// Reset empties it. stage is the site's own for exchanges, areas are the sites' memory for messages; report is a MessageReport of the host's for each direction, at ReportOfMessages.
func (x *Messages) Reset(me int, stage unsafe.Pointer, areas []unsafe.Pointer, abort, report unsafe.Pointer, blocks int) {
	a := &x.args
	a.abort, a.report, a.stage, a.me, a.directions = uint64(uintptr(abort)), uint64(uintptr(report)), uint64(uintptr(stage)), uint8(me), 0
	for i, p := range areas {
		a.area[i] = uint64(uintptr(p))
	}
	x.count, x.limit = 0, uint32(max(1, min(blocks, messageBlocks))*wireThreads/32)
}

// Add appends a message to a site, or from it. Both ends name the same number of bytes, and the same what: where one names another, it is never
// taken. Those of one direction are added one after the other. It reports false if there is no room.
func (x *Messages) Add(site int, takes bool, at unsafe.Pointer, bytes int64, what uint64) bool {
	a := &x.args
	way := directionArgs{site: uint8(site), first: uint16(x.count)}
	if takes {
		way.takes = 1
	}
	if x.count == MaxMessages {
		return false
	}
	if n := a.directions; n == 0 || a.direction[n-1].site != way.site || a.direction[n-1].takes != way.takes {
		if int(n) == len(a.direction) {
			return false
		}
		a.direction[n] = way
		a.directions++
	}
	d := &a.direction[a.directions-1]
	d.messages++
	d.warps = max(d.warps, uint16(min(messageLines, max(1, (bytes+groupPayload-1)/groupPayload))))
	a.message[x.count] = messageArgs{uint64(uintptr(at)), uint64(bytes), what}
	x.count++
	return true
}

// parts gives every direction its share of the warps that may run, and small launches small blocks.
func (x *Messages) parts() (unsafe.Pointer, WireKernel, uint32, uint32) {
	a := &x.args
	most, sum := uint16(max(1, x.limit/uint32(max(1, a.directions)))), uint32(0)
	for i := range a.direction[:a.directions] {
		d := &a.direction[i]
		d.warps = min(d.warps, most)
		d.warp = uint16(sum)
		sum += uint32(d.warps)
	}
	s := shape{(sum + 3) / 4, 128}
	if sum > x.limit/4 {
		s = shape{(sum + wireThreads/32 - 1) / (wireThreads / 32), wireThreads}
	}
	return unsafe.Pointer(a), messagesBytes, s.blocks, s.threads
}

func (x *Messages) key(key []byte) []byte {
	a := &x.args
	key = append(key, unsafe.Slice((*byte)(unsafe.Pointer(a)), unsafe.Offsetof(a.message))...)
	return append(key, bytesOf(a.message[:x.count])...)
}

// A MessageReport says of a direction how many messages were begun and how many are over, and what the last ones are: message k, from 1 on, is
// What[(k-1) % len(What)]. The GPU writes it.
type MessageReport struct {
	Begun, Over uint32
	Moved       uint32 // something else now and then while a message goes on
	Waits       uint32 // something else every millisecond or two while any part of the GPU waits, also for messages that are over as far as it says
	What        [messagesTold]uint64
}

// ReportOfMessages is where the report on a direction is.
func ReportOfMessages(site int, takes bool) int64 {
	if takes {
		site += MaxSites
	}
	return int64(site) * int64(unsafe.Sizeof(MessageReport{}))
}
