package bootstrap

import "encoding/binary"

// flood queues a frame on every link but the one it came from. Each rank passes news on once, so it reaches everybody whom a
// chain of working links reaches: around the ring in both directions, and along whatever point-to-point links there are.
func (s *session) floodLocked(frame []byte, except *link) {
	for l := range s.links {
		if l != except {
			l.put(frame, nil)
		}
	}
}

func closedFrame(rank int, last uint64) []byte {
	b := appendHeader(nil, frameClosed, 12)
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	return binary.BigEndian.AppendUint64(b, last)
}

func abortFrame(n Notice) []byte {
	b := appendHeader(nil, frameAbort, 4+len(n.Reason))
	b = binary.BigEndian.AppendUint32(b, uint32(n.From))
	return append(b, n.Reason...)
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
	s.abortedLocked(n)
}

func (s *session) abortedLocked(n Notice) {
	s.aborted = &n
	s.notices <- n // has room for the only one
	close(s.notices)
	s.changeLocked()
	s.log.Warn("aborted", "from", n.From, "reason", n.Reason)
}

// givenUp is what a rank does that hears of its own death: the others go on without it, so the error is its alone, and it
// leaves for good.
func (s *session) givenUp(by int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	for l := range s.links {
		l.end()
	}
	if s.aborted == nil {
		s.abortedLocked(Notice{From: by, Reason: "the others gave this rank up: " + reason})
	}
}

// rankDied enters the death of rank, as rank by saw it.
func (s *session) rankDied(rank, by int, reason string, except *link) {
	if rank == s.rank {
		s.givenUp(by, reason)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.fate[rank].status != Unknown {
		return
	}
	reason = reason[:min(len(reason), maxReason)]
	what := reason
	if by != s.rank {
		what += ", seen by rank " + formatRanks([]int{by})
	}
	s.fate[rank] = fate{status: Dead, reason: what}
	s.deaths++
	b := appendHeader(nil, frameDead, 8+len(reason))
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = binary.BigEndian.AppendUint32(b, uint32(by))
	s.floodLocked(append(b, reason...), except)
	for l := range s.links {
		if l.peer == rank { // it may live and only have lost another link: it hears the news, and is not listened to any more
			l.end()
		}
	}
	s.changeLocked()
	s.log.Warn("a rank is dead", "dead", rank, "address", s.addrs[rank], "seen_by", by, "reason", reason)
}

// rankClosed enters that rank closed its session after it had completed the collective last. News of it may overtake blocks of
// that collective which come the other way around the ring, so only later collectives fail.
func (s *session) rankClosed(rank int, last uint64, except *link) {
	if rank == s.rank {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.fate[rank].status != Unknown {
		return
	}
	s.fate[rank] = fate{status: Closed, last: last, reason: "it closed its session"}
	s.floodLocked(closedFrame(rank, last), except)
	s.changeLocked()
}
