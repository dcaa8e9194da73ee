package bootstrap

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Fate is the end of a rank.
type Fate struct {
	Rank   int
	Status Status // Dead or Closed
	By     int    // the rank that saw it; Rank itself if it closed
	Reason string // what was seen
}

func (s *session) Fates() <-chan Fate { return s.fates }

func (s *session) Report(rank int, reason string) error {
	const op = "Report"
	if err := s.checkRank(op, rank); err != nil {
		return err
	}
	if rank == s.rank {
		return fmt.Errorf("bootstrap %s: rank %d is this rank, which is alive", op, rank)
	}
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	}
	s.rankDied(rank, fate{by: s.rank, sure: true, reason: reason}, nil)
	return nil
}

// enterFateLocked makes the end of a rank known here. Each rank ends once.
func (s *session) enterFateLocked(rank int, f fate) {
	s.fate[rank] = f
	s.gone++
	if f.status == Dead {
		s.deaths++
	}
	s.fates <- Fate{Rank: rank, Status: f.status, By: f.by, Reason: f.reason}
	s.changeLocked()
}

func (s *session) isDead(rank int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fate[rank].status == Dead
}

// newsLocked brings a new link up to date.
func (s *session) newsLocked(l *link) {
	if s.aborted != nil && s.out == nil {
		l.put(abortFrame(*s.aborted), nil)
	}
	if s.gone == 0 {
		return
	}
	for rank, f := range s.fate {
		switch {
		case f.status == Dead && !f.private:
			l.put(deadFrame(rank, f), nil)
		case f.status == Closed:
			l.put(closedFrame(rank, f.farewell), nil)
		}
	}
}

// flood queues a frame on every link but the one it came from. Each rank passes news on once, so it reaches everybody whom a
// chain of working links reaches: around the ring in both directions, and along whatever point-to-point links there are.
func (s *session) floodLocked(frame []byte, except *link) {
	for l := range s.links {
		if l != except && s.fate[l.peer].status != Dead {
			l.put(frame, nil)
		}
	}
}

// farewell is what goes with the news that a rank closed.
type farewell struct {
	last uint64 // the last collective that it completed, or unknownLast
	said bool   // word is what it said
	word uint64
}

func closedFrame(rank int, f farewell) []byte {
	b := appendHeader(nil, frameClosed, 21)
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = binary.BigEndian.AppendUint64(b, f.last)
	return binary.BigEndian.AppendUint64(append(b, flag(f.said)), f.word)
}

func parseClosed(body []byte, size int) (rank int, w farewell, err error) {
	f := fields{b: body}
	rank, w.last = int(f.u32()), f.u64()
	said := f.u8()
	w.said, w.word = said == 1, f.u64()
	if f.bad || len(f.b) > 0 || rank >= size || said > 1 {
		return 0, w, &protocolError{"a goodbye that means nothing"}
	}
	return rank, w, nil
}

func (s *session) Farewell(word func() uint64) {
	s.mu.Lock()
	s.word = word
	s.mu.Unlock()
}

func (s *session) FarewellOf(rank int) (word uint64, said bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank < 0 || rank >= s.size {
		return 0, false
	}
	f := s.fate[rank]
	return f.word, f.said
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func abortFrame(n Notice) []byte {
	b := appendHeader(nil, frameAbort, 8+4*len(n.Ranks)+len(n.Reason))
	b = binary.BigEndian.AppendUint32(b, uint32(n.From))
	return append(appendRanks(b, n.Ranks), n.Reason...)
}

func parseAbort(body []byte, size int) (Notice, error) {
	f := fields{b: body}
	from, ranks := int(f.u32()), f.ranks()
	if f.bad || from >= size || len(ranks) > maxCulprits || slices.ContainsFunc(ranks, func(r int) bool { return r >= size }) {
		return Notice{}, &protocolError{"an abort that means nothing"}
	}
	return Notice{From: from, Ranks: ranks, Reason: string(f.b[:min(len(f.b), maxReason)])}, nil
}

func deadFrame(rank int, f fate) []byte {
	b := appendHeader(nil, frameDead, 9+len(f.reason))
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = binary.BigEndian.AppendUint32(b, uint32(f.by))
	return append(append(b, flag(f.sure)), f.reason...)
}

// parseDead reads who is dead and how that is known. That by is size means that the root saw it.
func parseDead(body []byte, size int) (rank int, how fate, err error) {
	f := fields{b: body}
	rank, how.by = int(f.u32()), int(f.u32())
	sure := f.u8()
	if f.bad || rank >= size || how.by > size || sure > 1 {
		return 0, how, &protocolError{"news of a death that mean nothing"}
	}
	how.sure, how.reason = sure == 1, string(f.b[:min(len(f.b), maxReason)])
	return rank, how, nil
}

// maxReason and maxCulprits bound what travels with a notice: text in bytes, and ranks.
const (
	maxReason   = 4096
	maxCulprits = 64
)

func (s *session) Abort(reason error) {
	text := "no reason given"
	if reason != nil {
		text = reason.Error()
	}
	blamed := culprits(reason)
	s.mu.Lock()
	ranks := s.numbersLocked(blamed)
	s.mu.Unlock()
	s.abort(Notice{From: s.rank, Ranks: ranks[:min(len(ranks), maxCulprits)], Reason: text[:min(len(text), maxReason)]}, nil)
}

func (s *session) abort(n Notice, except *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted != nil || s.closing {
		return
	}
	s.floodLocked(abortFrame(n), except)
	s.tellRootLocked(abortFrame(n))
	s.abortLocked(n)
}

// abortLocked aborts this rank's session alone.
func (s *session) abortLocked(n Notice) {
	s.aborted = &n
	s.notices <- n // has room for the only one
	close(s.notices)
	s.changeLocked()
	s.log.Warn("aborted", "from", n.From, "reason", n.Reason)
}

// rankDied enters the death of rank as f, whose status need not be set, tells.
func (s *session) rankDied(rank int, f fate, except *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.status = Dead
	f.reason = f.reason[:min(len(f.reason), maxReason)]
	if rank == s.rank {
		s.outLocked(f)
		return
	}
	if s.closing || s.fate[rank].status != Unknown {
		return
	}
	if !f.private {
		s.floodLocked(deadFrame(rank, f), except)
		s.tellRootLocked(deadFrame(rank, f))
	}
	s.enterFateLocked(rank, f)
	for l := range s.links {
		if l.peer == rank {
			l.drop()
		}
	}
	s.vigil.rouse()
	s.log.Warn("a rank is dead", "dead", rank, "address", s.addrs[rank], "seen_by", f.by, "reason", f.reason)
}

// ended tells how a rank ended at whose door nobody is any more, and of whose end no word came. It closed if another session of this process
// knows so; or if of those nearest to it in the ring, of whose ends we know, one closed: had it died while they were there, they
// would have told, and those who finish together do not hear of each other. Else it is dead.
func (s *session) ended(rank int) Status {
	if how := s.hub.ended(s.addrs[rank]); how != Unknown {
		return how
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if how := s.fate[rank].status; how != Unknown {
		return how
	}
	for _, step := range []int{1, s.size - 1} {
		for r := (rank + step) % s.size; r != rank; r = (r + step) % s.size {
			if how := s.fate[r].status; how == Closed {
				return Closed
			} else if how == Dead {
				break
			}
		}
	}
	return Dead
}

// unknownLast stands for the last collective of a rank that closed when nobody is there who could tell. What it sent may be on its way for
// a while; then this rank expects no more than the last that it has completed.
const unknownLast = ^uint64(0)

// settleLocked gives up waiting for what ranks sent before they closed, which may be on its way for a while: it is lost where their last words
// came and then the other connection broke, or their host was cut off. All that a rank has completed was sent by all ranks before it closed. Word
// that it closed may come a shorter way than that, which goes from rank to rank: each of these may take a beat for it.
func (s *session) settleLocked(own time.Duration) {
	if s.gone == s.deaths {
		return
	}
	g := &s.gathers
	patience := s.vigil.limit + time.Duration(s.reach(true)-1)*s.vigil.every
	for rank := range s.fate {
		f := &s.fate[rank]
		if f.status != Closed || f.expected == g.completed {
			continue
		}
		if f.expected != unknownLast && (f.expected < g.called || g.called == g.completed || own-g.since < patience) || own-f.at < patience {
			continue
		}
		if f.expected != unknownLast {
			f.reason += fmt.Sprintf("; what it had sent before that did not arrive within %v", patience)
		}
		f.expected = g.completed
		s.changeLocked()
	}
}

// rankClosed enters that rank closed its session, and what it said. News of it may overtake blocks of the last collective that it
// completed, which come the other way around the ring, so only later collectives fail. Better news replace worse.
func (s *session) rankClosed(rank int, w farewell, except *link) {
	if rank == s.rank {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := &s.fate[rank]; f.status == Closed && (w.last < f.last || w.said && !f.said) {
		f.last, f.expected = min(f.last, w.last), min(f.expected, w.last)
		if w.said {
			f.said, f.word = true, w.word
		}
		s.floodLocked(closedFrame(rank, f.farewell), except)
		s.changeLocked()
	}
	if s.closing || s.fate[rank].status != Unknown {
		return
	}
	s.floodLocked(closedFrame(rank, w), except)
	s.enterFateLocked(rank, fate{status: Closed, by: rank, farewell: w, expected: w.last, at: s.vigil.own(), reason: "it closed its session"})
}
