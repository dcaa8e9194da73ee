package comm

import (
	"context"
	"fmt"
	"time"
)

// awaitRanks returns when the call is queued, or has been given up.
func (r *run) awaitRanks(ctx context.Context) {
	c, began := r.comm, time.Now()
	limits := &c.family.cfg
	if first := min(limits.WarnAfter, limits.CallTimeout); r.timer == nil {
		r.timer = time.NewTimer(first)
	} else {
		r.timer.Reset(first)
	}
	defer r.timer.Stop()
	for {
		select {
		case <-r.ticket.Done():
			return
		case <-ctx.Done():
			r.ticket.GiveUp(ctx.Err())
		case <-r.timer.C:
			r.elapsed = time.Since(began)
			if r.elapsed >= limits.CallTimeout {
				r.ticket.GiveUp(context.DeadlineExceeded)
				continue
			}
			if missing := r.ticket.Missing(); missing != nil {
				c.log.Warn("a call waits", "call", r.call.String(), "seq", r.seq, "for", r.elapsed.Round(time.Millisecond), "ranks", missing, "because", "they have not called it")
			}
			r.timer.Reset(min(3*r.elapsed, limits.CallTimeout-r.elapsed))
		}
	}
}

// watchDevice looks, as rank 0, after calls that are queued: one that stands still because a rank's stream does not come to it is warned
// of and, past the time for a call, an error. It returns when the communicator is broken or closed.
func (c *Comm) watchDevice() {
	limits := &c.family.cfg
	if c.rank != 0 {
		select {
		case <-c.broken:
		case <-c.life.Done():
		}
		return
	}
	every := time.NewTicker(max(min(limits.WarnAfter, limits.CallTimeout)/4, time.Millisecond))
	defer every.Stop()
	var last uint64
	var since, warned time.Time
	for {
		select {
		case <-c.broken:
			return
		case <-c.life.Done():
			return
		case <-every.C:
		}
		number, ranks := c.gpu.Communicator().Behind()
		if ranks == nil || number != last {
			last, since, warned = number, time.Now(), time.Time{}
			continue
		}
		switch waited := time.Since(since); {
		case waited >= limits.CallTimeout:
			c.fail(&cause{class: "timeout", ranks: ranks, text: fmt.Sprintf("a call that is queued on %v has waited %v for the streams of ranks %v: work before it does not end", c.family.device, waited.Round(time.Millisecond), ranks), from: -1})
			return
		case waited >= limits.WarnAfter && time.Since(warned) >= limits.WarnAfter:
			warned = time.Now()
			c.log.Warn("a queued call waits", "for", waited.Round(time.Millisecond), "ranks", ranks, "because", "their streams have not come to it: work before it does not end")
		}
	}
}
