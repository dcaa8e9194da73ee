package bootstrap

import (
	"encoding/binary"
	"fmt"
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

// text is the reason and who saw it, if that was not reader.
func (f fate) text(reader int) string {
	if f.status == Dead && f.by != reader {
		return fmt.Sprintf("%s, seen by rank %d", f.reason, f.by)
	}
	return f.reason
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
		case f.status == Closed && f.last != unknownLast:
			l.put(closedFrame(rank, f.last), nil)
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

func closedFrame(rank int, last uint64) []byte {
	b := appendHeader(nil, frameClosed, 12)
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	return binary.BigEndian.AppendUint64(b, last)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func abortFrame(n Notice) []byte {
	b := appendHeader(nil, frameAbort, 4+len(n.Reason))
	b = binary.BigEndian.AppendUint32(b, uint32(n.From))
	return append(b, n.Reason...)
}

func deadFrame(rank int, f fate) []byte {
	b := appendHeader(nil, frameDead, 9+len(f.reason))
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = binary.BigEndian.AppendUint32(b, uint32(f.by))
	return append(append(b, flag(f.sure)), f.reason...)
}

// maxReason bounds the text that travels with a notice.
const maxReason = 4096

func (s *session) Abort(reason error) {
	text := "no reason given"
	if reason != nil {
		text = reason.Error()
	}
	s.abort(Notice{From: s.rank, Reason: text[:min(len(text), maxReason)]}, nil)
}

func (s *session) abort(n Notice, except *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted != nil || s.closing {
		return
	}
	s.floodLocked(abortFrame(n), except)
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

// unknownLast stands for the last collective of a rank that closed when nobody is there who could tell.
const unknownLast = ^uint64(0)

// rankClosed enters that rank closed its session after it had completed the collective last. News of it may overtake blocks of
// that collective which come the other way around the ring, so only later collectives fail.
func (s *session) rankClosed(rank int, last uint64, except *link) {
	if rank == s.rank {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := &s.fate[rank]; f.status == Closed && last < f.last {
		f.last = last
		s.floodLocked(closedFrame(rank, last), except)
		s.changeLocked()
	}
	if s.closing || s.fate[rank].status != Unknown {
		return
	}
	if last != unknownLast {
		s.floodLocked(closedFrame(rank, last), except)
	}
	s.enterFateLocked(rank, fate{status: Closed, by: rank, last: last, reason: "it closed its session"})
}
