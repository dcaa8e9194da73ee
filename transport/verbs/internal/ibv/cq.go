//go:build linux && cgo

package ibv

// #include "shim.h"
import "C"

import "unsafe"

// Channel is where armed CQs announce completions.
type Channel struct{ channel *C.struct_gv_channel }

// NewChannel makes a completion channel.
func (d *Device) NewChannel() (*Channel, error) {
	ch, err := C.gv_create_channel(d.context)
	if err := made("ibv_create_comp_channel", ch != nil, err); err != nil {
		return nil, err
	}
	return &Channel{ch}, nil
}

// FD is readable when an armed CQ got a completion. It is the channel's; make it not block before Drain is called.
func (c *Channel) FD() int { return int(c.channel.fd) }

// Close frees the channel, which must have no CQs.
func (c *Channel) Close() error {
	return failure("ibv_destroy_comp_channel", C.gv_destroy_channel(c.channel))
}

// CQ is a completion queue.
type CQ struct {
	cq      *C.struct_gv_cq
	number  C.uintptr_t // cq, for gv_poll
	channel *Channel
}

// NewCQ makes a queue of at least so many entries. The channel may be nil.
func (d *Device) NewCQ(entries int, ch *Channel, vector int) (*CQ, error) {
	var c *C.struct_gv_channel
	if ch != nil {
		c = ch.channel
	}
	cq, err := C.gv_create_cq(d.context, C.int(entries), c, C.int(vector))
	if err := made("ibv_create_cq", cq != nil, err); err != nil {
		return nil, err
	}
	return &CQ{cq, C.uintptr_t(uintptr(unsafe.Pointer(cq))), ch}, nil
}

// Entries is the queue's length.
func (q *CQ) Entries() int { return int(q.cq.entries) }

// Resize changes the queue's length. It may be called while another goroutine polls.
func (q *CQ) Resize(entries int) error {
	return failure("ibv_resize_cq", C.gv_resize_cq(q.cq, C.int(entries)))
}

// Moderate asks for an event only after so many completions, or so many microseconds after one. Where the provider cannot, the error wraps
// errors.ErrUnsupported.
func (q *CQ) Moderate(count, period uint16) error {
	return failure("ibv_modify_cq", C.gv_moderate(q.cq, C.uint16_t(count), C.uint16_t(period)))
}

// Poll takes completions, at most 32 a call.
func (q *CQ) Poll(out []Completion) (int, error) {
	if len(out) == 0 {
		return 0, nil
	}
	first := (*C.gv_completion)(unsafe.Pointer(unsafe.SliceData(out))) // in a variable: what is made in the call is checked there, each time
	n := C.gv_poll(q.number, first, C.int(len(out)))
	if n < 0 {
		return 0, failure("ibv_poll_cq", -n)
	}
	return int(n), nil
}

// Arm asks for one event on the channel, at the next completion that is not in the queue yet.
func (q *CQ) Arm() error { return failure("ibv_req_notify_cq", C.gv_arm(q.cq, 0)) }

// Drain takes the channel's events, which must all be of this queue, and reports how many there were.
func (q *CQ) Drain() int { return int(C.gv_drain(q.channel.channel, q.cq)) }

// Close frees the queue, which no QP may use any more.
func (q *CQ) Close() error { return failure("ibv_destroy_cq", C.gv_destroy_cq(q.cq)) }
