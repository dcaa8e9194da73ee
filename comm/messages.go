package comm

import (
	"context"
	"errors"
)

// message is one of a Group's that is under way. Its run is the pair's regular one, which is the next message's once the token is given back.
type message struct {
	run    *run
	seq    uint64
	bytes  int64
	failed bool
}

// messages does a Group of messages on host memory between this rank and others of its communicator, where each is the only one to its peer or from
// it, and reports whether it did: nothing may keep the caller from driving them all at once. Else the Group begins them one by one, and
// says what is wrong with them.
func (c *Comm) messages(ctx context.Context, calls []Call) (done bool, err error) {
	for i := range calls {
		call := &calls[i]
		if call.Comm != c || !call.Kind.pointToPoint() || call.Peer == c.rank || !call.Src.Device.IsHost() || !call.Dst.Device.IsHost() {
			return false, nil
		}
	}
	var some [16]message
	list := c.startMessages(calls, some[:0])
	if len(list) == 0 {
		return false, nil
	}
	for i := range list {
		list[i].failed = list[i].run.Call.Finish(ctx) != nil
	}
	c.port.Drop()
	var errs []error
	for _, m := range list {
		switch {
		case m.failed: // so no other message has its run
			errs = append(errs, m.run.outcome())
		case m.bytes > longBuffers:
			c.forget(m.run, m.seq)
		}
	}
	return true, errors.Join(errs...)
}

// startMessages gives messages to the engine, with the driver's token, or does nothing.
func (c *Comm) startMessages(calls []Call, list []message) []message {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.port == nil || !c.port.Hold() {
		return nil
	}
	if c.reason() != nil || !c.distinct(calls) { // asked under the token: see repeat
		c.port.Drop()
		return nil
	}
	for _, kind := range [...]Kind{KindSend, KindRecv} { // what others may wait for comes first
		for i := range calls {
			if calls[i].Kind != kind {
				continue
			}
			p, lane := c.pair(calls[i].Peer), laneOf(kind)
			r := &p.regulars[lane]
			like := p.like(lane, &r.call)
			p.seq[lane]++
			r.comm, r.seq, r.regular, r.nextLook, r.elapsed = c, p.seq[lane], true, firstLook, 0
			r.message(p, lane, like, true)
			c.count(int64(r.call.Count)*int64(r.call.DType.Size()), 0)
			p.port.StartHeld(&r.Call, lane, r.tasks...)
			list = append(list, message{run: r, seq: r.seq, bytes: r.call.Src.Bytes + r.call.Dst.Bytes})
		}
	}
	return list
}

// distinct reports whether the calls are right, and no two of them go the same way. They are then those of their pairs' regular runs. It is called with
// the communicator's lock and the driver's token.
func (c *Comm) distinct(calls []Call) bool {
	c.groups++
	for i := range calls {
		if peer := calls[i].Peer; peer < 0 || peer >= c.Size() {
			return false
		}
		p, lane := c.pair(calls[i].Peer), laneOf(calls[i].Kind)
		if p.port == nil || p.group[lane] == c.groups { // it has none if the communicator fails just now
			return false
		}
		p.group[lane] = c.groups
		call := &p.regulars[lane].call
		*call = calls[i]
		if c.checkShape(call) != nil {
			return false
		}
		src, dst, err := c.sizes(call)
		if err != nil || c.checkMemory(call, src, dst, false) != nil {
			return false
		}
	}
	return true
}
