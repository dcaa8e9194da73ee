package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// vigil is a session's watch over its neighbours in the ring of living ranks, the rank half way around, and whoever is asked for. It
// also closes that ring again where ranks are gone, so that news reaches all who can be reached: each rank sees to it that it
// has a link to the next living one.
type vigil struct {
	watch
	heard   []atomic.Int64 // by rank, in own time
	wake    chan struct{}  // one token: fates or asked-for ranks changed
	over    map[int]*awaited
	wanted  map[int]int // how many ask for a rank
	calling map[int]bool
	lone    time.Duration // when this rank was last alone, in own time
	verdict struct {      // about this rank
		asked   time.Duration // when, in time since born
		whom    int
		pending bool
	}
}

// maxCalling bounds the connections that a vigil makes at one time.
const maxCalling = 128

func (v *vigil) init(size int, every, limit time.Duration) {
	v.start(every, limit)
	v.heard = make([]atomic.Int64, size)
	v.wake = make(chan struct{}, 1)
	v.over, v.wanted, v.calling = map[int]*awaited{}, map[int]int{}, map[int]bool{}
}

// hear takes note of bytes from a rank.
func (v *vigil) hear(rank int) {
	v.heard[rank].Store(int64(v.own()))
}

func (v *vigil) rouse() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// want has the vigil watch over a rank, connecting to it if need be, until release is called as often.
func (s *session) wantLocked(rank int) {
	if s.vigil.wanted[rank]++; s.vigil.wanted[rank] == 1 {
		s.vigil.rouse()
	}
}

func (s *session) releaseLocked(rank int) {
	if s.vigil.wanted[rank]--; s.vigil.wanted[rank] == 0 {
		delete(s.vigil.wanted, rank)
	}
}

// keepVigil runs until the session is closed.
func (s *session) keepVigil() {
	v := &s.vigil
	timer := time.NewTimer(v.rest())
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-v.wake:
		case <-timer.C:
		}
		s.mu.Lock()
		ranks := s.watchedLocked()
		silent, ask, next := v.take(ranks)
		for _, a := range ask {
			if l := s.to[a.rank]; l != nil {
				l.beat(beatAsk)
			}
		}
		own := time.Since(v.born) - v.lag
		if !s.hearsLocked() {
			v.lone = own
		}
		s.settleLocked(own)
		alone := s.aloneLocked()
		if !alone {
			s.publishLocked()
		}
		s.askVerdictLocked()
		s.mu.Unlock()
		for _, a := range silent {
			s.rankDied(a.rank, fate{by: s.rank, private: alone, reason: fmt.Sprintf("silent for %.1fs (frozen or cut off)", (own - a.heard).Seconds())}, nil)
		}
		timer.Reset(next)
	}
}

// watchedLocked returns who is watched over now, with what was heard of them, and begins to connect to those that have no link.
func (s *session) watchedLocked() []*awaited {
	v := &s.vigil
	now := map[int]bool{}
	for rank := range v.wanted {
		now[rank] = true
	}
	now[(s.rank+s.size-1)%s.size] = s.prev != nil // as long as it lives; whoever comes before it then watches over us
	now[(s.rank+1)%s.size] = s.next != nil
	if s.formed {
		for _, next := range s.nextLivingLocked() {
			now[next] = true
		}
		if s.size >= 4 {
			now[(s.rank+s.size/2)%s.size] = true
		}
	}
	own := time.Since(v.born) - v.lag
	var ranks []*awaited
	for rank, watched := range now {
		if !watched || rank == s.rank || s.fate[rank].status != Unknown {
			continue
		}
		a := v.over[rank]
		if a == nil {
			a = &awaited{rank: rank, heard: own, asked: own}
			v.over[rank] = a
		}
		a.heard = max(a.heard, time.Duration(v.heard[rank].Load()))
		ranks = append(ranks, a)
		if s.to[rank] == nil && !v.calling[rank] && len(v.calling) < maxCalling && s.formed {
			v.calling[rank] = true
			s.wg.Go(func() { s.callUp(rank) })
		}
	}
	for rank := range v.over {
		if !now[rank] || s.fate[rank].status != Unknown {
			delete(v.over, rank)
		}
	}
	return ranks
}

// maxAhead bounds how many ranks ahead are tried at once.
const maxAhead = 16

// nextLivingLocked returns the next living rank in the ring; where ranks in between are gone, as many after it as are gone, for more
// may be that nobody knows of, and are found sooner together than one after the other.
func (s *session) nextLivingLocked() (ranks []int) {
	gone := 0
	for d := 1; d < s.size; d++ {
		r := (s.rank + d) % s.size
		if s.fate[r].status == Unknown {
			ranks = append(ranks, r)
		} else if len(ranks) == 0 {
			gone++
		}
		if len(ranks) > min(gone, maxAhead) {
			break
		}
	}
	return ranks
}

// callUp connects to a rank that is watched over. That a rank does not answer is for the pulse to find.
func (s *session) callUp(rank int) {
	ctx, cancel := context.WithTimeout(s.ctx, s.vigil.limit)
	defer cancel()
	_, err := s.linkTo(ctx, "connect to a neighbour", rank, s.peerGoneLocked)
	s.mu.Lock()
	delete(s.vigil.calling, rank)
	s.mu.Unlock()
	if err == nil {
		s.vigil.rouse()
	}
}

// hearsLocked reports whether anything came lately from any living rank. Those that are watched over say something each beat; a rank
// that is cut off hears nobody before it gives the first one up.
func (s *session) hearsLocked() bool {
	own := s.vigil.own()
	for r, f := range s.fate {
		if r != s.rank && f.status == Unknown && own-time.Duration(s.vigil.heard[r].Load()) < s.vigil.limit/2 {
			return true
		}
	}
	return false
}

// aloneLocked reports whether this rank hears nobody, or did so until a short time ago: it was cut off, most likely. It gives the others up
// for itself, and tells nobody: if it comes back before they missed it, it is the one to go.
func (s *session) aloneLocked() bool {
	return !s.hearsLocked() || s.vigil.lone > 0 && s.vigil.own()-s.vigil.lone < s.vigil.limit
}

// publishLocked tells what this rank kept to itself.
func (s *session) publishLocked() {
	any := false
	for rank := range s.fate {
		if f := &s.fate[rank]; f.private {
			f.private = false
			s.floodLocked(deadFrame(rank, *f), nil)
			any = true
		}
	}
	if any {
		s.agreement.proposed = nil // nobody who did not know could accept it
		s.changeLocked()
	}
}

// askVerdictLocked lets this rank, if it gave up as many as are left or more because they were silent, ask one of them now and then
// whether it was itself given up: after a cut of the network no connection between the two sides may be left.
func (s *session) askVerdictLocked() {
	v := &s.vigil
	now := time.Since(v.born)
	silent := 0
	for _, f := range s.fate {
		if f.status == Dead && !f.sure {
			silent++
		}
	}
	if s.out != nil || silent < s.size-s.gone || silent == 0 || v.verdict.pending || now-v.verdict.asked < v.limit {
		return
	}
	whom := v.verdict.whom
	for {
		whom = (whom + 1) % s.size
		if f := s.fate[whom]; f.status == Dead && !f.sure {
			break
		}
	}
	v.verdict.asked, v.verdict.whom, v.verdict.pending = now, whom, true
	s.wg.Go(func() {
		s.askVerdict(whom)
		s.mu.Lock()
		v.verdict.pending = false
		s.mu.Unlock()
	})
}

func (s *session) askVerdict(whom int) {
	ctx, cancel := context.WithTimeout(s.ctx, s.vigil.limit)
	defer cancel()
	conn, err := dialProven(ctx, s.hub.net, s.addrs[whom].String(), s.hub.secret, s.hub.service)
	if err != nil {
		return // still cut off, or really dead
	}
	defer conn.Close()
	var no *noEntry
	if _, err = s.call(ctx, conn, whom, forVerdict); errors.As(err, &no) && no.entry == entryGivenUp {
		if err := s.noEntryHere(whom, no); err != nil {
			s.log.Warn("a rank that was given up answers nonsense", "peer", whom, "error", err)
		}
	}
}

// beat asks for a sign of life, or gives one. Bytes that wait for the network already are as good.
func (l *link) beat(b beat) {
	if l.waiting() == 0 {
		l.put(makeFrame(frameBeat, []byte{byte(b)}), nil)
	}
}

type beat uint8

const (
	beatAsk beat = iota
	beatAnswer
	beats
)

// listener notes when bytes come in on a link.
type listener struct {
	l  *link
	in *bufio.Reader
}

func (r listener) Read(b []byte) (int, error) {
	n, err := r.in.Read(b)
	if n > 0 {
		r.l.s.vigil.hear(r.l.peer)
	}
	return n, err
}
