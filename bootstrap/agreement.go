package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// agreement is a session's part in Agree, whose calls are numbered on each rank.
//
// The lowest living rank leads. It waits until every living rank has called, proposes the list of them, and when all of these have
// accepted it, decides and tells them. Deaths spread to all, so all have the same leader in the end. A rank follows nobody whom
// it takes to be dead: a leader that was given up finds too few to accept, and never decides alone. If the leader dies, the next
// asks everybody anew, and whoever had heard the old one's decision answers with it, which the next tells those who wait for it; else it
// proposes another list.
type agreement struct {
	turn     chan struct{} // held by the call under way
	called   uint64        // the last that this rank called
	returned uint64        // the last whose list this rank has
	decided  map[uint64][]int
	leads    uint64           // what follows is about this number
	reached  map[int]*link    // ranks that were asked to call, and over which link
	arrived  map[int]uint64   // by rank: the last that it called
	asking   map[int]uint64   // by rank: the one that it wants to hear of once this rank has called it
	proposed []int            // or nil
	attempt  uint32           // of the proposal
	accepted map[int]struct{} // ranks that accepted it
	offer    *offer           // another rank's proposal, which this one may yet accept
}

type offer struct {
	agreeMessage
	from *link
	told bool // that it does not fit what we know
}

func (a *agreement) init() {
	a.turn = make(chan struct{}, 1)
	a.decided = map[uint64][]int{}
	a.arrived, a.asking = map[int]uint64{}, map[int]uint64{}
}

type agreeStep uint8

const (
	stepCollect agreeStep = iota // have you called? The leader wants to know, and who waits for others in a Sub
	stepCalled                   // I have
	stepPropose                  // leader: these are alive
	stepAccept
	stepDecide // these are alive
	steps
)

// agreeMessage is what ranks that agree say to each other: step 1, number 8, attempt 4, ranks, and all ends of ranks that the sender
// knows, each as rank 4, rankEnd 1, by 4, last 8, text.
type agreeMessage struct {
	step    agreeStep
	number  uint64
	attempt uint32
	ranks   []int
	fates   []rankFate
}

type rankFate struct {
	rank int
	fate
}

const maxFateReason = 256 // in an agreeMessage

// rankEnd is how a rank ended, in an agreeMessage.
type rankEnd uint8

const (
	endSilent rankEnd = iota
	endSure
	endClosed
	rankEnds
)

func (m agreeMessage) frame() []byte {
	b := []byte{byte(m.step)}
	b = binary.BigEndian.AppendUint64(b, m.number)
	b = binary.BigEndian.AppendUint32(b, m.attempt)
	b = appendRanks(b, m.ranks)
	for _, f := range m.fates {
		b = binary.BigEndian.AppendUint32(b, uint32(f.rank))
		end := endSilent
		switch {
		case f.status == Closed:
			end = endClosed
		case f.sure:
			end = endSure
		}
		b = append(b, byte(end))
		b = binary.BigEndian.AppendUint32(b, uint32(f.by))
		b = binary.BigEndian.AppendUint64(b, f.last)
		b = appendText(b, f.reason[:min(len(f.reason), maxFateReason)])
	}
	return makeFrame(frameAgree, b)
}

func parseAgree(f *fields, size int) (m agreeMessage, err error) {
	m = agreeMessage{step: agreeStep(f.u8()), number: f.u64(), attempt: f.u32(), ranks: f.ranks()}
	bad := m.step >= steps || m.number == 0
	for i, r := range m.ranks {
		bad = bad || r >= size || i > 0 && r <= m.ranks[i-1]
	}
	for !f.bad && len(f.b) > 0 {
		rank, end := int(f.u32()), rankEnd(f.u8())
		e := rankFate{rank, fate{status: Dead, sure: end == endSure, by: int(f.u32()), farewell: farewell{last: f.u64()}, reason: f.text()}}
		if end == endClosed {
			e.status = Closed
		}
		m.fates = append(m.fates, e)
		bad = bad || e.rank >= size || e.by >= size || end >= rankEnds || len(e.reason) > maxFateReason
	}
	if f.bad || bad {
		return m, &protocolError{"a message about an agreement that means nothing"}
	}
	return m, nil
}

// sayLocked queues a message with all that is known of ranks that are gone.
func (s *session) sayLocked(l *link, m agreeMessage) {
	if s.gone > 0 {
		for rank, f := range s.fate {
			if f.status != Unknown && !f.private {
				m.fates = append(m.fates, rankFate{rank, f})
			}
		}
	}
	l.put(m.frame(), nil)
}

// agreeArrived acts on another rank's message.
func (s *session) agreeArrived(l *link, m agreeMessage) {
	for _, f := range m.fates {
		if f.status == Dead {
			s.rankDied(f.rank, f.fate, l)
		} else {
			s.rankClosed(f.rank, f.farewell, l)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.agreement
	if s.closing || s.out != nil || s.fate[l.peer].status == Dead {
		return
	}
	list := a.decided[m.number]
	switch {
	case m.step == stepDecide:
		if list != nil || m.number <= a.returned {
			return
		}
		if !slices.Contains(m.ranks, s.rank) {
			s.outLocked(fate{by: l.peer, reason: "it is not in the list that was agreed on"})
			return
		}
		a.decided[m.number] = m.ranks
		for rank, called := range a.arrived { // who took this rank for the leader, and asks no more
			if l := s.to[rank]; l != nil && called >= m.number {
				s.sayLocked(l, agreeMessage{step: stepDecide, number: m.number, ranks: m.ranks})
			}
		}
	case list != nil: // it does not know yet
		s.sayLocked(l, agreeMessage{step: stepDecide, number: m.number, ranks: list})
	case m.step == stepCollect && a.called >= m.number:
		s.sayLocked(l, agreeMessage{step: stepCalled, number: m.number})
	case m.step == stepCollect:
		a.asking[l.peer] = m.number
	case m.step == stepCalled:
		a.arrived[l.peer] = max(a.arrived[l.peer], m.number)
	case m.step == stepPropose:
		a.offer = &offer{agreeMessage: m, from: l}
	case m.step == stepAccept && a.leads == m.number && a.attempt == m.attempt && a.proposed != nil:
		a.accepted[l.peer] = struct{}{}
	}
	s.changeLocked()
}

func (s *session) Agree(ctx context.Context) ([]int, error) {
	const op = "Agree"
	start := time.Now()
	select {
	case s.agreement.turn <- struct{}{}:
	case <-s.ctx.Done():
		return nil, fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("bootstrap %s: not begun: %w", op, ctx.Err())
	}
	defer func() { <-s.agreement.turn }()

	a := &s.agreement
	s.mu.Lock()
	defer s.mu.Unlock()
	number := a.returned + 1
	a.called = number
	a.leads = 0
	for rank, n := range a.asking {
		if n > number {
			continue
		}
		delete(a.asking, rank)
		if l := s.to[rank]; l != nil {
			s.sayLocked(l, agreeMessage{step: stepCalled, number: n})
		}
	}
	wanted := map[int]bool{}
	defer func() {
		for rank := range wanted {
			s.releaseLocked(rank)
		}
	}()
	var told *link // over which the leader was told that we called
	for {
		if s.closing {
			return nil, fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
		}
		if s.out != nil {
			return nil, &AbortedError{Op: op, Notice: *s.out}
		}
		var missing []int
		if a.decided[number] == nil {
			if leader := s.livingRanksLocked()[0]; leader == s.rank {
				missing = s.leadLocked(number, wanted)
			} else {
				missing = []int{leader}
				if !wanted[leader] {
					wanted[leader] = true
					s.wantLocked(leader)
				}
				if l := s.to[leader]; l != nil && l != told {
					told = l
					s.sayLocked(l, agreeMessage{step: stepCalled, number: number})
				}
			}
		}
		s.considerLocked(number)
		if list := a.decided[number]; list != nil {
			a.returned = number
			delete(a.decided, number-2)
			clear(s.subs)
			return slices.Clone(list), nil
		}
		if ctx.Err() != nil {
			return nil, &LateError{Op: op, Seq: number, Missing: missing, Elapsed: time.Since(start), Err: ctx.Err()}
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}

// leadLocked does what the leader can do now, and returns the ranks that it waits for.
func (s *session) leadLocked(number uint64, wanted map[int]bool) (missing []int) {
	a := &s.agreement
	if a.leads != number {
		a.leads, a.proposed = number, nil
		a.reached, a.accepted = map[int]*link{}, map[int]struct{}{}
	}
	living := s.livingRanksLocked()
	for _, rank := range living {
		if rank == s.rank {
			continue
		}
		if !wanted[rank] {
			wanted[rank] = true
			s.wantLocked(rank)
		}
		if l := s.to[rank]; l != nil && a.reached[rank] != l {
			a.reached[rank] = l
			s.sayLocked(l, agreeMessage{step: stepCollect, number: number})
		}
		if a.arrived[rank] < number {
			missing = append(missing, rank)
		}
	}
	if len(missing) > 0 {
		return missing
	}
	if !slices.Equal(a.proposed, living) {
		a.proposed = living
		a.attempt++
		clear(a.accepted)
		s.tellLocked(agreeMessage{step: stepPropose, number: number, attempt: a.attempt, ranks: living})
	}
	for _, rank := range living {
		if _, ok := a.accepted[rank]; !ok && rank != s.rank {
			missing = append(missing, rank)
		}
	}
	if len(missing) == 0 {
		a.decided[number] = living
		s.tellLocked(agreeMessage{step: stepDecide, number: number, ranks: living})
	}
	return missing
}

// considerLocked accepts another rank's proposal once it fits what this one knows: nobody is in it who is dead, and nobody is missing
// who is not gone. Until then, one of the two knows more, and the other will hear of it.
func (s *session) considerLocked(number uint64) {
	o := s.agreement.offer
	if o == nil || o.number != number || s.fate[o.from.peer].status == Dead {
		return
	}
	fits := true
	for rank, f := range s.fate {
		_, in := slices.BinarySearch(o.ranks, rank)
		fits = fits && (in || f.status != Unknown) && (!in || f.status != Dead)
	}
	switch {
	case fits:
		s.agreement.offer = nil
		s.sayLocked(o.from, agreeMessage{step: stepAccept, number: number, attempt: o.attempt})
	case !o.told:
		o.told = true
		s.sayLocked(o.from, agreeMessage{step: stepCalled, number: number})
	}
}

// livingRanksLocked returns the ranks that may still have a say. Of one that closed, its last words come before its link ends, while
// the news that it closed may come sooner.
func (s *session) livingRanksLocked() (ranks []int) {
	linked := map[int]bool{}
	if s.gone > 0 {
		for l := range s.links {
			linked[l.peer] = true
		}
	}
	for rank, f := range s.fate {
		if f.status == Unknown || f.status == Closed && linked[rank] {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// tellLocked says m to all of its ranks. One without a link is gone, or will be.
func (s *session) tellLocked(m agreeMessage) {
	for _, rank := range m.ranks {
		if l := s.to[rank]; l != nil {
			s.sayLocked(l, m)
		}
	}
}
