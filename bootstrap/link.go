package bootstrap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// link is one proven connection between two members of a session. A goroutine reads from it and one writes to it, both owned by
// the session; so no reader ever waits for a writer, and a ring cannot block itself however much is on its way around.
type link struct {
	s    *session
	peer int
	conn net.Conn
	done sync.WaitGroup // both goroutines

	mu     sync.Mutex
	queue  []chunk
	queued int           // bytes that are not yet with the network
	space  chan struct{} // closed and replaced when queued falls
	ending bool          // the last frame is queued
	broken bool
	wake   chan struct{} // one token: the queue or ending changed
	ring   bool          // the peer made it as its way to the next rank in the ring
	bye    bool          // the peer said goodbye; of the reader alone
	sure   bool          // the peer uses it: a dialer may have given up while we accepted; of the reader alone once started
}

// chunk is queued bytes: some that the link owns and may append to, or a block that it only reads.
type chunk struct {
	b    []byte
	owns bool
}

const (
	smallBlock = 4 << 10  // up to here a block is copied behind its header, into one write with its neighbours
	ownedSize  = 64 << 10 // size of the chunks that small blocks are copied to
	sendWindow = 8 << 20  // queued bytes at which Send waits
	readSize   = 16 << 10
)

// dialedLocked enters a connection that this rank made, and has the peer know that it is used.
func (s *session) dialedLocked(conn net.Conn, r *bufio.Reader, peer int) *link {
	l := s.startLinkLocked(conn, r, peer, forMessages, true)
	l.put(makeFrame(frameBeat, []byte{byte(beatAnswer)}), nil)
	return l
}

// startLinkLocked enters a connection into the session, which is not closing, and starts its goroutines. If it is not sure that the
// peer will use it, we don't before something came.
func (s *session) startLinkLocked(conn net.Conn, r *bufio.Reader, peer int, use purpose, sure bool) *link {
	l := &link{s: s, peer: peer, conn: conn, sure: sure, ring: use == forRing, space: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.links[l] = struct{}{}
	s.vigil.hear(peer)
	if sure {
		s.useLocked(l)
	}
	l.done.Add(2)
	s.wg.Go(func() { defer l.done.Done(); l.write() })
	s.wg.Go(func() { defer l.done.Done(); l.read(r) })
	s.wg.Go(func() {
		l.done.Wait()
		conn.Close()
		s.mu.Lock()
		delete(s.links, l)
		if s.to[peer] == l {
			delete(s.to, peer)
		}
		s.changeLocked()
		s.mu.Unlock()
	})
	return l
}

// useLocked makes l the link for what is sent to its peer, if there is none. It stays that as long as it lives: messages keep their order.
func (s *session) useLocked(l *link) {
	if l.ring && s.prev == nil {
		s.prev = l
		s.changeLocked()
	}
	if s.to[l.peer] == nil {
		s.to[l.peer] = l
		s.changeLocked()
	}
}

// put queues a frame: header (and small fields) and payload, which must not change any more. It never waits.
func (l *link) put(header, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.broken {
		return
	}
	l.queued += len(header) + len(payload)
	l.appendLocked(header)
	if len(payload) <= smallBlock {
		l.appendLocked(payload)
	} else {
		l.queue = append(l.queue, chunk{b: payload})
	}
	l.signal()
}

func (l *link) appendLocked(b []byte) {
	if len(b) == 0 {
		return
	}
	if n := len(l.queue); n > 0 && l.queue[n-1].owns && len(l.queue[n-1].b)+len(b) <= ownedSize {
		l.queue[n-1].b = append(l.queue[n-1].b, b...)
		return
	}
	l.queue = append(l.queue, chunk{b: append(make([]byte, 0, max(len(b), 256)), b...), owns: true})
}

// end lets the writer finish after what is queued.
func (l *link) end() {
	l.mu.Lock()
	l.ending = true
	l.signal()
	l.mu.Unlock()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// room returns nil if there is room for another message, else a channel that is closed when there may be.
func (l *link) room() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued < sendWindow || l.broken || l.ending {
		return nil
	}
	return l.space
}

// waiting returns how many bytes are not yet with the network.
func (l *link) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued
}

func (l *link) write() {
	for {
		l.mu.Lock()
		queue, ending := l.queue, l.ending
		l.queue = nil
		l.mu.Unlock()
		if len(queue) == 0 {
			if ending {
				break
			}
			<-l.wake
			continue
		}
		var bufs net.Buffers
		n := 0
		for _, c := range queue {
			bufs = append(bufs, c.b)
			n += len(c.b)
		}
		_, err := bufs.WriteTo(l.conn)
		l.mu.Lock()
		l.queued -= n
		l.broken = l.broken || err != nil
		close(l.space)
		l.space = make(chan struct{})
		l.mu.Unlock()
		if err != nil {
			// The reader finds out, too, and knows better why: after a reset it still gets what the peer sent before. It must not
			// wait for a peer that will never read again, though.
			if c, ok := l.conn.(interface{ CloseWrite() error }); !ok || c.CloseWrite() != nil {
				l.conn.Close()
			}
			return
		}
	}
	if c, ok := l.conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}

// drop forgets what is queued, for a peer that was given up.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.queue {
		l.queued -= len(c.b)
	}
	l.queue = nil
}

// read hands frames to the session until the connection ends, and tells the session how it ended.
func (l *link) read(in *bufio.Reader) {
	r := listener{l, in}
	var err error
	for {
		var t frameType
		var body []byte
		if t, body, err = readFrame(r, maxFrame); err != nil {
			break
		}
		if !l.sure {
			l.sure = true
			l.s.mu.Lock()
			l.s.useLocked(l)
			l.s.mu.Unlock()
		}
		if err = l.s.handle(l, t, body); err != nil {
			break
		}
	}
	l.s.linkEnded(l, err)
	var p *protocolError
	// What is queued still goes out: the abort notice, in the second case, and that it was given up, in the third.
	orderly := l.bye || errors.As(err, &p) || errors.Is(err, io.EOF) && l.s.isDead(l.peer)
	l.mu.Lock()
	l.ending = true
	if !orderly {
		l.broken = true
		l.queue = nil
	}
	close(l.space)
	l.space = make(chan struct{})
	l.signal()
	l.mu.Unlock()
	if !orderly {
		l.conn.Close() // a writer may be stuck in it
	}
}

// handle acts on one frame. An error ends the link.
func (s *session) handle(l *link, t frameType, body []byte) error {
	f := fields{b: body}
	if s.isDead(l.peer) {
		s.refuse(l)
		if t != frameGivenUp {
			return nil
		}
	}
	switch t {
	case frameBeat:
		b := beat(f.u8())
		if f.bad || len(f.b) > 0 || b >= beats {
			break
		}
		if b == beatAsk {
			l.beat(beatAnswer)
		}
		return nil
	case frameGivenUp:
		g, err := parseGivenUp(body, s.size)
		if err != nil {
			break
		}
		s.heardGivenUp(l.peer, g)
		return nil
	case frameAgree:
		m, err := parseAgree(&f, s.size)
		if err != nil {
			break
		}
		s.agreeArrived(l, m)
		return nil
	case frameGather:
		seq, origin := f.u64(), int(f.u32())
		if f.bad {
			break
		}
		return s.gatherArrived(l, seq, origin, f.b)
	case frameMessage:
		tag := f.u64()
		if f.bad {
			break
		}
		return s.messageArrived(l.peer, tag, f.b)
	case frameAbort, frameDead, frameClosed:
		if !s.heardNews(t, body, l) {
			break
		}
		return nil
	case frameQuestion:
		number := f.u64()
		if f.bad || len(f.b) > MaxQuestion {
			break
		}
		return s.questionArrived(l, number, f.b)
	case frameAnswer:
		number, code := f.u64(), answerCode(f.u8())
		if f.bad || len(f.b) > MaxQuestion || code >= answerCodes {
			break
		}
		s.answerArrived(l, number, code, f.b)
		return nil
	}
	return &protocolError{fmt.Sprintf("rank %d sent a frame of type %d with %d bytes that means nothing", l.peer, t, len(body))}
}

// heardNews acts on news that came over l, or over none, and reports whether they mean anything.
func (s *session) heardNews(t frameType, body []byte, l *link) bool {
	switch t {
	case frameAbort:
		n, err := parseAbort(body, s.size)
		if err == nil {
			s.abort(n, l)
		}
		return err == nil
	case frameDead:
		rank, how, err := parseDead(body, s.size)
		if err != nil || how.by == s.size {
			return false
		}
		s.rankDied(rank, how, l)
		return true
	case frameClosed:
		rank, w, err := parseClosed(body, s.size)
		if err != nil {
			return false
		}
		if l != nil && rank == l.peer {
			l.bye = true
			l.end() // its session takes nothing more; ours says so by ending, too
		}
		s.rankClosed(rank, w, l)
		return true
	}
	return false
}

// linkEnded classifies the end of a link.
func (s *session) linkEnded(l *link, err error) {
	var p *protocolError
	switch {
	case errors.As(err, &p):
		s.abort(Notice{From: s.rank, Ranks: []int{l.peer}, Reason: fmt.Sprintf("rank %d (%s): %v", l.peer, s.addrs[l.peer], err)}, nil)
	case l.bye:
	case errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
		// We closed it.
	case !l.sure:
		// The peer gave up waiting before we welcomed it.
	default:
		what := "the connection broke: " + err.Error()
		if errors.Is(err, io.EOF) {
			what = "the connection ended without goodbye"
		}
		s.rankDied(l.peer, fate{by: s.rank, sure: true, reason: what}, nil)
	}
}
