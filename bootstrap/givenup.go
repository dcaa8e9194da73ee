package bootstrap

import (
	"encoding/binary"
	"slices"
)

// givenUp tells a rank that others go on without it, and who they are: after a cut of the network each side has given the other up,
// and only one may go on.
type givenUp struct {
	by     int    // who saw it
	alone  bool   // the sender heard of no living rank for a while, and maybe knows less than it should
	silent []int  // ranks that the sender takes to be dead because they were silent, this one among them
	ended  []int  // ranks whose end the sender is sure of
	reason string // what by saw
}

func (g givenUp) body() []byte {
	b := append(binary.BigEndian.AppendUint32(nil, uint32(g.by)), flag(g.alone))
	return append(appendRanks(appendRanks(b, g.silent), g.ended), g.reason...)
}

func parseGivenUp(body []byte, size int) (givenUp, error) {
	f := fields{b: body}
	by, alone := int(f.u32()), f.u8()
	g := givenUp{by: by, alone: alone == 1, silent: f.ranks(), ended: f.ranks()}
	out := func(r int) bool { return r >= size }
	if f.bad || g.by >= size || alone > 1 || slices.ContainsFunc(g.silent, out) || slices.ContainsFunc(g.ended, out) {
		return g, &protocolError{"a message to a rank that was given up that means nothing"}
	}
	g.reason = string(f.b[:min(len(f.b), maxReason)])
	return g, nil
}

func (s *session) givenUpLocked(rank int) givenUp {
	g := givenUp{by: s.fate[rank].by, alone: s.aloneLocked(), reason: s.fate[rank].reason}
	for r, f := range s.fate {
		switch {
		case f.status == Dead && !f.sure:
			g.silent = append(g.silent, r)
		case f.status != Unknown:
			g.ended = append(g.ended, r)
		}
	}
	return g
}

// heardGivenUp is told by peer that it and others go on without this rank. One rank that heard of nobody was cut off itself, and is not
// believed by those who were not.
func (s *session) heardGivenUp(peer int, g givenUp) {
	s.mu.Lock()
	known := s.fate[peer].status == Dead
	lost := g.alone && !s.aloneLocked()
	yields := !lost && (!known || s.yieldsLocked(g))
	s.mu.Unlock()
	switch {
	case yields:
		s.rankDied(s.rank, fate{by: g.by, reason: g.reason}, nil)
	case !known:
		s.rankDied(peer, fate{by: s.rank, reason: "it was cut off, and gave this rank up"}, nil)
	}
}

// yieldsLocked decides between two sides that gave each other up: one rank that is alone does not go on, else the larger side does, or of
// two that are as large the one with the lowest rank. As long as both count on the same ranks, these decide: they will tell one side that it was given up, and that
// side, which takes them to be alive, believes it. Neither counts on ranks of whose end the other is sure.
func (s *session) yieldsLocked(g givenUp) bool {
	if alone := s.aloneLocked(); alone != g.alone {
		return alone
	}
	const theirs, ours = 1, 2
	side := make([]uint8, s.size)
	for r, f := range s.fate {
		if f.status == Unknown {
			side[r] = ours
		}
		if f.status == Unknown || f.status == Dead && !f.sure {
			side[r] |= theirs
		}
	}
	for _, r := range g.silent {
		side[r] &^= theirs
	}
	for _, r := range g.ended {
		if r != s.rank {
			side[r] = 0
		}
		side[r] &^= theirs
	}
	more, lowest := 0, uint8(0) // how many more they are, and whose the lowest rank is
	for _, of := range side {
		switch of {
		case theirs | ours:
			return false
		case theirs:
			more++
		case ours:
			more--
		}
		if lowest == 0 {
			lowest = of
		}
	}
	return more > 0 || more == 0 && lowest == theirs
}

// refuse answers a peer that was given up and talks again. The answer is made only now, when both sides have found out what there is to
// find out, and not when the peer died. Who was given up itself tells nobody that they were.
func (s *session) refuse(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil {
		l.end()
	} else if !s.closing {
		l.put(makeFrame(frameGivenUp, s.givenUpLocked(l.peer).body()), nil)
		l.end()
	}
}

// outLocked ends this rank's session because the others go on without it.
func (s *session) outLocked(f fate) {
	if s.closing || s.out != nil {
		return
	}
	s.out = &Notice{From: f.by, Reason: "it gave this rank up: " + f.reason}
	s.floodLocked(deadFrame(s.rank, f), nil) // for those who did not hear it
	for l := range s.links {
		l.end()
	}
	if s.aborted == nil {
		s.abortLocked(*s.out)
		return
	}
	s.log.Warn("given up", "by", f.by, "reason", f.reason)
	s.changeLocked()
}
