package auth

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// DefaultPending is how many handshakes a [Gate] keeps under way at once when Pending is 0.
const DefaultPending = 256

// grace is how long a handshake may take before a newcomer may push it out. A burst of honest peers is done sooner; it
// waits in the listener's backlog instead of pushing itself out.
const grace = 250 * time.Millisecond

// logEvery is the time between two log lines about the same kind of stranger.
const logEvery = 10 * time.Second

// Gate accepts connections and hands on those that prove the secret. Strangers cost at most Pending descriptors and
// goroutines, each for at most Timeout, and one log line per kind and ten seconds; they never keep an honest peer out.
//
//	gate := &auth.Gate{Secret: secret, Service: "gccl tcp v1", Log: log}
//	err := gate.Serve(listener, func(c net.Conn) { … }) // until listener is closed
type Gate struct {
	Secret  []byte
	Service string        // as for [Server]
	Ready   chan struct{} // closed when Service is set; nil: it is. Who comes before is heard out, and waits if all is well
	Pending int           // handshakes at once; 0 means DefaultPending. The oldest one is dropped for a newcomer
	Timeout time.Duration // of one handshake; 0 means [Timeout]
	Log     *slog.Logger  // nil: no log
	Failed  func(*Error)  // is told of every handshake that failed, each on its own goroutine; nil: nobody is
}

// Serve accepts from ln until it is closed, and then returns nil once every handle has returned; any other failure of ln
// that lasts is returned. Handle runs on its own goroutine for each proven connection, which it owns. Handshakes that are
// under way when ln is closed are cut.
func (g *Gate) Serve(ln net.Listener, handle func(net.Conn)) error {
	s := &gateState{
		gate:    g,
		limit:   g.Pending,
		timeout: g.Timeout,
		freed:   make(chan struct{}, 1),
		over:    make(chan struct{}),
		lastLog: map[Kind]logged{},
	}
	if s.limit <= 0 {
		s.limit = DefaultPending
	}
	if s.timeout <= 0 {
		s.timeout = Timeout
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.cutAll()

	pause := time.Duration(0)
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Descriptors run out, or a peer reset before we accepted: others may still get in.
			var temporary interface{ Temporary() bool }
			if !errors.As(err, &temporary) || !temporary.Temporary() {
				return err
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			if g.Log != nil && pause >= 500*time.Millisecond {
				g.Log.Warn("cannot accept connections", "address", ln.Addr(), "error", err)
			}
			time.Sleep(pause)
			continue
		}
		pause = 0
		p := s.admit(conn)
		wg.Go(func() {
			h := handshake{conn: conn, secret: g.Secret}
			if g.Ready == nil {
				h.service = g.Service
			} else {
				h.named = func() (string, bool) { return s.service(p.since.Add(s.timeout)) }
			}
			err := h.prove(s.timeout, h.server)
			if cut := s.release(p); cut && err == nil {
				err = &Error{Kind: Silent, Peer: conn.RemoteAddr().String(), Service: h.service}
			}
			if err != nil {
				conn.Close()
				s.fail(err)
				return
			}
			handle(conn)
		})
	}
}

// gateState is the bookkeeping of one Serve.
type gateState struct {
	gate    *Gate
	limit   int
	timeout time.Duration
	freed   chan struct{} // one token: a place became free
	over    chan struct{} // closed when nobody is let in any more

	mu      sync.Mutex
	pending []*pending // oldest first
	closed  bool
	lastLog map[Kind]logged
}

type pending struct {
	conn  net.Conn
	since time.Time
	cut   bool // closed by us; the handshake's own error would mislead
}

type logged struct {
	at         time.Time
	suppressed int
}

// admit enters conn, after it made room by cutting the oldest handshake if that is older than grace.
func (s *gateState) admit(conn net.Conn) *pending {
	p := &pending{conn: conn}
	for {
		s.mu.Lock()
		now := time.Now()
		if len(s.pending) < s.limit {
			p.since = now
			s.pending = append(s.pending, p)
			s.mu.Unlock()
			return p
		}
		oldest := s.pending[0]
		wait := grace - now.Sub(oldest.since)
		if wait <= 0 {
			oldest.cut = true
			oldest.conn.Close()
			s.pending = s.pending[1:]
		}
		s.mu.Unlock()
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-s.freed:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// service returns what the gate serves, as soon as that is known and until the deadline.
func (s *gateState) service(deadline time.Time) (name string, ok bool) {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-s.gate.Ready:
		return s.gate.Service, true
	case <-late.C:
	case <-s.over:
	}
	return "", false
}

// release removes p and reports whether it had been cut.
func (s *gateState) release(p *pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range s.pending {
		if q == p {
			s.pending = append(s.pending[:i], s.pending[i+1:]...)
			break
		}
	}
	select {
	case s.freed <- struct{}{}:
	default:
	}
	return p.cut
}

func (s *gateState) cutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	close(s.over)
	for _, p := range s.pending {
		p.cut = true
		p.conn.Close()
	}
	s.pending = nil
}

// fail tells of a handshake that failed.
func (s *gateState) fail(err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	if s.gate.Failed != nil {
		s.gate.Failed(e)
	}
	if s.gate.Log == nil {
		return
	}
	now := time.Now()
	s.mu.Lock()
	last := s.lastLog[e.Kind]
	quiet := s.closed || !last.at.IsZero() && now.Sub(last.at) < logEvery
	if quiet {
		last.suppressed++
		s.lastLog[e.Kind] = last
	} else {
		s.lastLog[e.Kind] = logged{at: now}
	}
	s.mu.Unlock()
	if !quiet {
		s.gate.Log.Warn("dropped a stranger", "kind", e.Kind, "peer", e.Peer, "service", e.Service,
			"since_last_line", last.suppressed, "error", err)
	}
}
