package engine

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
)

// Task is a plan with a message, of which a lane runs the rounds First, First+Stride, … The memory is
// borrowed until the call is done.
type Task struct {
	Plan   *collective.Plan
	Layout collective.Layout
	First  int
	Stride int
	Tag    uint32 // travels with every message; equal on all ranks

	In, Out             unsafe.Pointer
	InShared, OutShared bool // in memory that peers can read: sends may lend it

	Fold   func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int)
	PreMul func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64)
	Factor float64

	call   *Call
	rounds int    // of Layout, once a lane has begun the task
	began  int    // how often the lane did, until it knew a short way or knew that there is none
	short  *short // its way, as long as that is its own
}

// Call is what is waited for: a number of tasks of one port. The zero value is ready for use, and may be used
// again once the call is done and its wait has returned. One goroutine at a time may wait for it.
type Call struct {
	Note any    // the owner's, for Stalled
	Post func() // nil, or what to do when the last task is done, before the call is; it must not block

	port   *Port
	left   int           // tasks not done; belongs to the holder of the token
	err    error         // set before state is done
	starts uint64        // how often it was started, times 4
	state  atomic.Uint64 // starts, plus one of the states; anything older means running, so that a start need not store it
	wake   chan struct{} // of the waiter, while state is parked
	began  time.Time     // when it was first seen to stand still
	looked time.Time     // when Stalled was last asked
}

// States of a call.
const (
	// 0: it runs
	parked uint64 = 1 // it runs, and a goroutine sleeps on wake
	done   uint64 = 2 // no task touches the call's memory any more
)

// Done reports whether the call is over; then Err is its outcome. To be asked by who started it, or by who is in some order with that.
func (c *Call) Done() bool { return c.state.Load() == c.starts|done }

// Err is the outcome of a call that is done.
func (c *Call) Err() error { return c.err }

func (c *Call) reset(p *Port, tasks int) {
	c.left = tasks
	if c.port != p || c.err != nil || !c.began.IsZero() {
		c.port, c.err, c.began = p, nil, time.Time{}
	}
	c.starts += 4
}

func (c *Call) taskDone() {
	if c.left--; c.left == 0 {
		if c.Post != nil {
			c.Post()
		}
		c.finish(nil)
	}
}

// end is taskDone for the only task of a call whose waiter is who runs it: nobody sleeps on it.
func (c *Call) end() {
	if c.Post != nil {
		c.Post()
	}
	c.left = 0
	c.state.Store(c.starts | done)
}

// finish ends the call, once.
func (c *Call) finish(err error) {
	if c.Done() {
		return
	}
	c.err = err
	starts := c.starts // the swap gives the call back
	if c.state.Swap(starts|done) == starts|parked {
		c.poke()
	}
}

// poke makes the parked waiter look again.
func (c *Call) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
