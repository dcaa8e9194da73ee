package cuda

import (
	"math/bits"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Limits of a [Trip].
const (
	MaxParts    = 16
	tripThreads = 512
)

// TripWords is where a device's trips and the host tell each other, in pinned memory of at least TripWordsBytes bytes: 32-bit words, by their
// offsets, zero at first. Trips of the same words go one at a time, whatever streams they are on.
const (
	TripTold       = 0  // the number of the last trip whose input is there, from 1 on
	TripID         = 4  // … and its id
	TripDone       = 64 // the host stores here the number of the last trip whose result is there
	TripStop       = 68 // … and here anything but 0 if there will be no more: then trips bring what is there
	TripWordsBytes = 128
)

// A Trip is a launch of one block that takes input to the host's memory, tells it so, waits for its word, and brings the result. It takes a
// multiprocessor's part while it waits. It may be captured, and each replay is a trip of its own.
type Trip struct{ args tripArgs }

type tripArgs struct {
	words, count uint64
	id, parts    uint32
	part         [MaxParts]tripPart
}

type tripPart struct {
	device, host, pitch uint64
	bytes, rows         uint32
	out, unit           uint32
}

// Reset empties it. count are two words of the device's memory, zero at first, for the trips of these words alone. (Where trips count from another
// number on, all words but the last have it.)
func (x *Trip) Reset(words, count unsafe.Pointer, id uint32) {
	x.args.words, x.args.count, x.args.id, x.args.parts = uint64(uintptr(words)), uint64(uintptr(count)), id, 0
}

// Add appends rows of bytes to be taken to the host, or brought from there. On the device each begins a pitch behind the one before, on the host,
// in pinned memory given by its address for kernels, where that one ends. It reports false if there is no room. All rows together are less than 4 GiB.
func (x *Trip) Add(out bool, device, host unsafe.Pointer, pitch, bytes int64, rows int) bool {
	a := &x.args
	if a.parts == MaxParts || bytes*int64(rows) >= 1<<32 {
		return false
	}
	p := tripPart{device: uint64(uintptr(device)), host: uint64(uintptr(host)), pitch: uint64(pitch), bytes: uint32(bytes), rows: uint32(rows)}
	if out {
		p.out = 1
	}
	all := p.device | p.host | uint64(bytes) | 16
	if rows > 1 {
		all |= p.pitch
	}
	p.unit = 1 << bits.TrailingZeros64(all)
	a.part[a.parts] = p
	a.parts++
	return true
}

// LaunchTrip queues it on a stream.
func (d *Device) LaunchTrip(x *Trip, on Stream) error {
	most := uint32(32)
	for _, p := range x.args.part[:x.args.parts] {
		most = max(most, p.bytes/p.unit*p.rows)
	}
	l := [1]cu.Launch{{Function: d.table[TripBytes], Columns: 1, Rows: 1, Threads: min((most+31)/32*32, tripThreads)}}
	return cu.LaunchJoined(d.ctx, l[:], unsafe.Pointer(&x.args), 0, on, nil, nil, 0)
}
