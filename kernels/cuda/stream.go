package cuda

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// A Stream is a CUstream of a device's primary context, ours or anybody's. Zero is the default stream.
type Stream = cu.Stream

// A StreamID tells streams apart for the life of the process, as a Stream does not: that of one which was destroyed may be given to the next. 0 is no
// stream's. A driver of CUDA before 12.0 does not tell, and it is another one each time.
type StreamID = cu.StreamID

// Waits are events that a launch comes behind, each of which may be 0: that of another launch, which was on stream On, and one more.
type Waits = cu.Waits

// An Event is a CUevent.
type Event = cu.Event

// NewStream makes a stream that does not wait for the default stream. DestroyStream frees it.
func (d *Device) NewStream() (Stream, error) { return cu.StreamCreate(d.ctx, false) }

// NewPriorityStream is NewStream of the highest priority: its blocks start before those of others that wait for room.
func (d *Device) NewPriorityStream() (Stream, error) { return cu.StreamCreate(d.ctx, true) }

// DestroyStream frees a stream once its work is done, without waiting.
func (d *Device) DestroyStream(s Stream) error { return cu.StreamDestroy(d.ctx, s) }

// Wait waits for all work of a stream.
func (d *Device) Wait(s Stream) error { return cu.StreamSynchronize(d.ctx, s) }

// Done reports whether all work of a stream is done.
func (d *Device) Done(s Stream) (bool, error) { return cu.StreamDone(d.ctx, s) }

// Capturing reports whether the stream's work is being captured in a graph.
func (d *Device) Capturing(s Stream) (bool, error) {
	captured, _, err := cu.StreamCapturing(d.ctx, s)
	return captured, err
}

// Identify is Capturing that says besides which stream it is; id is 0 in a capture.
func (d *Device) Identify(s Stream) (id StreamID, captured bool, err error) {
	captured, id, err = cu.StreamCapturing(d.ctx, s)
	return id, captured, err
}

// Store queues the store of a word at a device address, which overtakes kernels of other streams.
func (d *Device) Store(s Stream, p unsafe.Pointer, value uint32) error {
	return cu.StreamWrite(d.ctx, s, p, value)
}

// Until has a stream wait until the word at a device address is at least value, as numbers that wrap are compared. Meanwhile no kernel
// runs for it.
func (d *Device) Until(s Stream, p unsafe.Pointer, value uint32) error {
	return cu.StreamUntil(d.ctx, s, p, value)
}

// NewEvent makes an event, with a time stamp or cheaper without. DestroyEvent frees it.
func (d *Device) NewEvent(timing bool) (Event, error) { return cu.EventCreate(d.ctx, timing) }

// DestroyEvent frees an event.
func (d *Device) DestroyEvent(e Event) error { return cu.EventDestroy(d.ctx, e) }

// Record queues an event of this device on a stream of it.
func (d *Device) Record(e Event, s Stream) error { return cu.EventRecord(d.ctx, e, s) }

// WaitFor waits for an event as last recorded.
func (d *Device) WaitFor(e Event) error { return cu.EventSynchronize(d.ctx, e) }

// Happened reports whether an event's last recording has happened; true if there was none.
func (d *Device) Happened(e Event) (bool, error) { return cu.EventDone(d.ctx, e) }

// WaitEvent has a stream of this device wait for an event, of any, as last recorded.
func (d *Device) WaitEvent(s Stream, e Event) error { return cu.StreamWait(d.ctx, s, e) }

// Milliseconds returns the time between two events that have happened.
func (d *Device) Milliseconds(from, to Event) (float64, error) {
	return cu.EventElapsed(d.ctx, from, to)
}

// CopyAny queues a copy by the driver between any two addresses it knows, of devices or the host.
func (d *Device) CopyAny(s Stream, dst, src unsafe.Pointer, bytes int64) error {
	return cu.CopyAsync(d.ctx, dst, src, bytes, s)
}

// longestPitch is the largest that the driver takes.
const longestPitch = 1<<31 - 1

// CopyRows is CopyAny of equal blocks of bytes, each of which begins a pitch behind the one before. The driver must know both memories.
func (d *Device) CopyRows(s Stream, dst unsafe.Pointer, dstPitch int64, src unsafe.Pointer, srcPitch, bytes int64, rows int) error {
	if max(dstPitch, srcPitch) <= longestPitch && rows > 1 {
		return cu.CopyRows(d.ctx, dst, dstPitch, src, srcPitch, bytes, rows, s)
	}
	for i := range int64(rows) {
		if err := cu.CopyAsync(d.ctx, unsafe.Add(dst, i*dstPitch), unsafe.Add(src, i*srcPitch), bytes, s); err != nil {
			return err
		}
	}
	return nil
}

// Fill queues the setting of bytes to a value.
func (d *Device) Fill(s Stream, dst unsafe.Pointer, value byte, bytes int64) error {
	return cu.SetAsync(d.ctx, dst, value, bytes, s)
}

// A Graph is captured work, to be launched any number of times.
type Graph struct {
	d    *Device
	exec cu.Exec
}

// Capture calls work, which queues work on s, and returns it as a graph instead of having it done. Other streams take part once
// they wait for an event of s, and must be waited for by s in the end.
func (d *Device) Capture(s Stream, work func() error) (*Graph, error) {
	if err := cu.CaptureBegin(d.ctx, s); err != nil {
		return nil, err
	}
	failed := work()
	g, err := cu.CaptureEnd(d.ctx, s)
	if failed != nil {
		err = failed
	}
	if err != nil {
		if g != 0 {
			_ = cu.GraphDestroy(d.ctx, g) // the first error says more
		}
		return nil, err
	}
	e, err := cu.GraphInstantiate(d.ctx, g)
	if err2 := cu.GraphDestroy(d.ctx, g); err == nil {
		err = err2
	}
	return &Graph{d, e}, err
}

// Launch queues the graph on a stream.
func (g *Graph) Launch(s Stream) error { return cu.GraphLaunch(g.d.ctx, g.exec, s) }

// Destroy frees it once its launches are done.
func (g *Graph) Destroy() error { return cu.ExecDestroy(g.d.ctx, g.exec) }
