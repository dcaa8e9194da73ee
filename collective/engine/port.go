package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// PortOptions describe a communicator to the engine.
type PortOptions struct {
	Owner   any // the user's, for Driver.Owners
	Ranks   int
	Lanes   int // lane i uses stream i mod Streams of channel i div Streams
	Streams int // per conn
	// Dial opens the connection to a peer on a channel, without blocking. It is called by the holder of the
	// driver's token.
	Dial func(channel int, peer int) (transport.Conn, error)
	// Stalled is asked from time to time about the call at the head of a lane that does not move: how long it
	// has not been done, and which peers lanes of the port wait for, a list that is the port's again when it returns.
	// An error fails the port. It must not block or call the port. Nil: never asked.
	Stalled func(c *Call, elapsed time.Duration, peers []int) error
	// Broken is called once, by the holder of the token, when the port failed and before its calls return: it
	// must break the port's conns, so that nothing touches the calls' memory any more.
	Broken func(err error)
}

// Port is a communicator's way into a driver.
type Port struct {
	driver *Driver
	opt    PortOptions
	lanes  []*Lane
	failed atomic.Pointer[failure]
	broken bool  // end was called; belongs to the holder of the token
	waited []int // what peers returned last; belongs to the holder of the token
}

type failure struct{ err error }

// NewPort returns a port of the driver. It holds no resource but memory.
func (d *Driver) NewPort(opt PortOptions) *Port {
	p := &Port{driver: d, opt: opt}
	for i := range opt.Lanes {
		channel := i / opt.Streams
		p.lanes = append(p.lanes, &Lane{
			port:   p,
			dial:   func(peer int) (transport.Conn, error) { return opt.Dial(channel, peer) },
			stream: i % opt.Streams,
			links:  make([]link, opt.Ranks),
		})
	}
	d.mu.Lock()
	d.ports = append(d.ports, p)
	d.mu.Unlock()
	return p
}

// Owners returns the owners of the ports that have not failed, each once. Anyone may call it.
func (d *Driver) Owners() (owners []any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		if !slices.Contains(owners, p.opt.Owner) {
			owners = append(owners, p.opt.Owner)
		}
	}
	return owners
}

// Lanes is the number of lanes.
func (p *Port) Lanes() int { return len(p.lanes) }

// Fail ends the port: calls in flight and later ones return err, or what an earlier Fail said. Once a call has
// returned, nothing touches its memory. Anyone may call it.
func (p *Port) Fail(err error) {
	p.failed.CompareAndSwap(nil, &failure{err})
	d := p.driver
	d.mu.Lock()
	d.requests = append(d.requests, request{p.end, make(chan struct{})}) // none of its lanes may be listed
	d.ports = slices.DeleteFunc(d.ports, func(x *Port) bool { return x == p })
	d.mu.Unlock()
	d.alert()
}

// Err is what the port failed with, or nil.
func (p *Port) Err() error {
	if f := p.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// end breaks the conns of a failed port and finishes all its tasks.
func (p *Port) end() {
	err := p.Err()
	if !p.broken && p.opt.Broken != nil {
		p.opt.Broken(err)
	}
	p.broken = true
	for _, l := range p.lanes {
		for i, t := range l.queue {
			l.queue[i] = nil
			t.call.finish(err)
		}
		l.queue = l.queue[:0]
	}
}

// peers lists the peers that lanes of the port wait for, until it is called again.
func (p *Port) peers() []int {
	p.waited = p.waited[:0]
	for _, l := range p.lanes {
		if len(l.queue) > 0 && l.waits != nil {
			p.waited = append(p.waited, l.waits.peer)
		}
	}
	return p.waited
}
