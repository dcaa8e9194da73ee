package bootstrap

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// hub is one process's listener in a world. The world's session and all subs made from it share it; it closes with the last of
// them. Who calls for a session that is not there yet waits: a sub's members do not begin at the same moment.
type hub struct {
	net     Network
	secret  []byte
	service string        // once it is ready
	ready   chan struct{} // closed when the world is known
	gate    *auth.Gate
	seed    uint64
	log     *slog.Logger
	ln      net.Listener
	wg      sync.WaitGroup
	ctx     context.Context // ends with shut
	cancel  context.CancelFunc

	mu       sync.Mutex
	sessions map[uint64]*session
	waiting  []caller            // oldest first
	expiring bool                // expire runs
	over     map[uint64]*epitaph // by session
	overs    []uint64            // the keys of over, oldest first
	kept     int                 // bytes of what is in over
	closed   bool
}

const (
	maxWaiting = 1024               // callers for sessions that are not there yet; the oldest makes room
	maxWait    = 2 * DefaultTimeout // longer than any caller waits itself
	helloSize  = 17
	// helloGrace is how long whoever has just connected may still say for which session, when the hub closes, to hear why there is no entry.
	helloGrace = 100 * time.Millisecond
)

// caller is a proven connection that has said hello.
type caller struct {
	conn  net.Conn
	r     *bufio.Reader
	hello hello
	since time.Time
}

// hello is the first frame of a connection between ranks.
type hello struct {
	session  uint64
	from, to uint32
	use      purpose
}

// purpose is what a connection between ranks is for.
type purpose uint8

const (
	forMessages purpose = iota
	forRing             // the dialer is the acceptor's previous rank in the ring
	forAsking           // whether the session is there: the answer is welcome or no entry, and the end
	forVerdict          // whether the dialer was given up: the answer is no entry, with that, or welcome, and the end
	purposes
)

func (h hello) frame() []byte {
	b := appendHeader(nil, frameHello, helloSize)
	b = binary.BigEndian.AppendUint64(b, h.session)
	b = binary.BigEndian.AppendUint32(b, h.from)
	b = binary.BigEndian.AppendUint32(b, h.to)
	return append(b, byte(h.use))
}

func parseHello(t frameType, body []byte) (hello, error) {
	f := fields{b: body}
	h := hello{session: f.u64(), from: f.u32(), to: f.u32(), use: purpose(f.u8())}
	if t != frameHello || f.bad || len(f.b) > 0 || h.use >= purposes {
		return h, &protocolError{fmt.Sprintf("a frame of type %d with %d bytes instead of a hello", t, len(body))}
	}
	return h, nil
}

// newHub serves ln, which it owns from now on. Strangers are sent away at once, ranks let in when open has been called.
func newHub(ln net.Listener, n Network, secret []byte, seed uint64, log *slog.Logger) *hub {
	h := &hub{
		net: n, secret: secret, ready: make(chan struct{}), seed: seed, log: log, ln: ln,
		sessions: map[uint64]*session{}, over: map[uint64]*epitaph{},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.gate = &auth.Gate{Secret: secret, Ready: h.ready, Log: log}
	h.wg.Go(func() {
		if err := h.gate.Serve(ln, h.greet); err != nil {
			log.Error("cannot accept connections from other ranks any more", "address", ln.Addr(), "error", err)
		}
	})
	return h
}

// open says which world the hub is for.
func (h *hub) open(nonce [nonceSize]byte) {
	h.service = peerService + " " + hex.EncodeToString(nonce[:])
	h.gate.Service = h.service
	close(h.ready)
}

// greet reads a proven peer's hello and takes it to its session.
func (h *hub) greet(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(auth.Timeout))
	stop := context.AfterFunc(h.ctx, func() { conn.SetReadDeadline(time.Now().Add(helloGrace)) })
	defer stop()
	r := bufio.NewReaderSize(conn, readSize)
	t, body, err := readFrame(r, helloSize)
	var hi hello
	if err == nil {
		hi, err = parseHello(t, body)
	}
	if err != nil {
		if h.ctx.Err() == nil {
			h.log.Warn("a rank connected and did not say for which session", "peer", conn.RemoteAddr(), "error", err)
		}
		conn.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	c := caller{conn, r, hi, time.Now()}

	h.mu.Lock()
	s := h.sessions[hi.session]
	end, over := h.over[hi.session]
	if hi.use == forAsking {
		h.mu.Unlock()
		h.answer(conn, s != nil || over)
		return
	}
	if s == nil && !over && !h.closed {
		if len(h.waiting) == maxWaiting {
			h.waiting[0].conn.Close()
			h.waiting = h.waiting[1:]
		}
		h.waiting = append(h.waiting, c)
		if !h.expiring {
			h.expiring = true
			h.wg.Go(h.expire)
		}
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	if s != nil {
		h.take(s, c)
	} else {
		h.refuse(c, end.answer(hi))
	}
}

// expire lets go of those who have waited for longer than they do themselves, until nobody waits or the hub is shut.
func (h *hub) expire() {
	for {
		h.mu.Lock()
		for len(h.waiting) > 0 && time.Since(h.waiting[0].since) >= maxWait {
			h.waiting[0].conn.Close()
			h.waiting = h.waiting[1:]
		}
		if h.expiring = len(h.waiting) > 0; !h.expiring {
			h.mu.Unlock()
			return
		}
		next := time.NewTimer(maxWait - time.Since(h.waiting[0].since))
		h.mu.Unlock()
		select {
		case <-next.C:
		case <-h.ctx.Done():
			next.Stop()
			return
		}
	}
}

// take gives c to s, or tells it that there is no entry.
func (h *hub) take(s *session, c caller) {
	if no := s.accept(c); no != nil {
		h.refuse(c, no)
	}
}

func (h *hub) refuse(c caller, no []byte) {
	c.conn.SetDeadline(time.Now().Add(auth.Timeout))
	c.conn.Write(no)
	c.conn.Close()
}

// answer tells whether a session is there, or was.
func (h *hub) answer(conn net.Conn, yes bool) {
	conn.SetDeadline(time.Now().Add(auth.Timeout))
	frame := makeFrame(frameWelcome, nil)
	if !yes {
		frame = noEntryFrame(entryOver, "it is not there")
	}
	conn.Write(frame)
	conn.Close()
}

// ended returns what this process's sessions know of the end of the rank with that address: that it died, or that it closed one.
func (h *hub) ended(at netip.AddrPort) Status {
	h.mu.Lock()
	sessions := slices.Collect(maps.Values(h.sessions))
	h.mu.Unlock()
	how := Unknown
	for _, s := range sessions {
		rank := slices.Index(s.addrs, at)
		if rank < 0 {
			continue
		}
		switch status := s.Status(rank); status {
		case Dead:
			return Dead
		case Closed:
			how = Closed
		}
	}
	return how
}

// enter makes the session reachable.
func (h *hub) enter(s *session) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return ErrClosed
	}
	if h.sessions[s.id] != nil {
		h.mu.Unlock()
		return fmt.Errorf("this rank already has session %016x", s.id)
	}
	h.sessions[s.id] = s
	var mine []caller
	rest := h.waiting[:0]
	for _, c := range h.waiting {
		if c.hello.session == s.id {
			mine = append(mine, c)
		} else {
			rest = append(rest, c)
		}
	}
	clear(h.waiting[len(rest):])
	h.waiting = rest
	h.mu.Unlock()
	for _, c := range mine {
		h.take(s, c)
	}
	return nil
}

// leave ends the session's part in the hub, of which e is left, and the hub after the last one.
func (h *hub) leave(s *session, e *epitaph) {
	h.mu.Lock()
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
		h.over[s.id] = e
		h.overs = append(h.overs, s.id)
		for h.kept += e.bytes(); len(h.overs) > maxOver || h.kept > maxEpitaphs; h.overs = h.overs[1:] {
			h.kept -= h.over[h.overs[0]].bytes()
			delete(h.over, h.overs[0])
		}
	}
	last := len(h.sessions) == 0 && !h.closed
	h.closed = h.closed || last
	h.mu.Unlock()
	if last {
		h.shut()
	}
}

// shut closes the listener and whatever waits behind it.
func (h *hub) shut() {
	h.cancel()
	h.ln.Close()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, c := range h.waiting {
		c.conn.Close()
	}
	h.waiting = nil
}
