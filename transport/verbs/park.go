//go:build linux && cgo

package verbs

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// park is how far a connection is on its way to having no QPs for a while. Both ends must agree that nothing is under way:
//
//	asker → asked   credits, ask
//	asked → asker   credits, yes, if by the asker's all was read: it sends nothing until it hears more; or stay
//	asker → asked   done, if by these all was read and nothing was sent since: both destroy their QPs; or stay
//
// All of that goes over the first QP that works, which keeps the order. If both ask, the lower rank's question stands. The next who sends or receives connects anew; what the streams had counted goes on.
type park uint8

const (
	unparked park = iota
	asking        // and sending as ever
	yielded       // we said yes, and send nothing until we hear more
	leaving       // we said done, which is on its way
	parked        // no link
)

// Words, which are the stream of an immediate of kind immWord. Those of a parking come first.
const (
	parkAsk = iota
	parkYes
	parkStay
	parkDone
	wordBroken // the QP whose number is the count
	wordProbe  // nothing but that it came
	wordGone   // the speaker has no QP, any more, whose number is the count
	parkWords  = wordBroken
)

// roomPatience is how long a connection waits for another to be parked before it goes beyond the budget.
const roomPatience = time.Second

// roomFor reports whether so many QPs more may be made for k: they are within the budget, or there was patience enough. If not, the
// driver is asked to park what is idle.
func (e *endpoint) roomFor(k transport.Key, queues int) bool {
	over := e.qps() + queues - e.budget
	if over <= 0 {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.meet(k)
	if m.lacking.IsZero() {
		m.lacking = time.Now()
	}
	if time.Since(m.lacking) > roomPatience {
		e.beyond.Do(func() {
			e.config.Log.Warn("verbs: more QPs than the budget: too few connections are idle", "budget", e.budget, "beyond", over)
		})
		m.lacking = time.Time{}
		return true
	}
	e.short.Store(int64(over))
	e.poke()
	return false
}

// parkIdle begins to park the connections that were idle for longest, until so many QPs will be free.
func (e *endpoint) parkIdle(short int) {
	var idle []*conn
	for _, c := range e.conns {
		switch {
		case c.gone || c.link == nil:
		case c.park == asking || c.park == leaving:
			short -= len(c.link.queues)
		case c.park == unparked && !c.closed && c.idle():
			idle = append(idle, c)
		}
	}
	slices.SortStableFunc(idle, func(a, b *conn) int { return cmp.Compare(a.used, b.used) })
	for _, c := range idle {
		if short <= 0 {
			return
		}
		if c.say(parkAsk) {
			c.park = asking
			short -= len(c.link.queues)
		}
	}
}

// idle reports whether nothing is to be sent or read. What the peer has not read it does not know.
func (c *conn) idle() bool {
	if c.toSend != 0 || c.resetting || c.lends() || c.one.done < c.one.accepted || !c.link.whole() {
		return false
	}
	for i := range c.link.lanes {
		if n := &c.link.lanes[i]; !n.still() || n.ends {
			return false
		}
	}
	return true
}

// say tells the peer all that we have read, and then a word, which asks for a completion. False: there is no room now, or the connection was lost.
func (c *conn) say(word int) bool {
	l := c.link
	q := l.speaker()
	for i := range l.lanes {
		if !q.room() {
			return false
		}
		if n := &l.lanes[i]; n.told != n.free() {
			n.told = n.free()
			c.toCredit &^= 1 << i
			q.say(immediate(immCredit, i, n.told), 0)
		}
		if !q.room() {
			if c.flush(); c.lost != nil {
				return false
			}
		}
	}
	if !q.room() {
		return false
	}
	q.say(immediate(immWord, word, 0), ibv.Signaled)
	c.flush()
	return c.lost == nil
}

// speaker is the first queue that works.
func (l *link) speaker() *queue {
	for _, q := range l.queues {
		if !q.broken {
			return q
		}
	}
	if l.spare != nil {
		return l.spare
	}
	return l.queues[0]
}

// hear acts on a word of the peer's, and tells it what it does not know.
func (c *conn) hear() {
	l := c.link
	if l == nil || c.gone {
		return
	}
	if c.recover(); len(l.words) == 0 || c.gone {
		return
	}
	word := l.words[0]
	answer := -1
	switch {
	case word == parkAsk && c.park == asking && c.key.Self < c.key.Peer:
		// Our own question stands.
	case word == parkAsk:
		answer = parkStay
		if !c.closed && c.idle() && l.allRead() {
			answer = parkYes
		}
	case word == parkYes && c.park == asking:
		answer = parkStay
		if !c.closed && c.idle() && l.allRead() {
			answer = parkDone
		}
	}
	if answer >= 0 && !c.say(answer) {
		c.e.called = append(c.e.called, c) // again when there is room
		return
	}
	if l.words = l.words[1:]; len(l.words) > 0 {
		c.e.called = append(c.e.called, c)
	}
	switch {
	case answer == parkYes:
		c.park = yielded
	case answer == parkDone:
		c.park = leaving
	case answer == parkStay, word == parkStay:
		c.park, c.used = unparked, c.e.tick
	case word == parkDone && c.park == yielded:
		c.unlink()
		return
	}
	c.enlist()
}

// allRead reports whether the peer has read all that we sent.
func (l *link) allRead() bool {
	for i := range l.lanes {
		if l.lanes[i].posted != l.lanes[i].credit {
			return false
		}
	}
	return true
}

// unlink gives the QPs and the memory back. The connection goes on without.
func (c *conn) unlink() {
	l := c.link
	l.memory.of.keep = true // who spins on a word of it may still do so
	c.complain(l.shut())
	c.complain(l.free())
	c.link, c.park, c.toCredit = nil, parked, 0
	c.e.reopen(c.key)
	if c.toSend != 0 || c.closed {
		c.enlist()
	}
}

// reopen makes the meet of k one that has not begun.
func (e *endpoint) reopen(k transport.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.meet(k)
	m.over, m.begun, m.before, m.lacking = false, false, true, time.Time{}
	m.renew(e.ctx)
}

// unpark begins to connect again.
func (c *conn) unpark() {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	c.park = unparked
	if m := e.meet(c.key); m.link != nil {
		e.deliver(m)
	} else {
		e.begin(m, c.address)
	}
}

var errNoRoom = fmt.Errorf("no room within the budget of QPs")
