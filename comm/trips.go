package comm

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// trips are a proxy's other way, where nobody else of the world has the GPU: a kernel of one block does all that a short call needs there, in a
// quarter of the time, and can be captured in a graph. Several processes take turns to compute on a GPU, and each would wait
// in its turn for the others.
type trips struct {
	device               *opened
	words                cuda.Pinned
	told, id, done, stop *atomic.Uint32
	count                kernels.Mem
	area                 cuda.Pinned // of inputs, and behind it of results
	served               uint32      // the last that the host began; of proxy.serve alone
	begun                uint32      // eager ones; the proxy's lock is held
	mu                   sync.Mutex
	captured             [][]leg // by id: what the host does
	graphs               atomic.Bool
}

const (
	tripBytes = 64 << 10 // longer calls are the copy engines'
	tripRoom  = proxyRoom
	eager     = 1 << 31 // of ids: the others are captured
)

func newTrips(d *opened, base uint32) (t *trips, err error) {
	t = &trips{device: d, served: base}
	if t.words, err = d.AllocPinned(4096); err != nil {
		return t, err
	}
	clear(unsafe.Slice((*byte)(t.words.Host), cuda.TripWordsBytes))
	word := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(t.words.Host, at)) }
	t.told, t.id, t.done, t.stop = word(cuda.TripTold), word(cuda.TripID), word(cuda.TripDone), word(cuda.TripStop)
	t.told.Store(base)
	t.done.Store(base)
	if t.area, err = d.AllocPinned(2 * tripRoom); err != nil {
		return t, err
	}
	if t.count, err = d.Alloc(8); err != nil {
		return t, err
	}
	from := [2]uint32{base, base}
	return t, d.CopyNow(t.count.Ptr, unsafe.Pointer(&from), 8)
}

// close frees everything. None is under way.
func (t *trips) close() (err error) {
	if t == nil {
		return nil
	}
	for _, p := range []cuda.Pinned{t.words, t.area} {
		if p.Host != nil {
			err = errors.Join(err, t.device.FreePinned(p))
		}
	}
	if t.count.Ptr != nil {
		err = errors.Join(err, t.device.Free(t.count))
	}
	return err
}

// end lets the kernels go that wait. What they bring is undefined.
func (t *trips) end() {
	if t != nil && t.stop != nil {
		t.stop.Store(1)
	}
}

// come returns what a kernel that waits asks for, if it was captured. Of proxy.serve alone.
func (t *trips) come() *round {
	if t == nil || !t.graphs.Load() || t.told.Load() != t.served+1 {
		return nil
	}
	id := t.id.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if id >= uint32(len(t.captured)) {
		return nil
	}
	return &round{kernel: true, id: id, legs: slices.Clone(t.captured[id])}
}

// begin gives a round that has come its number. Of proxy.serve alone.
func (t *trips) begin(r *round) *round {
	t.served++
	r.came, r.trip = true, t.served
	return r
}

// idOf is the id of a captured trip. Those for which the host does the same share one: nobody says when a graph is destroyed, and to capture a call again
// and again takes no more memory.
func (t *trips) idOf(legs []leg) uint32 {
	does := make([]leg, len(legs))
	for i := range legs {
		does[i].call = legs[i].call
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, l := range t.captured {
		if slices.Equal(l, does) {
			return uint32(id)
		}
	}
	t.captured = append(t.captured, does)
	return uint32(len(t.captured) - 1)
}

// travels reports whether the batch can be one trip.
func (b *batch) travels() bool {
	if b.proxy.trips == nil || b.rounds > 1 {
		return false
	}
	room, parts := int64(tripBytes), 0
	if b.captured {
		room = tripRoom
	}
	for i := range b.calls {
		parts += min(b.calls[i].in, 1) + min(b.calls[i].out, 1)
		if b.calls[i].call.Factor.At != nil {
			parts++
		}
	}
	in, out := b.need()
	return max(in, out) <= room && parts <= cuda.MaxParts
}

// travel queues the batch as one trip.
func (b *batch) travel() error {
	y, t := b.proxy, b.proxy.trips
	r := &round{kernel: true, ops: 1}
	in, out := t.area.Host, unsafe.Add(t.area.Host, tripRoom)
	b.legs(r, 0, in, out)
	if len(r.legs) == 0 {
		return nil
	}
	if b.captured {
		r.id = t.idOf(r.legs)
	} else {
		t.begun++
		r.id = t.begun | eager
	}
	var x cuda.Trip
	x.Reset(t.words.Device, t.count.Ptr, r.id)
	add := func(isOut bool, m blocks, host unsafe.Pointer) {
		if m.rows > 0 {
			x.Add(isOut, m.at, unsafe.Add(t.area.Device, uintptr(host)-uintptr(t.area.Host)), m.pitch, m.bytes, m.rows)
		}
	}
	for i := range r.legs {
		l := &r.legs[i]
		add(false, l.in, l.call.Src.Ptr)
		add(false, l.factor, l.call.Factor.At)
		add(true, l.out, l.call.Dst.Ptr)
	}
	if b.captured {
		if !t.graphs.Swap(true) {
			y.rounds <- nil // who waits for rounds has to look for replays, too
		}
		return y.device.LaunchTrip(&x, b.stream())
	}
	if err := y.ease(r.ops); err != nil {
		return err
	}
	if err := y.device.LaunchTrip(&x, b.stream()); err != nil {
		return err
	}
	y.rounds <- r
	return nil
}
