//go:build linux && cgo

package cu

/*
#cgo noescape cu_launch_joined
#cgo nocallback cu_launch_joined
#cgo noescape cu_launch_after
#cgo nocallback cu_launch_after
#cgo noescape cu_stream_capturing
#cgo nocallback cu_stream_capturing
#include "shim.h"
*/
import "C"

import "unsafe"

// StreamCreate makes a stream that does not wait for the default stream, of the least or the greatest priority.
func StreamCreate(ctx Context, highPriority bool) (Stream, error) {
	var s C.cu_stream
	err := check("cuStreamCreateWithPriority", C.cu_stream_create(C.cu_ctx(ctx), flag(highPriority), &s))
	return Stream(s), err
}

// StreamDestroy frees a stream once its work is done, without waiting.
func StreamDestroy(ctx Context, s Stream) error {
	return check("cuStreamDestroy", C.cu_stream_destroy(C.cu_ctx(ctx), C.cu_stream(s)))
}

// StreamSynchronize waits for all work of a stream.
func StreamSynchronize(ctx Context, s Stream) error {
	return check("cuStreamSynchronize", C.cu_stream_sync(C.cu_ctx(ctx), C.cu_stream(s)))
}

// StreamDone reports whether all work of a stream is done.
func StreamDone(ctx Context, s Stream) (bool, error) {
	return done("cuStreamQuery", C.cu_stream_query(C.cu_ctx(ctx), C.cu_stream(s)))
}

func done(call string, r C.cu_result) (bool, error) {
	if Result(r) == NotReady {
		return false, nil
	}
	return r == 0, check(call, r)
}

// StreamCapturing reports whether the stream's work is being captured in a graph, and if not, which stream it is.
func StreamCapturing(ctx Context, s Stream) (captured bool, id StreamID, err error) {
	var status C.int
	var number C.uint64_t
	err = check("cuStreamIsCapturing", C.cu_stream_capturing(C.cu_ctx(ctx), C.cu_stream(s), &status, &number))
	return status != 0, StreamID(number), err
}

// StreamWrite queues the store of a word. It needs no kernel, so it overtakes kernels of other streams.
func StreamWrite(ctx Context, s Stream, p unsafe.Pointer, value uint32) error {
	return check("cuStreamWriteValue32", C.cu_stream_write(C.cu_ctx(ctx), C.cu_stream(s), address(p), C.uint32_t(value)))
}

// StreamUntil has a stream wait until a word is at least value, as numbers that wrap are compared.
func StreamUntil(ctx Context, s Stream, p unsafe.Pointer, value uint32) error {
	return check("cuStreamWaitValue32", C.cu_stream_until(C.cu_ctx(ctx), C.cu_stream(s), address(p), C.uint32_t(value)))
}

// StreamWait has a stream wait for an event as it was last recorded.
func StreamWait(ctx Context, s Stream, e Event) error {
	return check("cuStreamWaitEvent", C.cu_stream_wait(C.cu_ctx(ctx), C.cu_stream(s), C.cu_event(e)))
}

// EventCreate makes an event, with a time stamp or without.
func EventCreate(ctx Context, timing bool) (Event, error) {
	var e C.cu_event
	err := check("cuEventCreate", C.cu_event_create(C.cu_ctx(ctx), flag(timing), &e))
	return Event(e), err
}

// EventDestroy frees an event; waits for it that are queued still happen.
func EventDestroy(ctx Context, e Event) error {
	return check("cuEventDestroy", C.cu_event_destroy(C.cu_ctx(ctx), C.cu_event(e)))
}

// EventRecord queues an event.
func EventRecord(ctx Context, e Event, s Stream) error {
	return check("cuEventRecord", C.cu_event_record(C.cu_ctx(ctx), C.cu_event(e), C.cu_stream(s)))
}

// EventSynchronize waits for an event.
func EventSynchronize(ctx Context, e Event) error {
	return check("cuEventSynchronize", C.cu_event_sync(C.cu_ctx(ctx), C.cu_event(e)))
}

// EventDone reports whether an event has happened.
func EventDone(ctx Context, e Event) (bool, error) {
	return done("cuEventQuery", C.cu_event_query(C.cu_ctx(ctx), C.cu_event(e)))
}

// EventElapsed returns the milliseconds between two timed events that have happened.
func EventElapsed(ctx Context, from, to Event) (float64, error) {
	var ms C.float
	err := check("cuEventElapsedTime", C.cu_event_elapsed(C.cu_ctx(ctx), C.cu_event(from), C.cu_event(to), &ms))
	return float64(ms), err
}

// CaptureBegin has the stream's work, and that of streams that wait for its events, collected in a graph instead of done.
func CaptureBegin(ctx Context, s Stream) error {
	return check("cuStreamBeginCapture", C.cu_capture_begin(C.cu_ctx(ctx), C.cu_stream(s)))
}

// CaptureEnd returns the graph.
func CaptureEnd(ctx Context, s Stream) (Graph, error) {
	var g C.cu_graph
	err := check("cuStreamEndCapture", C.cu_capture_end(C.cu_ctx(ctx), C.cu_stream(s), &g))
	return Graph(g), err
}

// GraphInstantiate makes a graph ready to be launched any number of times.
func GraphInstantiate(ctx Context, g Graph) (Exec, error) {
	var e C.cu_exec
	err := check("cuGraphInstantiateWithFlags", C.cu_graph_instantiate(C.cu_ctx(ctx), C.cu_graph(g), &e))
	return Exec(e), err
}

// GraphDestroy frees a graph; what was instantiated from it stays.
func GraphDestroy(ctx Context, g Graph) error {
	return check("cuGraphDestroy", C.cu_graph_destroy(C.cu_ctx(ctx), C.cu_graph(g)))
}

// GraphLaunch queues a graph on a stream.
func GraphLaunch(ctx Context, e Exec, s Stream) error {
	return check("cuGraphLaunch", C.cu_graph_launch(C.cu_ctx(ctx), C.cu_exec(e), C.cu_stream(s)))
}

// ExecDestroy frees an instantiated graph once its launches are done.
func ExecDestroy(ctx Context, e Exec) error {
	return check("cuGraphExecDestroy", C.cu_exec_destroy(C.cu_ctx(ctx), C.cu_exec(e)))
}

func (l *Launch) c() C.cu_launch {
	return C.cu_launch{fn: C.cu_fn(l.Function), columns: C.uint(l.Columns), rows: C.uint(l.Rows), threads: C.uint(l.Threads), cooperative: flag(l.Cooperative),
		overlaps: flag(l.Overlaps), exec: C.cu_exec(l.Exec), node: C.cu_node(l.Node), bind: flag(l.Bind)}
}

// LaunchJoined queues up to MaxLaunches kernels one after the other on a stream: after everything that was queued before on the other streams,
// which wait for the last kernel. The kernels' arguments lie stride bytes apart from args on, hold no pointers of Go's, and are
// copied. before has an event for each of others; they and after may be used again at once. Others equal to on cost nothing. Without
// kernels the streams meet all the same. It does not allocate.
func LaunchJoined(ctx Context, launches []Launch, args unsafe.Pointer, stride int, on Stream, others []Stream, before []Event, after Event) error {
	var buf [MaxLaunches]C.cu_launch
	for i := range launches {
		buf[i] = launches[i].c()
	}
	r := C.cu_launch_joined(C.cu_ctx(ctx), &buf[0], C.int(len(launches)), args, C.size_t(stride), C.cu_stream(on),
		(*C.cu_stream)(unsafe.Pointer(unsafe.SliceData(others))), C.int(len(others)),
		(*C.cu_event)(unsafe.Pointer(unsafe.SliceData(before))), C.cu_event(after))
	for i := range launches {
		launches[i].Bind = buf[i].bind != 0
	}
	return check("cuLaunchKernel", r)
}

// Prepare makes executable graphs of one kernel, each of which launches any kernel of the same attributes, as Launch.Exec, with all the memory
// that they will ever need: to make one may wait for all work of the GPU, to launch one does not. The graph has to stay as long as they do.
// After an error, what it returns is to be freed all the same.
func Prepare(ctx Context, l Launch, args unsafe.Pointer, execs []Exec) (g Graph, node Node, err error) {
	c := l.c()
	err = check("cuGraphInstantiateWithFlags", C.cu_prepare(C.cu_ctx(ctx), &c, args, C.int(len(execs)), (*C.cu_graph)(unsafe.Pointer(&g)), (*C.cu_node)(unsafe.Pointer(&node)), (*C.cu_exec)(unsafe.Pointer(unsafe.SliceData(execs)))))
	return g, node, err
}

// LaunchAfter queues one kernel as LaunchJoined does, after what it waits for besides, and records done behind it; id is the stream's. In
// a capture, which it reports, it leaves these events out, and id is 0. It does not allocate.
func LaunchAfter(ctx Context, l *Launch, args unsafe.Pointer, on Stream, others []Stream, before []Event, after Event, w Waits, done Event) (id StreamID, captured bool, err error) {
	c := l.c()
	waits := C.cu_waits{done: C.cu_event(w.Done), also: C.cu_event(w.Also), on: C.uint64_t(w.On)}
	var status C.int
	var number C.uint64_t
	r := C.cu_launch_after(C.cu_ctx(ctx), &c, args, C.cu_stream(on),
		(*C.cu_stream)(unsafe.Pointer(unsafe.SliceData(others))), C.int(len(others)),
		(*C.cu_event)(unsafe.Pointer(unsafe.SliceData(before))), C.cu_event(after), &waits, C.cu_event(done), &status, &number)
	l.Bind = c.bind != 0
	if r != 0 {
		return 0, status != 0, check("cuLaunchCooperativeKernel", r)
	}
	return StreamID(number), status != 0, nil
}
