package bootstrap

import (
	"net"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// outbox sends frames over a connection with a root in the order in which they were put, while nobody waits for it. A peer that does not
// read loses its connection.
type outbox struct {
	conn net.Conn
	wg   sync.WaitGroup

	mu      sync.Mutex
	queue   [][]byte
	writing bool // a goroutine is at it
	ending  bool // the last frame is queued
}

// put queues a frame, which must not change any more.
func (o *outbox) put(frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ending {
		return
	}
	o.queue = append(o.queue, frame)
	o.writeLocked()
}

// end queues frames, which are the last, and lets the peer see the end after them.
func (o *outbox) end(last ...[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ending {
		return
	}
	o.ending = true
	o.queue = append(o.queue, last...)
	o.writeLocked()
}

// wait returns when what was queued is with the network, or never will be. It is called after end.
func (o *outbox) wait() { o.wg.Wait() }

func (o *outbox) writeLocked() {
	if !o.writing {
		o.writing = true
		o.wg.Go(o.write)
	}
}

func (o *outbox) write() {
	for {
		o.mu.Lock()
		queue, ending := o.queue, o.ending
		o.queue = nil
		o.writing = len(queue) > 0
		o.mu.Unlock()
		if len(queue) == 0 {
			if c, ok := o.conn.(interface{ CloseWrite() error }); ending && ok {
				_ = c.CloseWrite() // it fails only where the end is known already
			}
			return
		}
		bufs := net.Buffers(queue)
		_ = o.conn.SetWriteDeadline(time.Now().Add(auth.Timeout)) // as above
		if _, err := bufs.WriteTo(o.conn); err != nil {
			o.conn.Close()
		}
	}
}
