package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
)

// epitaph is what a process still says about a session of its that is closed: the news that the session would have told on a new link.
// Word of an abort travels over links; where all ranks in between have closed theirs, who comes to ask must not hear less.
type epitaph struct {
	rank int
	dead []int32 // who was given up hears that from those who go on
	news []byte  // frames: that it was aborted, deaths, and that this rank closed
}

const (
	maxOver     = 4096    // ended sessions that a hub remembers; the oldest makes room
	maxEpitaph  = 8 << 10 // bytes of news in one: an abort with its reason, and some deaths with theirs
	maxEpitaphs = 4 << 20 // of all that a hub keeps; one alone may be as large in a world of maxWorld ranks
)

func (e *epitaph) bytes() int { return len(e.news) + 4*len(e.dead) }

// epitaphLocked is of a session that is closing, so that nothing is added to what it knows.
func (s *session) epitaphLocked(w farewell) *epitaph {
	e := &epitaph{rank: s.rank}
	bye := closedFrame(s.rank, w)
	add := func(frame []byte) {
		if len(e.news)+len(frame)+len(bye) <= maxEpitaph {
			e.news = append(e.news, frame...)
		}
	}
	if s.aborted != nil && s.out == nil {
		add(abortFrame(*s.aborted))
	}
	for rank, f := range s.fate {
		if f.status == Dead {
			e.dead = append(e.dead, int32(rank))
			if !f.private {
				add(deadFrame(rank, f))
			}
		}
	}
	add(bye)
	return e
}

// answer is for who calls for the session. Nil is the epitaph of a session of which nothing is known any more.
func (e *epitaph) answer(hi hello) []byte {
	if e == nil || hi.to != uint32(e.rank) || slices.Contains(e.dead, int32(hi.from)) {
		return noEntryFrame(entryOver, "its session is closed")
	}
	return noEntryFrame(entryEnded, string(e.news))
}

// heardEpitaph takes the news of a peer whose session is over.
func (s *session) heardEpitaph(peer int, news []byte) error {
	r := bytes.NewReader(news)
	for r.Len() > 0 {
		t, body, err := readFrame(r, maxEpitaph)
		if err != nil || !s.heardNews(t, body, nil) {
			return &protocolError{fmt.Sprintf("the news of rank %d, whose session is over, mean nothing", peer)}
		}
	}
	return nil
}

// lastCall sees to it that an abort is known to somebody who is there yet: where those closed that this rank had links to, it reaches for the
// next living one, who passes the word on. A process that has no other session leaves no epitaph.
func (s *session) lastCall() {
	ctx, cancel := context.WithTimeout(s.ctx, refusedFor)
	defer cancel()
	for ctx.Err() == nil {
		s.mu.Lock()
		needed := s.formed && s.aborted != nil && s.out == nil && !s.closing
		for l := range s.links {
			needed = needed && s.fate[l.peer].status != Unknown
		}
		next := s.nextLivingLocked()
		s.mu.Unlock()
		if !needed || len(next) == 0 {
			return
		}
		if _, err := s.linkTo(ctx, "tell of the abort", next[0], s.peerGoneLocked); err != nil && !errors.As(err, new(*PeerError)) {
			return
		}
	}
}
