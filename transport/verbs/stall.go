//go:build linux && cgo

package verbs

import (
	"fmt"
	"slices"
	"time"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// A device tells of each request that it is done or has failed, at the latest when it has got nowhere with it for as long as its retries
// take. One that does neither has lost the request, or forgets to go on with it: firmware does so, and Soft-RoCE. So somebody looks at the
// queues every second. One that has had requests since the last look, and finished none, gets one more, which wakes such a device
// up and asks for a completion that tells of those before it; and one that is silent for long after that has failed.

// silence is for how many looks a queue may be silent. The InfiniBand specification lets a device take four times the timeout that it was told.
func (c *Config) silence() int {
	timeout := time.Duration(4096) << c.Timeout
	return 5 + int(4*time.Duration(c.Retry+1)*timeout/lookEvery)
}

// readLeast is what a read, which is one request however long it is, must bring in a second.
const readLeast = 4 << 20

// stall is what the looks at a queue have found.
type stall struct {
	done  uint32 // queue.done at the last look
	looks int    // since it was another, or nothing was under way
	asked uint32 // the request that was added
}

// lookOut has the driver look at the queues again and again, if it comes by: time in which it does not is nobody's silence.
func (e *endpoint) lookOut() {
	for last := (*job)(nil); ; {
		sleep(e.ctx, e.config.look)
		switch {
		case e.ctx.Err() != nil:
			return
		case last == nil || len(last.done) > 0:
			last = e.post(func() error { e.look(); return nil })
		}
	}
}

// look finds the queues that are silent.
func (e *endpoint) look() {
	for e.poll() { // what was done while the driver was away
	}
	for _, c := range slices.Clone(e.conns) { // those that are lost leave
		l := c.link
		if l == nil || c.gone || l.failed != nil || l.dead.Load() != nil || l.left() { // it ends as it is
			continue
		}
		for _, q := range l.queues {
			if q.broken {
				continue
			}
			if q.silent() {
				l.lose(q, q.silence())
			} else if q.stall.looks > 1 {
				q.nudge()
			}
		}
		for _, q := range l.probes {
			if q.probing && !q.failed && q.silent() {
				q.failed = true
				l.call()
			}
		}
		if l.flush(); l.failed != nil {
			c.enlist()
		}
	}
}

// silent counts a look, and reports whether there were too many without a completion.
func (q *queue) silent() bool {
	s := &q.stall
	if q.settled() || q.done != s.done {
		*s = stall{done: q.done, asked: q.done}
		return false
	}
	s.looks++
	most := q.link.e.silence
	if c := q.link.conn; c != nil && c.one.by == q {
		most += int(c.one.bytes() / readLeast)
	}
	return s.looks >= most
}

// nudge adds a request, unless one is known to be under way, that writes nothing and takes no receive, and whose completion is worth those of
// all before it.
func (q *queue) nudge() {
	if s := &q.stall; s.asked == q.done && q.room() {
		*q.next() = ibv.Send{Op: ibv.Write, Remote: q.peer.addr, RKey: q.peer.rkey, Flags: ibv.Signaled}
		s.asked = q.posted + uint32(q.filled)
	}
}

// silence is the error of a silent queue.
func (q *queue) silence() error {
	return q.link.own(fmt.Errorf("%s has neither done nor refused its last requests in %d looks a second apart, longer than its retries take: "+
		"the device has lost them; the kernel's log and %s may say more", q, q.stall.looks, "/sys/class/infiniband/"+q.nic.device.Name()+"/ports/*/hw_counters"))
}
