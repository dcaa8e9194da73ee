package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// muster is a rank's connection to the root, from its request to join until its session is whole or given up. The root hears by it that the
// rank lives, and the rank hears who is lost.
type muster struct {
	outbox
	watch                // of whoever calls hear
	root    string       // address
	home    int          // the rank in whose process the root is, or nobody
	heard   atomic.Int64 // when something came, in own time
	life    awaited
	frames  chan rootFrame // what the root says, but for signs of life; closed when the connection has ended
	why     error          // why that was; set before
	stop    chan struct{}  // closed by close: nobody takes frames any more
	closing sync.Once
	reader  sync.WaitGroup
}

type rootFrame struct {
	t    frameType
	body []byte
}

// errRootSilent: the root has not given a sign of life for too long.
var errRootSilent = errors.New("the root is silent (frozen or cut off)")

// newMuster speaks over conn, which it owns from now on.
func newMuster(conn net.Conn, root string, home int, heartbeat, silentAfter time.Duration) *muster {
	m := &muster{outbox: outbox{conn: conn}, root: root, home: home, frames: make(chan rootFrame), stop: make(chan struct{})}
	m.start(heartbeat, silentAfter)
	m.reader.Go(m.read)
	return m
}

func (m *muster) read() {
	defer close(m.frames)
	r := bufio.NewReader(m.conn)
	for {
		t, body, err := readFrame(r, maxFrame)
		if err != nil {
			m.why = err
			return
		}
		m.heard.Store(int64(m.own()))
		if t == frameBeat {
			if len(body) == 1 && beat(body[0]) == beatAsk {
				m.put(makeFrame(frameBeat, []byte{byte(beatAnswer)}))
			}
			continue
		}
		select {
		case m.frames <- rootFrame{t, body}:
		case <-m.stop: // what comes now has come too late
		}
	}
}

// hear returns what the root says next. The error is ctx's, errRootSilent, or says how the connection ended.
func (m *muster) hear(ctx context.Context) (frameType, []byte, error) {
	timer := time.NewTimer(m.rest())
	defer timer.Stop()
	for {
		select {
		case f, ok := <-m.frames:
			if ok {
				return f.t, f.body, nil
			}
			if errors.Is(m.why, io.EOF) {
				return 0, nil, fmt.Errorf("root at %s: %w: %w", m.root, errRootGone, m.why)
			}
			return 0, nil, fmt.Errorf("root at %s: %w", m.root, m.why)
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		case <-timer.C:
		}
		m.life.heard = max(m.life.heard, time.Duration(m.heard.Load()))
		silent, ask, next := m.take([]*awaited{&m.life})
		if len(silent) > 0 {
			return 0, nil, fmt.Errorf("root at %s: %w: nothing came for %.1fs", m.root, errRootSilent, (m.own() - m.life.heard).Seconds())
		}
		if len(ask) > 0 {
			m.put(makeFrame(frameBeat, []byte{byte(beatAsk)}))
		}
		timer.Reset(next)
	}
}

// close says goodbye with last, and waits for the root to hang up, but not for long.
func (m *muster) close(last ...[]byte) {
	m.closing.Do(func() {
		close(m.stop)
		m.end(last...)
		_ = m.conn.SetReadDeadline(time.Now().Add(lingerAbort)) // fails where the end is known
	})
	m.reader.Wait()
	m.conn.Close()
	m.wait()
}

// follow hears what the root says while the ranks meet, until the session is over or has met the others.
func (s *session) follow(m *muster) {
	for {
		t, body, err := m.hear(s.ctx)
		if err == nil {
			err = s.heardFromRoot(t, body)
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		over := s.closing || s.muster != m
		s.muster = nil
		alone := s.aloneLocked()
		s.mu.Unlock()
		switch {
		case over || errors.Is(err, errRootClosed):
		case m.home != nobody && m.home != s.rank:
			silent := errors.Is(err, errRootSilent)
			s.rankDied(m.home, fate{by: s.rank, sure: !silent, private: silent && alone, reason: "it serves the root, and that is gone: " + err.Error()}, nil)
		default:
			s.log.Warn("the root is gone before all ranks have met; going on without it", "root", m.root, "error", err)
		}
		if !over {
			m.conn.Close() // nobody there to say goodbye to
			m.close()
		}
		return
	}
}

// errRootClosed: the root said goodbye.
var errRootClosed = errors.New("the root was closed")

// heardFromRoot acts on what the root says once all ranks have joined.
func (s *session) heardFromRoot(t frameType, body []byte) error {
	switch t {
	case frameDead:
		rank, how, err := parseDead(body, s.size)
		if err != nil {
			return err
		}
		if how.by == s.size {
			how.by, how.reason = s.rank, how.reason+", says the root"
		}
		s.rankDied(rank, how, nil)
		return nil
	case frameAbort:
		n, err := parseAbort(body, s.size)
		if err == nil {
			s.abort(n, nil)
		}
		return err
	case frameRootClosed:
		return errRootClosed
	}
	return &protocolError{fmt.Sprintf("the root sent a frame of type %d to ranks that meet", t)}
}

// tellRootLocked has the root tell all ranks, while they meet.
func (s *session) tellRootLocked(frame []byte) {
	if s.muster != nil {
		s.muster.put(frame)
	}
}

// leaveRoot says goodbye to the root, which is of no more use: all ranks have met, or never will.
func (s *session) leaveRoot() {
	s.mu.Lock()
	m, last := s.muster, makeFrame(frameLeave, []byte{0})
	s.muster = nil
	if s.formed {
		last = makeFrame(frameMet, nil)
	}
	s.mu.Unlock()
	if m != nil {
		m.close(last)
	}
}
