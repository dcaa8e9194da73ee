//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// detour carries what the QPs of a link no longer can over the TCP connection of its set-up, with Config.Fallback: the same requests, each
// as a frame.
//
//	immediate 4 | bytes 4 | a slot from its header on
//
// Numbers are big-endian. There are never more frames than slots and notices, so that nothing else bounds them.
type detour struct {
	parting bool       // our end of the socket is shut; the driver's alone
	mu      sync.Mutex // guards what follows
	frames  [][]byte   // to be written
	ready   chan struct{}
	written atomic.Uint32 // requests
}

const (
	detourHeader = 8
	// detourTimeout is how long what was written may go unacknowledged.
	detourTimeout = 10 * time.Second
)

// detour begins the detour of a link whose last QP has failed.
func (l *link) detour() *queue {
	if l.spare != nil {
		return l.spare
	}
	d := &detour{ready: make(chan struct{}, 1)}
	l.spare = &queue{link: l, index: len(l.queues), detour: d, ours: record{addr: l.memory.addr()}}
	if tcp, ok := l.socket.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(detourTimeout.Milliseconds()))
			})
		}
	}
	l.e.watchers.Go(func() { d.write(l) })
	return l.spare
}

// write writes frames until the link is shut.
func (d *detour) write(l *link) {
	for range d.ready {
		d.mu.Lock()
		frames := d.frames
		d.frames = nil
		d.mu.Unlock()
		for _, f := range frames {
			if _, err := l.socket.Write(f); err != nil {
				l.unwritten.Store(&err) // whoever reads comes to the end, too, and to what the peer has sent before
				return
			}
			d.written.Add(1)
			l.e.poke()
		}
	}
}

// end ends the writing.
func (d *detour) end() { close(d.ready) }

// parted shuts our end of the socket of a link over which all was said, and reports whether the peer's kernel has what went over TCP. Closed
// before, the socket would answer by a reset what the peer still says, and what our kernel has not sent yet would be lost.
func (l *link) parted() bool {
	socket, ok := l.socket.(*net.TCPConn)
	if l.spare == nil || !ok || l.dead.Load() != nil {
		return true
	}
	if d := l.spare.detour; !d.parting {
		d.parting = true
		socket.CloseWrite() // if it fails, whoever reads comes to the end
	}
	left := 0
	if raw, err := socket.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return left == 0
}

// part tells a peer to whom the link may be there already that our user closed the connection before it was, or the endpoint, and that it is no death.
func (l *link) part() {
	var b []byte
	for i := range l.lanes {
		b = binary.BigEndian.AppendUint32(b, immediate(immBye, i, 0))
		b = binary.BigEndian.AppendUint32(b, 0)
	}
	if l.socket != nil {
		l.socket.Write(b) // it fails where the peer is gone
	}
}

// flushDetour hands requests to the writer.
func (q *queue) flushDetour() {
	d, l := q.detour, q.link
	if l.gone {
		return
	}
	if d.parting { // what was to be said is
		q.filled = 0
		return
	}
	d.mu.Lock()
	for _, r := range q.batch[:q.filled] {
		f := binary.BigEndian.AppendUint32(make([]byte, 0, detourHeader+r.Bytes), r.Imm)
		f = binary.BigEndian.AppendUint32(f, r.Bytes)
		if r.Bytes > 0 {
			at := int(r.Addr-q.ours.addr) - l.half
			f = append(f, l.tx[at:at+int(r.Bytes)]...)
		}
		d.frames = append(d.frames, f)
		q.posted++
	}
	d.mu.Unlock()
	q.filled = 0
	select {
	case d.ready <- struct{}{}:
	default:
	}
}

// watch waits for the end of the link's socket, on which nothing is said after the set-up but frames of a detour, or goodbye by who never had the link.
func (l *link) watch() {
	err := l.frames()
	end := errNoGoodbye
	if err == io.EOF {
		time.Sleep(grace)
		err = nil
		if p := l.unwritten.Load(); p != nil { // the kernel says once why a socket ended, to who reads or to who writes
			err = fmt.Errorf("over TCP, where all QPs have failed: %w", *p)
		}
	}
	if err != nil {
		end = fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	l.die(end)
}

func (l *link) frames() error {
	most := uint32(headerSize + l.e.config.holds(l.e.config.most()))
	for {
		var head [detourHeader]byte
		if _, err := io.ReadFull(l.socket, head[:]); err != nil {
			return err
		}
		imm, n := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
		kind, _, _ := parseImmediate(imm)
		if !l.e.config.Fallback && kind != immBye || kind == immBye && n > 0 || n > most || n > 0 && n < headerSize {
			return fmt.Errorf("%w: a frame of %d bytes", transport.ErrCorrupt, n)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(l.socket, b); err != nil {
			return err
		}
		l.e.post(func() error { l.arriveFrame(imm, b); return nil })
	}
}

// arriveFrame is what a completion is to a queue.
func (l *link) arriveFrame(imm uint32, b []byte) {
	if l.gone || l.failed != nil {
		return
	}
	if kind, stream, count := parseImmediate(imm); kind == immPiece && stream < len(l.lanes) && len(b) >= headerSize {
		n := &l.lanes[stream]
		slot := n.consumed + uint64((count-uint32(n.consumed))&countMask)
		if c := &l.e.config; slot-n.told < uint64(c.Slots) && !n.arrived.has(slot, c.mask()) {
			if room := c.holds(c.toEnd(slot)); len(b)-headerSize > room {
				l.fail(fmt.Errorf("%w: a frame with a piece of %d bytes, where there is room for %d", transport.ErrCorrupt, len(b)-headerSize, room))
				return
			}
			copy(l.rx[l.slot(stream, slot):], b)
		}
	}
	if err := l.arrive(imm); err != nil {
		l.fail(fmt.Errorf("%w: %w", transport.ErrCorrupt, err))
	}
	if l.conn != nil {
		l.conn.enlist()
	}
}
