//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// sendHooked sends b as the Hook wants it, which is asked once per message. There
// is room for one line.
func (s *stream) sendHooked(tag uint32, b transport.Buf) (bool, error) {
	c, t := s.c, &s.tx
	if !t.asked {
		t.fate, t.asked = c.e.opts.Hook(s.frame(b)), true
		t.until = time.Time{}
		if t.fate.Delay > 0 {
			t.until = time.Now().Add(t.fate.Delay)
			t.timer = time.AfterFunc(t.fate.Delay, c.e.wakeSelf)
		}
	}
	f, narrow := t.fate, false
	if f.Twice {
		var err error
		if narrow, err = t.full(2); err != nil {
			return false, s.fail("send", err)
		}
	}
	switch {
	case f.Reset:
		why := fmt.Errorf("connection reset: %w", transport.ErrGone)
		c.mark(entryBroken)
		c.end(why, false)
		return false, s.fail("send", why)
	case !t.until.IsZero() && time.Now().Before(t.until):
		return false, s.blocked() // the message and those behind it wait with the caller
	case narrow:
		return false, s.blocked()
	case f.Drop:
		t.seq++ // its line stays as it was
		t.counters.messagesSent++
		t.counters.bytesSent += uint64(b.N)
		t.asked = false
		return true, nil
	}
	ok, err := s.write(tag, b, f.Flip)
	if !ok || err != nil {
		return ok, err
	}
	t.asked = false
	if f.Twice {
		t.seq--
		t.skew++
		if ok, err := s.write(tag, b, 0); !ok || err != nil {
			t.seq++ // no slot for the copy: let it be
			t.skew--
			return true, err
		}
		t.counters.messagesSent-- // it counts once
		t.counters.bytesSent -= uint64(b.N)
	}
	return true, nil
}

// wakeSelf wakes our own driver: a delay is over.
func (e *Endpoint) wakeSelf() {
	e.mu.Lock()
	closed := e.closed
	if !closed {
		wake(&e.seg.header().sleep)
	}
	e.mu.Unlock()
	if !closed && e.opts.Wake != nil {
		e.opts.Wake()
	}
}
