package bootstraptest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize is how much a direction holds before writes wait.
const bufferSize = 64 << 10

// end is one end of a connection. It reads from in, which its peer writes, and writes to out.
type end struct {
	net           *Net
	local, remote netip.AddrPort
	in, out       *pipe
}

func (n *Net) pair(a, b netip.AddrPort) (*end, *end) {
	ab, ba := newPipe(), newPipe()
	ab.delay, ba.delay = n.delay, n.delay
	return &end{n, a, b, ba, ab}, &end{n, b, a, ab, ba}
}

func (c *end) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, c.wrap("read", err)
}

func (c *end) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	dead := c.net.dead[c.local.Addr()]
	c.net.mu.Unlock()
	if dead { // whatever the killed process's goroutines do in ours
		return 0, c.wrap("write", os.NewSyscallError("write", syscall.ECONNRESET))
	}
	n, err := c.out.write(b)
	return n, c.wrap("write", err)
}

func (c *end) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

func (c *end) CloseWrite() error {
	c.out.finish()
	return nil
}

func (c *end) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.out.finish()
	c.out.fail(&c.out.writeErr, net.ErrClosed)
	c.in.fail(&c.in.readErr, net.ErrClosed)
	c.in.fail(&c.in.farErr, os.NewSyscallError("write", syscall.EPIPE))
	return nil
}

// reset breaks the connection for both ends. Over a cut network, the far end hears of it when the cut heals.
func (c *end) reset() {
	for _, p := range []*pipe{c.in, c.out} {
		p.mu.Lock()
		p.reset = true
		p.changed.Broadcast()
		p.mu.Unlock()
	}
}

func (c *end) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.local) }
func (c *end) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

func (c *end) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *end) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *end) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	mu                sync.Mutex
	changed           *sync.Cond
	buf               []byte
	delay             func() time.Duration // nil: bytes arrive at once
	onWay             []arrival            // the bytes of buf that are not there yet
	finished          bool                 // no more writes; readers get EOF after buf
	stalled           bool                 // nothing arrives, neither bytes nor news of the other end
	reset             bool
	readErr, writeErr error // we closed
	farErr            error // what the writer gets once the other end closed
	readBy, writeBy   deadline
}

// arrival is when some bytes will be there.
type arrival struct {
	n  int
	at time.Time
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.readErr != nil:
			return 0, p.readErr
		case p.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case p.stalled:
			p.changed.Wait()
			continue
		case p.reset:
			return 0, os.NewSyscallError("read", syscall.ECONNRESET)
		case p.arrived() > 0:
			n := copy(b, p.buf[:p.arrived()])
			p.buf = p.buf[n:]
			p.changed.Broadcast()
			return n, nil
		case len(p.buf) > 0:
			p.changed.Wait() // for the timer that write set
			continue
		case p.finished:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		p.changed.Wait()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := 0
	for {
		switch {
		case p.writeErr != nil:
			return done, p.writeErr
		case p.finished:
			return done, os.NewSyscallError("write", syscall.EPIPE)
		case p.writeBy.passed():
			return done, os.ErrDeadlineExceeded
		case p.stalled:
		case p.reset:
			return done, os.NewSyscallError("write", syscall.ECONNRESET)
		case p.farErr != nil:
			return done, p.farErr
		}
		n := min(len(b)-done, bufferSize-len(p.buf))
		p.buf = append(p.buf, b[done:done+n]...)
		if n > 0 && p.delay != nil {
			p.send(n)
		}
		if done += n; n > 0 {
			p.changed.Broadcast()
		}
		if done == len(b) {
			return done, nil
		}
		p.changed.Wait()
	}
}

// send puts the last n bytes of buf on their way.
func (p *pipe) send(n int) {
	d := p.delay()
	at := time.Now().Add(d)
	if k := len(p.onWay); k > 0 && p.onWay[k-1].at.After(at) {
		at = p.onWay[k-1].at // in order
	}
	p.onWay = append(p.onWay, arrival{n, at})
	time.AfterFunc(time.Until(at), func() {
		p.mu.Lock()
		p.changed.Broadcast()
		p.mu.Unlock()
	})
}

// arrived returns how many bytes of buf are there.
func (p *pipe) arrived() int {
	n := len(p.buf)
	now := time.Now()
	for len(p.onWay) > 0 && !p.onWay[0].at.After(now) {
		p.onWay = p.onWay[1:]
	}
	for _, a := range p.onWay {
		n -= a.n
	}
	return n
}

func (p *pipe) stall(yes bool) {
	p.mu.Lock()
	p.stalled = yes
	p.changed.Broadcast()
	p.mu.Unlock()
}

func (p *pipe) finish() {
	p.mu.Lock()
	p.finished = true
	p.changed.Broadcast()
	p.mu.Unlock()
}

// fail sets one of the pipe's errors; the first one stays.
func (p *pipe) fail(at *error, err error) {
	p.mu.Lock()
	if *at == nil {
		*at = err
	}
	p.changed.Broadcast()
	p.mu.Unlock()
}

func (p *pipe) setDeadline(d *deadline, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			p.changed.Broadcast()
			p.mu.Unlock()
		})
	}
	p.changed.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }
