package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

func (s *session) Sub(ctx context.Context, ranks []int) (Session, error) {
	return s.sub(ctx, ranks, false)
}

// sub is Sub. It is agreed where all members are known to come, whether this session is aborted meanwhile or not, and to leave this session
// only when all have been there.
func (s *session) sub(ctx context.Context, ranks []int, agreed bool) (Session, error) {
	me, err := s.checkSub(ranks)
	if err != nil {
		return nil, err
	}
	ranks = slices.Clone(ranks)
	list := appendRanks(nil, ranks)

	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil, fmt.Errorf("bootstrap Sub: %w", ErrClosed)
	}
	if s.out != nil {
		err := &AbortedError{Op: "Sub", Notice: *s.out}
		s.mu.Unlock()
		return nil, err
	}
	for _, r := range ranks {
		if s.fate[r].status != Unknown {
			err := s.peerErrorLocked("Sub", r)
			s.mu.Unlock()
			return nil, err
		}
	}
	// The members count together: the number of subs made of exactly these ranks since the last agreement, after which all begin anew,
	// for a failure may have kept some from a Sub that others began. A count of all subs would differ between ranks that took part
	// in different ones.
	count := s.subs[string(list)]
	s.subs[string(list)]++
	number, heedless := s.agreement.returned, agreed || s.aborted != nil
	s.mu.Unlock()

	addrs := make([]netip.AddrPort, len(ranks))
	for i, r := range ranks {
		addrs[i] = s.addrs[r]
	}
	sub := newSession(me, subID(s.id, list, number, count), addrs, s.hub, s.config)
	sub.outer, sub.world = ranks, s.world
	sub.log = sub.log.With("world", logID(s.world)) // by which a job's lines are found
	if sub.hub != nil {
		if err := sub.hub.enter(sub); err != nil {
			sub.hub = nil // never entered
			sub.Close()
			return nil, fmt.Errorf("bootstrap Sub of ranks %v: %w", ranks, err)
		}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	stop := s.passOn(sub, ranks, number, heedless, agreed)
	err = sub.form(ctx, "Sub")
	stop()
	if err == nil {
		return sub, nil
	}
	s.mu.Lock()
	if end := s.endLocked(heedless); end != nil && !errors.Is(err, ErrDead) {
		err = &AbortedError{Op: "Sub", Notice: *end}
	} else if s.closing {
		err = ErrClosed
	}
	s.mu.Unlock()
	return nil, fmt.Errorf("bootstrap Sub of ranks %v (its key %016x) failed after %v: %w",
		ranks, sub.id, time.Since(start).Round(time.Millisecond), err)
}

// passOn tells sub, until stop is called, what this session gets to know about its members, over whom sub does not watch before all are
// there; that this session is aborted, unless the members come all the same; that one of those has closed this session, or we have; and, where
// they have not agreed to come, that one has called an Agree instead, for it had bad news earlier. A Sub that takes long asks its neighbours for
// that, so that whoever does not come is asked by those who did. Neighbours that came have a link with sub: they may have called Agree before, when it
// came to nothing. One that did not has a while, for it may only be late with both.
func (s *session) passOn(sub *session, ranks []int, number uint64, heedless, agreed bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		asked := map[int]*link{}        // over which each neighbour was
		var long, over <-chan time.Time // from which they are asked, and from which one is in an Agree for too long
		if !agreed {
			long = time.After(wordFor)
		}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			for r := range asked {
				s.releaseLocked(r)
			}
		}()
		for ctx.Err() == nil {
			var dead []fate
			var who []int
			var end error
			here := sub.seen()
			s.mu.Lock()
			changed := s.changed
			for r, over := range asked {
				if l := s.to[r]; l != nil && l != over {
					asked[r] = l
					s.sayLocked(l, agreeMessage{step: stepCollect, number: number + 1})
				}
			}
			for i, r := range ranks {
				switch f := s.fate[r]; {
				case f.status == Dead:
					f.reason = s.reasonLocked(f)
					dead, who = append(dead, f), append(who, i)
				case f.status == Closed && agreed:
					end = s.peerErrorLocked("Sub", r)
				}
			}
			if over == nil && len(s.elsewhereLocked(asked, sub, here, number)) > 0 {
				over = time.After(s.vigil.limit)
			}
			if n := s.endLocked(heedless); n != nil {
				end = &AbortedError{Op: "Sub", Notice: *n}
			} else if s.closing {
				end = &PeerError{Op: "Sub", Rank: s.nameLocked(s.rank), Addr: s.addrs[s.rank].String(), Status: Closed, Reason: "it has closed the session of which this is a part"}
			}
			s.mu.Unlock()
			for i, f := range dead {
				sub.rankDied(who[i], fate{by: sub.rank, sure: f.sure, reason: f.reason}, nil)
			}
			if end != nil {
				sub.Abort(end)
			}
			select {
			case <-changed:
			case <-ctx.Done():
			case <-long:
				s.mu.Lock()
				for _, r := range []int{ranks[(sub.rank+1)%sub.size], ranks[(sub.rank+sub.size-1)%sub.size]} {
					if _, twice := asked[r]; !twice && r != s.rank {
						asked[r] = nil
						s.wantLocked(r)
					}
				}
				s.mu.Unlock()
			case <-over:
				over = nil
				here := sub.seen()
				s.mu.Lock()
				end := s.insteadLocked(s.elsewhereLocked(asked, sub, here, number))
				s.mu.Unlock()
				if end != nil {
					sub.Abort(end)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// seen returns the members that this rank has a link with, or whose end it knows.
func (s *session) seen() map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranks := map[int]bool{}
	for l := range s.links {
		ranks[l.peer] = true
	}
	for r, f := range s.fate {
		if f.status != Unknown {
			ranks[r] = true
		}
	}
	return ranks
}

// elsewhereLocked returns which of those that were asked have called an Agree and are not among those who are here, in the Sub.
func (s *session) elsewhereLocked(asked map[int]*link, sub *session, here map[int]bool, number uint64) (ranks []int) {
	for r := range asked {
		if s.agreement.arrived[r] > number && !here[slices.Index(sub.outer, r)] {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// insteadLocked is why a Sub ends of which members are in an Agree instead, if some are: they had the bad news earlier.
func (s *session) insteadLocked(ranks []int) error {
	switch {
	case len(ranks) == 0:
		return nil
	case s.aborted != nil:
		return &AbortedError{Op: "Sub", Notice: *s.aborted}
	}
	return &AbortedError{Op: "Sub", Notice: Notice{From: ranks[len(ranks)-1], Ranks: ranks,
		Reason: fmt.Sprintf("ranks %s have called Agree instead", formatRanks(ranks))}}
}

// endLocked returns why a Sub cannot go on, or nil. An abort of the session ends none that is heedless: it had begun after that, or all
// members have agreed to come.
func (s *session) endLocked(heedless bool) *Notice {
	if s.out == nil && !heedless {
		return s.aborted
	}
	return s.out
}

// form connects the ring and meets all members on it. If it fails it tells the others and closes the session.
func (s *session) form(ctx context.Context, op string) error {
	if s.size > 1 {
		s.wg.Go(s.keepVigil)
	}
	start := time.Now()
	meeting, stop := s.whileWhole(ctx)
	err := s.formRing(meeting)
	if err == nil {
		_, err = s.allGather(meeting, op, nil)
	}
	stop()
	s.mu.Lock()
	dead := false
	if err == nil {
		s.formed = true
	} else if why := s.deadLocked(op); why != nil {
		// All hear of it who hear of this rank's end, and before that: so it is what all of them say.
		dead, err = true, why
	} else if why := s.collectiveErrorLocked(op, 1); ctx.Err() == nil && why != nil {
		err = why
	}
	s.mu.Unlock()
	if err == nil {
		return nil
	}
	if dead {
		s.Close()
		return err
	}
	if ctx.Err() != nil && !errors.Is(err, ErrAborted) {
		if absent := s.absent(); len(absent) > 0 {
			err = &LateError{Op: op, Missing: absent, Elapsed: time.Since(start), Err: ctx.Err(), Last: err,
				What: fmt.Sprintf("ranks %s have not called %s with this list of ranks", formatRanks(absent), op)}
		}
	}
	s.Abort(err)
	s.Close()
	return err
}

// deadLocked returns the error of a call that needs all ranks, if some are dead.
func (s *session) deadLocked(op string) error {
	for r, f := range s.fate {
		if f.status == Dead {
			return s.peerErrorLocked(op, r)
		}
	}
	return nil
}

// whileWhole returns a context that ends with ctx, and when the session is aborted or a rank is gone, so that it cannot be formed any
// more; stop ends it.
func (s *session) whileWhole(ctx context.Context) (whole context.Context, stop func()) {
	return s.until(ctx, func() bool { return s.collectiveErrorLocked("", 1) != nil })
}

// until returns a context that ends with ctx, and when over says so, which is asked under the lock at each change of the session; stop
// ends it.
func (s *session) until(ctx context.Context, over func() bool) (until context.Context, stop func()) {
	until, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for until.Err() == nil {
			s.mu.Lock()
			changed := s.changed
			if over() {
				cancel()
			}
			s.mu.Unlock()
			select {
			case <-changed:
			case <-until.Done():
			}
		}
	}()
	return until, func() { cancel(); <-done }
}

const (
	absentTime  = time.Second // for asking, after the call's own time is over
	absentRanks = 1024        // that are asked at most
	absentAtOne = 32          // at one time
)

// absent asks the members, each at its own door, whether they have this session: behind a rank that did not come the ring
// brings no news of others. Ranks that do not answer in time are not in the result.
func (s *session) absent() (ranks []int) {
	ctx, cancel := context.WithTimeout(s.ctx, absentTime)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(absentAtOne)
	for d := 1; d < min(s.size, absentRanks); d++ {
		to := (s.rank + d) % s.size
		asking.Go(func() error {
			conn, err := dialProven(ctx, s.hub.net, s.addrs[to].String(), s.hub.secret, s.hub.service)
			if err != nil {
				return nil
			}
			defer conn.Close()
			var no *noEntry
			if _, err = s.call(ctx, conn, to, forAsking); errors.As(err, &no) {
				s.mu.Lock()
				ranks = append(ranks, s.nameLocked(to))
				s.mu.Unlock()
			}
			return nil
		})
	}
	asking.Wait()
	slices.Sort(ranks)
	return ranks
}

// checkSub returns this rank's position in the list.
func (s *session) checkSub(ranks []int) (me int, err error) {
	me = -1
	seen := make(map[int]bool, len(ranks))
	for i, r := range ranks {
		if err := s.checkRank("Sub", r); err != nil {
			return 0, err
		}
		if seen[r] {
			return 0, fmt.Errorf("bootstrap Sub: rank %d stands twice in %v", r, ranks)
		}
		seen[r] = true
		if r == s.rank {
			me = i
		}
	}
	if me < 0 {
		return 0, fmt.Errorf("bootstrap Sub: this rank, %d, is not in %v; only members call", s.rank, ranks)
	}
	return me, nil
}

func subID(parent uint64, list []byte, agreed, count uint64) uint64 {
	b := []byte("gccl sub session v1")
	b = binary.BigEndian.AppendUint64(b, parent)
	b = binary.BigEndian.AppendUint64(b, agreed)
	b = binary.BigEndian.AppendUint64(b, count)
	sum := sha256.Sum256(append(b, list...))
	return binary.BigEndian.Uint64(sum[:])
}
