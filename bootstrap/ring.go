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
const refusedFor = 250 * time.Millisecond

// wordFor is the same while ranks meet: most likely it gave up because of another, of whom word is on its way.
const wordFor = time.Second

// accept takes a link from the hub, or returns the answer after which the connection ends.
func (s *session) accept(c caller) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, to := int(c.hello.from), int(c.hello.to)
	switch {
	case s.closing:
		return s.epitaph.answer(c.hello)
	case to != s.rank || c.hello.to >= uint32(s.size):
		return noEntryFrame(entryWrong, fmt.Sprintf("rank %d lives here, not rank %d", s.rank, to))
	case c.hello.from >= uint32(s.size) || from == s.rank:
		return noEntryFrame(entryWrong, fmt.Sprintf("there is no other rank %d", from))
	case s.out != nil:
		return []byte{} // see refuse: the caller finds this rank silent
	case s.fate[from].status == Dead:
		return noEntryFrame(entryGivenUp, string(s.givenUpLocked(from).body()))
	case s.fate[from].status != Unknown:
		return noEntryFrame(entryWrong, fmt.Sprintf("rank %d is %s: %s", from, s.fate[from].status, s.fate[from].reason))
	case c.hello.use == forRing && (from != (s.rank+s.size-1)%s.size || s.prev != nil):
		return noEntryFrame(entryWrong, fmt.Sprintf("rank %d is not awaited in the ring", from))
	case c.hello.use == forVerdict:
		return makeFrame(frameWelcome, nil)
	}
	l := s.startLinkLocked(c.conn, c.r, from, c.hello.use, false) // it may have given up waiting
	l.put(makeFrame(frameWelcome, nil), nil)
	s.newsLocked(l)
	s.changeLocked()
	return nil
}

// formRing connects to the next rank and waits for the previous one.
func (s *session) formRing(ctx context.Context) error {
	if s.size == 1 {
		return nil
	}
	nextRank, prevRank := (s.rank+1)%s.size, (s.rank+s.size-1)%s.size
	start := time.Now()
	conn, r, err := s.dial(ctx, "connect the ring", nextRank, forRing, s.sendErrorLocked)
	s.mu.Lock()
	prevIsHere, prevName := s.prev != nil, s.nameLocked(prevRank)
	if err != nil {
		s.mu.Unlock()
		if !prevIsHere && !errors.Is(err, ErrAborted) {
			err = fmt.Errorf("%w; nor did rank %d connect to %s", err, prevName, s.addrs[s.rank])
		}
		return err
	}
	s.next = s.dialedLocked(conn, r, nextRank)
	for s.prev == nil {
		err := s.sendErrorLocked("connect the ring", prevRank)
		changed := s.changed
		s.mu.Unlock()
		if err == nil && ctx.Err() != nil {
			err = &LateError{Op: "connect the ring", Missing: []int{prevName}, Elapsed: time.Since(start), Err: ctx.Err(),
				What: fmt.Sprintf("rank %d (%s) did not connect to %s (is there a firewall in between?)", prevName, s.addrs[prevRank], s.addrs[s.rank])}
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

// errLinked ends a dial: the peer connected meanwhile.
var errLinked = errors.New("there is a link")

// linkTo returns the link for messages to a rank, and connects if there is none. Check, sendErrorLocked or peerGoneLocked, tells when
// there is no more sense in it.
func (s *session) linkTo(ctx context.Context, op string, to int, check func(op string, to int) error) (*link, error) {
	for {
		s.mu.Lock()
		if err := check(op, to); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if l := s.to[to]; l != nil {
			s.mu.Unlock()
			return l, nil
		}
		if busy := s.dialing[to]; busy != nil {
			changed := s.changed
			s.mu.Unlock()
			select {
			case <-busy:
				continue
			case <-changed: // who dials may go on where this call does not
				continue
			case <-ctx.Done():
				return nil, &LateError{Op: op, Missing: []int{to}, Err: ctx.Err()}
			}
		}
		busy := make(chan struct{})
		s.dialing[to] = busy
		s.mu.Unlock()

		conn, r, err := s.dial(ctx, op, to, forMessages, func(op string, to int) error {
			if err := check(op, to); err != nil || s.to[to] == nil {
				return err
			}
			return errLinked
		})
		var gone *PeerError
		if errors.As(err, &gone) && gone.Status == Closed {
			s.rankClosed(to, farewell{last: unknownLast}, nil)
		} else if gone != nil {
			s.rankDied(to, fate{by: s.rank, sure: true, reason: gone.Reason}, nil)
		}
		s.mu.Lock()
		delete(s.dialing, to)
		close(busy)
		if err == nil {
			if err = check(op, to); err != nil {
				conn.Close()
			} else {
				s.newsLocked(s.dialedLocked(conn, r, to))
				s.changeLocked()
			}
		}
		s.mu.Unlock()
		if err != nil && err != errLinked {
			return nil, err
		}
	}
}

// dial connects to a peer's session and waits until it is let in, for as long as ctx and the session last, and check says nothing.
func (s *session) dial(ctx context.Context, op string, to int, use purpose, check func(op string, to int) error) (net.Conn, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var over error // under mu
	overLocked := func() bool {
		if over == nil {
			over = check(op, to)
		}
		return over != nil
	}
	ctx, stop := s.until(ctx, overLocked) // where packets are dropped, one attempt lasts as long as ctx
	defer stop()
	start := time.Now()
	pause := newBackoff(s.hub.seed, s.rank)
	address := s.addrs[to].String()
	var last error
	var goneAt time.Time // when it was first found to be gone
	for {
		conn, err := dialProven(ctx, s.hub.net, address, s.hub.secret, s.hub.service)
		if err == nil {
			var r *bufio.Reader
			if r, err = s.call(ctx, conn, to, use); err == nil {
				return conn, r, nil
			}
			conn.Close()
		}
		var refused *noEntry
		var wrong error
		if errors.As(err, &refused) && refused.entry == entryEnded {
			wrong = s.heardEpitaph(to, []byte(refused.reason))
		}
		s.mu.Lock()
		end := overLocked()
		formed, name := s.formed, s.nameLocked(to)
		s.mu.Unlock()
		if end {
			return nil, nil, over
		}
		var gone *PeerError
		switch {
		case wrong != nil:
			return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s: %w", op, name, address, wrong)
		case errors.As(err, &refused) && refused.entry == entryGivenUp:
			if err := s.noEntryHere(to, refused); err != nil {
				return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s: %w", op, name, address, err)
			}
			s.mu.Lock()
			out := s.out
			s.mu.Unlock()
			if out != nil {
				return nil, nil, &AbortedError{Op: op, Notice: *out}
			}
			return nil, nil, &PeerError{Op: op, Rank: name, Addr: address, Status: Dead, Reason: "it gave this rank up"}
		case errors.As(err, &refused) && refused.entry == entryWrong:
			return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s does not let this rank in: %s", op, name, address, refused.reason)
		case errors.As(err, &refused):
			gone = &PeerError{Op: op, Rank: name, Addr: address, Status: Closed, Reason: refused.Error()}
			if formed {
				return nil, nil, gone
			}
		case ctx.Err() == nil && errors.Is(err, syscall.ECONNREFUSED):
			gone = &PeerError{Op: op, Rank: name, Addr: address, Status: s.ended(to), Reason: "nobody listens there any more: " + err.Error()}
		case ctx.Err() == nil && !transient(err):
			return nil, nil, fmt.Errorf("bootstrap %s: rank %d at %s: %w", op, name, address, err)
		}
		switch {
		case gone == nil:
			goneAt = time.Time{}
		case goneAt.IsZero():
			goneAt = time.Now()
		case time.Since(goneAt) > wordFor || formed && time.Since(goneAt) > refusedFor:
			return nil, nil, gone
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if ctx.Err() != nil || !pause.wait(ctx) {
			s.mu.Lock()
			end := overLocked()
			s.mu.Unlock()
			if end {
				return nil, nil, over
			}
			return nil, nil, &LateError{Op: op, Missing: []int{name}, Elapsed: time.Since(start), Err: ctx.Err(), Last: firewallHint(last),
				What: fmt.Sprintf("rank %d at %s was not reached", name, address)}
		}
	}
}

// noEntry is a peer's answer that its session does not let us in.
type noEntry struct {
	entry  entry
	reason string // with entryGivenUp: givenUp; with entryEnded: frames
}

type entry uint8

const (
	entryOver    entry = iota // the session is over, or was never there
	entryWrong                // who calls has no business there
	entryGivenUp              // who calls was given up
	entryEnded                // the session is over, with news of it
	entries
)

// parseWelcome returns nil, or a *noEntry, or that it is neither.
func parseWelcome(t frameType, body []byte) error {
	switch {
	case t == frameWelcome && len(body) == 0:
		return nil
	case t == frameNoEntry && len(body) > 0 && entry(body[0]) < entries:
		return &noEntry{entry(body[0]), string(body[1:])}
	}
	return &protocolError{fmt.Sprintf("a frame of type %d with %d bytes answers a hello", t, len(body))}
}

// noEntryHere takes a peer's word that this rank was given up.
func (s *session) noEntryHere(peer int, e *noEntry) error {
	g, err := parseGivenUp([]byte(e.reason), s.size)
	if err == nil {
		s.heardGivenUp(peer, g)
	}
	return err
}

// maxNoEntry is the most that a peer may say at first: a givenUp with all ranks.
const maxNoEntry = 4*maxWorld + 2*maxReason

func noEntryFrame(e entry, reason string) []byte {
	return makeFrame(frameNoEntry, append([]byte{byte(e)}, reason...))
}

func (e *noEntry) Error() string {
	if e.entry == entryEnded {
		return "its session is closed"
	}
	return e.reason
}

// call says hello and waits for the welcome.
func (s *session) call(ctx context.Context, conn net.Conn, to int, use purpose) (*bufio.Reader, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	hi := hello{session: s.id, from: uint32(s.rank), to: uint32(to), use: use}
	if _, err := conn.Write(hi.frame()); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(conn, readSize)
	t, body, err := readFrame(r, maxNoEntry)
	switch {
	case err != nil && ctx.Err() != nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, fmt.Errorf("rank %d answers, but is not in this session (%016x) yet: %w", s.nameLocked(to), s.id, ctx.Err())
	case err != nil:
		return nil, err
	}
	if err := parseWelcome(t, body); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return r, nil
}
