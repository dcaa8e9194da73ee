//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// lane is one stream's slots in both directions, counted from 0.
type lane struct {
	posted uint64    // slots that we wrote
	credit uint64    // of those, read by the peer
	by     []uint8   // by slot: the queue that carries the piece that begins there, or inside, or delivered
	redo   [4]uint64 // a bit for each slot whose piece is to be written again
	second []replay  // slots that may still be written a second time

	arrived  tally   // slots that the peer wrote, as their seals or their completions say
	noticed  tally   // of those, whose completions were taken
	span     []uint8 // by slot: how many the piece takes that begins there
	consumed uint64  // of those that arrived, read by us
	told     uint64  // of those, as the peer knows
	ends     bool    // there will be no more than
	last     uint32  // so many, modulo 2^24
}

// What stands in lane.by for no queue.
const (
	inside    = 0xff
	delivered = 0xfe // what was there is not in the slot, and the peer's device has it
)

func newLane(slots int) lane { return lane{by: make([]uint8, slots), span: make([]uint8, slots)} }

// tally counts slots that come in any order.
type tally struct {
	count uint64    // without a gap
	early [4]uint64 // a bit for each that came before one in front of it
}

// has reports whether a slot has come.
func (t *tally) has(slot, mask uint64) bool {
	return slot < t.count || t.early[slot&mask/64]&(1<<(slot&mask%64)) != 0
}

// mark counts n slots from one on, which have not come before.
func (t *tally) mark(slot, n, mask uint64) {
	for i := slot; i < slot+n; i++ {
		t.early[i&mask/64] |= 1 << (i & mask % 64)
	}
	for {
		word, bit := &t.early[t.count&mask/64], uint64(1)<<(t.count&mask%64)
		if *word&bit == 0 {
			return
		}
		*word &^= bit
		t.count++
	}
}

// free is how many slots the peer may fill again: those that were read and whose completions were taken, too. So what the peer
// writes always finds receives, of which each completion takes one.
func (n *lane) free() uint64 { return min(n.consumed, n.noticed.count) }

// still reports whether nothing has come that was not read.
func (n *lane) still() bool {
	return n.arrived.count == n.consumed && n.noticed == n.arrived && n.noticed.early == [4]uint64{}
}

// credited takes in how many slots the peer says it has read, modulo mask + 1. What another QP has overtaken is less than we know.
func (n *lane) credited(count, mask uint32) error {
	step := uint64((count - uint32(n.credit)) & mask)
	if step > uint64(mask/2) {
		return nil
	}
	if step > n.posted-n.credit {
		return fmt.Errorf("the peer has read %d slots of the %d that are under way", step, n.posted-n.credit)
	}
	n.credit += step
	return nil
}

// holds is how many bytes of a piece fit into so many slots.
func (c *Config) holds(slots int) int { return slots*c.stride() - slotAlign }

// takes is how many slots a piece of n bytes takes.
func (c *Config) takes(n int) int { return max(1, (n+slotAlign+c.stride()-1)/c.stride()) }

// mask takes a slot's number to its place.
func (c *Config) mask() uint64 { return uint64(c.Slots - 1) }

// toEnd is how many slots there are from a slot to the end of its lane.
func (c *Config) toEnd(slot uint64) int { return c.Slots - int(slot&c.mask()) }

// slot is the place of a stream's slot in either half.
func (l *link) slot(stream int, count uint64) int {
	c := &l.e.config
	return (stream*c.Slots+int(count&c.mask()))*c.stride() + slotAlign - headerSize
}

// notice takes in a completion that says that a piece was written, from a slot on. It is what promises that the bytes are all there.
func (l *link) notice(stream int, count uint32) error {
	n, c := &l.lanes[stream], &l.e.config
	ahead := uint64((count - uint32(n.noticed.count)) & countMask)
	slot := n.noticed.count + ahead
	if slot-n.told >= uint64(c.Slots) || n.noticed.has(slot, c.mask()) {
		if l.broke && (ahead < uint64(c.Slots) || countMask+1-ahead <= uint64(c.Slots)) {
			return nil // sent again for nothing
		}
		return fmt.Errorf("slot %d of stream %d, want %d, of which %d are in use", count, stream, uint32(n.noticed.count)&countMask, n.noticed.count-n.told)
	}
	place := &n.span[slot&c.mask()]
	if !n.arrived.has(slot, c.mask()) {
		length := binary.LittleEndian.Uint32(l.rx[l.slot(stream, slot)+lengthAt:])
		room := min(c.toEnd(slot), c.Slots-int(slot-n.told))
		if int64(length) > int64(c.holds(room)) {
			return fmt.Errorf("piece of %d bytes in slot %d of stream %d, where %d slots are free", length, count, stream, room)
		}
		*place = uint8(c.takes(int(length)))
		n.arrived.mark(slot, uint64(*place), c.mask())
	}
	n.noticed.mark(slot, uint64(*place), c.mask())
	if l.owe(stream) {
		l.conn.enlist()
	}
	return n.credited(binary.LittleEndian.Uint32(l.rx[l.slot(stream, slot)+creditAt:]), ^uint32(0))
}

// peek finds a short piece in the next slot before its completion was taken, and reports whether there is a slot to be read.
func (l *link) peek(stream int) bool {
	n, c := &l.lanes[stream], &l.e.config
	if n.arrived.count == n.consumed && sealed(l.rx[l.slot(stream, n.consumed):], n.consumed+1) {
		n.span[n.consumed&c.mask()] = 1
		n.arrived.mark(n.consumed, 1, c.mask())
	}
	return n.arrived.count != n.consumed
}

// use is the word of the next slot to be read that counts how often it was written, and whether it says that it was once more.
func (l *link) use(stream int) (word *uint64, have uint64, written bool) {
	n := &l.lanes[stream]
	word = (*uint64)(unsafe.Pointer(&l.rx[l.slot(stream, n.consumed)+useAt]))
	have = atomic.LoadUint64(word)
	return word, have, have == n.consumed+1
}

// read ends the piece in the next slot. Where it went on over others their words are cleared, lest its bytes look like news there.
func (l *link) read(stream int) {
	n, c := &l.lanes[stream], &l.e.config
	next := n.consumed + uint64(n.span[n.consumed&c.mask()])
	for n.consumed++; n.consumed < next; n.consumed++ {
		word, _, _ := l.use(stream)
		atomic.StoreUint64(word, 0)
	}
}

// owe reports whether it is time to tell the peer what was read, and sees to it.
func (l *link) owe(stream int) bool {
	n := &l.lanes[stream]
	if l.conn == nil || l.conn.lost != nil || n.free()-n.told < uint64(l.e.config.Slots/2) {
		return false
	}
	l.conn.toCredit |= 1 << stream
	return true
}
