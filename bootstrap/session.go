package bootstrap

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Session is one rank's membership in a world, or in a part of one. Its methods may be called from any goroutine.
//
// AllGather, Barrier and Sub are collective: the members call them in the same order; calls that come at the same time from one
// rank are done one after the other. Point-to-point messages are apart from them.
type Session interface {
	// Rank and Size number the members 0 … Size-1.
	Rank() int
	Size() int
	// ID is equal on all members, and differs between worlds and their parts.
	ID() uint64

	// AllGather sends b to all members and returns what each sent, by rank. The blocks may differ in length and are together at
	// most MaxPayload. B is not kept; the result is the caller's. When ctx ends first, the error is a [*LateError] that names the
	// ranks which had not called; the session can then do no further collective.
	AllGather(ctx context.Context, b []byte) ([][]byte, error)
	// Barrier returns when all members have called it. It is an AllGather of nothing, with the same errors.
	Barrier(ctx context.Context) error

	// Send hands b to rank to, where a Recv with the same tag takes it. It returns when b is queued (b is not kept), connecting
	// first if need be; it does not wait for the Recv. Messages of one tag between two ranks arrive in order.
	Send(ctx context.Context, to int, tag uint64, b []byte) error
	// Recv returns the next message that rank from sent with tag. The result is the caller's. What arrives before its Recv is
	// kept, up to MaxUnexpected bytes; a peer that sends more than that aborts the session.
	Recv(ctx context.Context, from int, tag uint64) ([]byte, error)

	// Sub returns a session of the given ranks alone, which all of them and nobody else call with the same list; its position in
	// the list is a member's new rank. The new session is independent: it outlives this one, and aborting one does not abort the
	// other. A member may be in several subs at once. Sub works on an aborted session, too, for the survivors. Errors of Sub give ranks
	// their numbers in this session. After a Sub that failed on some members, who may count their subs otherwise than the rest, the same
	// ranks make another only after an Agree.
	Sub(ctx context.Context, ranks []int) (Session, error)

	// Ask puts a question of at most MaxQuestion bytes to a rank and returns what the function that it gave to Answer says, whatever
	// else that rank is doing. It works on an aborted session, too. The error is a [*PeerError] if the rank is gone or goes,
	// ErrNoAnswer if it has not called Answer, a [*LateError] when ctx ends first. Question is not kept; the answer is the caller's.
	Ask(ctx context.Context, to int, question []byte) ([]byte, error)
	// Answer gives the function that answers questions of others (and of this rank) from now on, in place of an earlier one; nil
	// answers none. It is called on goroutines of the session, at several of them at once, until Close returns: it must not block,
	// nor call the session, nor keep the question; the session keeps the answer, of at most MaxQuestion bytes.
	Answer(f func(from int, question []byte) []byte)

	// Status says what is known about a rank, without asking it.
	Status(rank int) Status
	// Farewell gives the function whose number Close tells the others, in place of an earlier one: how far this rank came, say. It must not
	// call the session.
	Farewell(word func() uint64)
	// FarewellOf returns the number that a rank said when it closed, as far as word of it came here.
	FarewellOf(rank int) (word uint64, said bool)
	// Fates gives the end of each other rank once, in the order in which they become known here, those from before the call, too.
	// All calls return one channel, which holds what nobody reads, and is closed by Close.
	Fates() <-chan Fate
	// Report enters that a rank is dead, which the caller knows from elsewhere (its pidfd, say): all ranks hear it, and that rank, if
	// it should live, is told to end its session. A rank whose end is known already is left at that.
	Report(rank int, reason string) error
	// Agree lets the ranks that are left agree on who they are; all of them call it. The list is sorted, the same on all, and this rank is
	// in it: a Sub of it works. Ranks may die before and during it; silent ones are given up as ever, so it waits only for ranks that
	// live and do not call, until ctx ends: the error is then a [*LateError] that names them, and the call may be repeated. It works on
	// an aborted session. A rank that the others gave up gets an [*AbortedError]. Those whom a cut of the network keeps apart agree
	// each among themselves; compare the list with Size where that must not be.
	Agree(ctx context.Context) (alive []int, err error)
	// Regroup makes a session of the ranks that are left, which all of them call, and returns it with the list of these ranks: its rank i
	// is rank alive[i] of this one. All ranks get the same, however many die meanwhile, and whether they have heard of an abort or not: it
	// may come at any time. It waits as Agree does, with the same errors. This session is still to be closed.
	Regroup(ctx context.Context) (sub Session, alive []int, err error)

	// Abort ends every call under way or to come on all members with an [*AbortedError], as far as they can be reached. The first
	// reason wins. Whom it blames is told, too, if it has, or wraps what has, a method Culprits() []int, as errors of this package do. The
	// session is then still to be closed.
	Abort(reason error)
	// Aborted returns a channel that gives one Notice when the session is aborted; it is closed after that, and by Close.
	Aborted() <-chan Notice

	// Close says goodbye, hands what is queued to the network, and frees everything; calls under way return ErrClosed. It waits
	// for at most a few seconds for peers that do not read. Closing twice does nothing.
	Close() error
}

// Notice says who aborted a session and why.
type Notice struct {
	From   int
	Ranks  []int // whom the reason blames, at most 64; nil: it does not say
	Reason string
}

// Status is what a rank knows about another.
type Status uint8

const (
	Unknown Status = iota // never heard of directly
	Alive                 // it has a connection with us that works, as far as TCP knows
	Dead                  // its process is gone or cut off, seen by us or another rank; it never comes back
	Closed                // it closed its session in good order
)

// String returns the status in lower case.
func (s Status) String() string {
	switch s {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// Time limits of Close, per session.
const (
	lingerClose = 5 * time.Second // for peers to take what is queued
	lingerAbort = time.Second
)

type session struct {
	rank, size int
	id         uint64
	world      uint64           // id of the session that Join made and this one is a sub of, or our own
	addrs      []netip.AddrPort // by rank
	hub        *hub             // nil in a world of one
	root       io.Closer        // the root that we serve, or nil
	muster     *muster          // while the ranks of a world meet: the connection to its root; under mu
	config     *Config          // of the world; only read
	log        *slog.Logger

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	wg     sync.WaitGroup // the links' goroutines

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced when fate, aborted, links or closing change
	fate       []fate        // by rank
	deaths     int           // ranks that are Dead
	gone       int           // ranks that are Dead or Closed
	aborted    *Notice
	out        *Notice       // that others gave this rank up
	formed     bool          // all members are there
	word       func() uint64 // or nil: what Close says
	outer      []int         // of one that Sub makes: the members' numbers in the session that it was called on
	closing    bool
	epitaph    *epitaph      // once it is closing
	closed     chan struct{} // closed when Close is done
	notices    chan Notice
	links      map[*link]struct{}
	to         map[int]*link         // over which to send to a rank
	dialing    map[int]chan struct{} // closed when the dial under way is over
	next, prev *link                 // of the ring; both nil until it is formed, and in a world of one
	subs       map[string]uint64     // how many subs were made of a list of ranks since the last agreement

	gathers   gathers
	box       mailbox
	questions questions
	vigil     vigil
	agreement agreement
	fates     chan Fate // has room for all
}

// fate is how a rank ended, if it did.
type fate struct {
	status   Status        // Unknown, Dead or Closed
	by       int           // who saw it
	sure     bool          // if Dead: its connection ended, and not that it was only silent
	farewell               // if Closed
	expected uint64        // if Closed: last, or less where this rank has given up waiting for what is on its way; nobody is told
	at       time.Duration // if Closed: when that became known, in the vigil's own time
	private  bool          // if Dead: found by this rank while it heard of nobody, and nobody is told
	reason   string        // as by said it
}

func newSession(rank int, id uint64, addrs []netip.AddrPort, h *hub, c *Config) *session {
	s := &session{
		rank: rank, size: len(addrs), id: id, addrs: addrs, hub: h,
		config: c, world: id, log: c.Log.With("comm", logID(id), "rank", rank, "size", len(addrs)),
		changed: make(chan struct{}),
		fate:    make([]fate, len(addrs)),
		closed:  make(chan struct{}),
		notices: make(chan Notice, 1),
		links:   map[*link]struct{}{},
		to:      map[int]*link{},
		dialing: map[int]chan struct{}{},
		subs:    map[string]uint64{},
		fates:   make(chan Fate, len(addrs)),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.gathers.init()
	s.box.init()
	s.questions.init()
	s.vigil.init(s.size, c.Heartbeat, c.SilentAfter)
	s.agreement.init()
	return s
}

// logID is an id as log lines have it, those of the package's user, too.
func logID(id uint64) string { return fmt.Sprintf("%016x", id) }

func (s *session) Rank() int  { return s.rank }
func (s *session) Size() int  { return s.size }
func (s *session) ID() uint64 { return s.id }

func (s *session) Status(rank int) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rank < 0 || rank >= s.size:
		return Unknown
	case s.fate[rank].status != Unknown:
		return s.fate[rank].status
	case rank == s.rank:
		return Alive
	}
	for l := range s.links {
		if l.peer == rank {
			return Alive
		}
	}
	return Unknown
}

func (s *session) Aborted() <-chan Notice { return s.notices }

// changeLocked wakes everybody who waits for a change.
func (s *session) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// usableLocked returns the error of a call that begins or goes on, or nil.
func (s *session) usableLocked(op string) error {
	if s.closing {
		return fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	}
	if s.aborted != nil {
		n := Notice{From: s.nameLocked(s.aborted.From), Reason: s.aborted.Reason}
		for _, r := range s.aborted.Ranks {
			n.Ranks = append(n.Ranks, s.nameLocked(r))
		}
		return &AbortedError{Op: op, Notice: n}
	}
	return nil
}

// nameLocked returns a rank's number for errors: until Sub has returned, that in the session on which it was called.
func (s *session) nameLocked(rank int) int {
	if s.formed || s.outer == nil {
		return rank
	}
	return s.outer[rank]
}

// numbersLocked undoes nameLocked. Ranks that are not in this session are left out.
func (s *session) numbersLocked(names []int) (ranks []int) {
	for _, r := range names {
		if !s.formed && s.outer != nil {
			r = slices.Index(s.outer, r)
		}
		if r >= 0 && r < s.size {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (s *session) peerErrorLocked(op string, rank int) error {
	f := s.fate[rank]
	return &PeerError{Op: op, Rank: s.nameLocked(rank), Addr: s.addrs[rank].String(), Status: f.status, Reason: s.reasonLocked(f)}
}

// reasonLocked is what was seen and who saw it, if that was not this rank.
func (s *session) reasonLocked(f fate) string {
	if f.status == Dead && f.by != s.rank {
		return fmt.Sprintf("%s, seen by rank %d", f.reason, s.nameLocked(f.by))
	}
	return f.reason
}

func (s *session) Close() error {
	s.lastCall()
	s.mu.Lock()
	word := s.word
	s.mu.Unlock()
	var w farewell
	if word != nil {
		w.said, w.word = true, word()
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		<-s.closed
		return nil
	}
	w.last = s.gathers.completed
	s.closing, s.epitaph = true, s.epitaphLocked(w)
	linger := lingerClose
	if s.aborted != nil || !s.formed { // nothing is queued that anybody wants
		linger = lingerAbort
	}
	bye := closedFrame(s.rank, w)
	for l := range s.links {
		if s.fate[l.peer].status == Dead {
			l.conn.Close() // nobody there to say goodbye
			continue
		}
		l.put(bye, nil)
		l.end()
	}
	s.changeLocked()
	s.mu.Unlock()

	s.leaveRoot()
	s.cancel()
	if s.hub != nil {
		s.hub.leave(s, s.epitaph) // no link comes in after this
	}
	cut := time.AfterFunc(linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for l := range s.links {
			s.log.Warn("closed without a peer's goodbye", "peer", l.peer, "address", s.addrs[l.peer], "waited", linger)
			l.conn.Close()
		}
	})
	s.wg.Wait()
	cut.Stop()
	if s.root != nil {
		s.root.Close()
	}
	if s.aborted == nil { // nobody writes it any more
		close(s.notices)
	}
	close(s.fates)
	close(s.closed)
	return nil
}
