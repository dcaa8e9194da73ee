package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// DefaultTimeout bounds joining, and connecting to a peer, where the context has no earlier deadline.
const DefaultTimeout = 60 * time.Second

// refusedFor is how long a peer may refuse connections before it counts as gone. It listened before we learnt its address.
const refusedFor = 2 * time.Second

// accept takes a link from the hub, or returns why not.
func (s *session) accept(c caller) (reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, to := int(c.hello.from), int(c.hello.to)
	switch {
	case s.closing:
		return "its session is closed"
	case to != s.rank || c.hello.to >= uint32(s.size):
		return fmt.Sprintf("rank %d lives here, not rank %d", s.rank, to)
	case c.hello.from >= uint32(s.size) || from == s.rank:
		return fmt.Sprintf("there is no other rank %d", from)
	case s.fate[from].status != Unknown:
		return fmt.Sprintf("rank %d is %s: %s", from, s.fate[from].status, s.fate[from].reason)
	case c.hello.use == forRing && (from != (s.rank+s.size-1)%s.size || s.prev != nil):
		return fmt.Sprintf("rank %d is not awaited in the ring", from)
	}
	l := s.startLinkLocked(c.conn, c.r, from)
	l.put(makeFrame(frameWelcome, nil), nil)
	if s.aborted != nil {
		l.put(abortFrame(*s.aborted), nil)
	}
	if c.hello.use == forRing {
		s.prev = l
		s.changeLocked()
	}
	return ""
}

// formRing connects to the next rank and waits for the previous one.
func (s *session) formRing(ctx context.Context) error {
	if s.size == 1 {
		return nil
	}
	nextRank, prevRank := (s.rank+1)%s.size, (s.rank+s.size-1)%s.size
	conn, r, err := s.dial(ctx, "connect the ring", nextRank, forRing)
	s.mu.Lock()
	prevIsHere := s.prev != nil
	if err != nil {
		s.mu.Unlock()
		if !prevIsHere && !errors.Is(err, ErrAborted) {
			err = fmt.Errorf("%w; nor did rank %d connect to %s", err, prevRank, s.addrs[s.rank])
		}
		return err
	}
	s.next = s.startLinkLocked(conn, r, nextRank)
	for s.prev == nil {
		err := s.sendErrorLocked("connect the ring", prevRank)
		changed := s.changed
		s.mu.Unlock()
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("bootstrap: rank %d (%s) did not connect to %s in the ring: %w (is there a firewall in between?)",
				prevRank, s.addrs[prevRank], s.addrs[s.rank], ctx.Err())
		}
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	s.ringFormedLocked()
	s.mu.Unlock()
	return nil
}

// linkTo returns the link for messages to a rank, and connects if there is none.
func (s *session) linkTo(ctx context.Context, op string, to int) (*link, error) {
	for {
		s.mu.Lock()
		if err := s.sendErrorLocked(op, to); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if l := s.to[to]; l != nil {
			s.mu.Unlock()
			return l, nil
		}
		if busy := s.dialing[to]; busy != nil {
			s.mu.Unlock()
			select {
			case <-busy:
				continue
			case <-ctx.Done():
				return nil, &LateError{Op: op, Missing: []int{to}, Err: ctx.Err()}
			}
		}
		busy := make(chan struct{})
		s.dialing[to] = busy
		s.mu.Unlock()

		conn, r, err := s.dial(ctx, op, to, forMessages)
		s.mu.Lock()
		delete(s.dialing, to)
		close(busy)
		if err == nil {
			if err = s.sendErrorLocked(op, to); err != nil {
				conn.Close()
			} else {
				s.startLinkLocked(conn, r, to)
			}
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// dial connects to a peer's session and waits until it is let in, for as long as ctx and the session last.
func (s *session) dial(ctx context.Context, op string, to int, use purpose) (net.Conn, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	start := time.Now()
	pause := newBackoff(s.hub.seed, s.rank)
	address := s.addrs[to].String()
	var last error
	for {
		conn, err := dialProven(ctx, s.hub.net, address, s.hub.secret, s.hub.service)
		if err == nil {
			var r *bufio.Reader
			if r, err = s.call(ctx, conn, to, use); err == nil {
				return conn, r, nil
			}
			conn.Close()
		}
		s.mu.Lock()
		over := s.sendErrorLocked(op, to)
		s.mu.Unlock()
		if over != nil {
			return nil, nil, over
		}
		var refused *noEntry
		switch {
		case errors.As(err, &refused):
			return nil, nil, &PeerError{Op: op, Rank: to, Addr: address, Status: Closed, Reason: refused.reason}
		case ctx.Err() == nil && errors.Is(err, syscall.ECONNREFUSED) && time.Since(start) > refusedFor:
			return nil, nil, &PeerError{Op: op, Rank: to, Addr: address, Status: Dead, Reason: "nobody listens there any more: " + err.Error()}
		case ctx.Err() == nil && !transient(err):
			return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s: %w", op, to, address, err)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if ctx.Err() != nil || !pause.wait(ctx) {
			return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s was not reached in %v: %w (last error: %w)", op, to, address,
				time.Since(start).Round(time.Millisecond), errors.Join(ErrTimeout, ctx.Err()), firewallHint(last))
		}
	}
}

// noEntry is a peer's answer that its session does not let us in.
type noEntry struct{ reason string }

func (e *noEntry) Error() string { return e.reason }

// call says hello and waits for the welcome.
func (s *session) call(ctx context.Context, conn net.Conn, to int, use purpose) (*bufio.Reader, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	hi := hello{session: s.id, from: uint32(s.rank), to: uint32(to), use: use}
	if _, err := conn.Write(hi.frame()); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(conn, readSize)
	t, body, err := readFrame(r, maxReason)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("rank %d answers, but is not in this session (%016x) yet: %w", to, s.id, ctx.Err())
	case err != nil:
		return nil, err
	case t == frameNoEntry:
		return nil, &noEntry{string(body)}
	case t != frameWelcome:
		return nil, &protocolError{fmt.Sprintf("rank %d answered hello with a frame of type %d", to, t)}
	case !stop():
		return nil, ctx.Err()
	}
	return r, nil
}
