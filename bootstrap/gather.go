package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// gathers is the state of a session's collectives, which are all AllGathers on the ring: each rank's block travels n/2 hops
// one way and (n-1)/2 the other. The links' readers pass blocks on whether or not this rank has called yet, so a latency is a
// hop's and not a call's, and the blocks that are missing at a timeout are those of the ranks that did not call. Under load
// several blocks wait at a link's writer, and go out in one write.
type gathers struct {
	turn      chan struct{} // held by the call under way
	called    uint64        // the last collective that this rank called
	since     time.Duration // when, in the vigil's own time
	completed uint64
	abandoned uint64 // the one whose caller went away, or 0
	open      map[uint64]*gather
	ready     bool // the ring is formed
	parked    []parked
}

// gather is one collective under way. Nobody can be further ahead than called+1: they would need our block.
type gather struct {
	blocks [][]byte
	have   []bool
	left   int // blocks still to come
	bytes  int
	done   chan struct{} // closed when left is 0
}

// parked is a block that came before the ring was whole.
type parked struct {
	header, payload []byte
	clockwise       bool
}

func (g *gathers) init() {
	g.turn = make(chan struct{}, 1)
	g.open = map[uint64]*gather{}
}

func (s *session) gatherLocked(seq uint64) *gather {
	g := s.gathers.open[seq]
	if g == nil {
		g = &gather{blocks: make([][]byte, s.size), have: make([]bool, s.size), left: s.size, done: make(chan struct{})}
		s.gathers.open[seq] = g
	}
	return g
}

func (s *session) AllGather(ctx context.Context, b []byte) ([][]byte, error) {
	return s.allGather(ctx, "AllGather", b)
}

func (s *session) Barrier(ctx context.Context) error {
	_, err := s.allGather(ctx, "Barrier", nil)
	return err
}

func (s *session) allGather(ctx context.Context, op string, b []byte) ([][]byte, error) {
	if len(b) > MaxPayload {
		return nil, fmt.Errorf("bootstrap %s: a block of %d bytes; all blocks together may have %d", op, len(b), MaxPayload)
	}
	start := time.Now()
	select {
	case s.gathers.turn <- struct{}{}:
	case <-s.ctx.Done():
		return nil, fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("bootstrap %s: waiting for an earlier collective of this rank: %w", op, ctx.Err())
	}
	defer func() { <-s.gathers.turn }()

	s.mu.Lock()
	if err := s.collectiveErrorLocked(op, s.gathers.called+1); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("bootstrap %s: %w", op, err)
	}
	s.gathers.called++
	s.gathers.since = s.vigil.own()
	seq := s.gathers.called
	g := s.gatherLocked(seq)
	own := append([]byte(nil), b...)
	err := s.blockLocked(g, seq, s.rank, own)
	if err == nil {
		s.forwardLocked(seq, s.rank, own, true, 0)
		s.forwardLocked(seq, s.rank, own, false, 0)
	}
	s.mu.Unlock()
	if err != nil {
		s.abort(Notice{From: s.rank, Reason: err.Error()}, nil)
	}

	for {
		s.mu.Lock()
		if g.left == 0 {
			s.gathers.completed = seq
			delete(s.gathers.open, seq)
			s.mu.Unlock()
			break
		}
		changed := s.changed
		err := s.collectiveErrorLocked(op, seq)
		if err == nil && ctx.Err() != nil {
			s.gathers.abandoned = seq
			err = &LateError{Op: op, Seq: seq, Missing: s.missingLocked(g), Elapsed: time.Since(start), Err: ctx.Err()}
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-g.done:
		case <-changed:
		case <-ctx.Done():
		}
	}
	// The blocks are shared with the writers that may still be passing them on.
	all := make([][]byte, s.size)
	for r, block := range g.blocks {
		all[r] = append([]byte{}, block...)
	}
	return all, nil
}

func (s *session) missingLocked(g *gather) (ranks []int) {
	for r, have := range g.have {
		if !have {
			ranks = append(ranks, s.nameLocked(r))
		}
	}
	slices.Sort(ranks)
	return ranks
}

// collectiveErrorLocked returns why collective seq cannot complete, or nil.
func (s *session) collectiveErrorLocked(op string, seq uint64) error {
	if err := s.usableLocked(op); err != nil {
		return err
	}
	if a := s.gathers.abandoned; a != 0 {
		return fmt.Errorf("bootstrap %s: collective %d of this session was abandoned at its timeout, so the ranks' later ones no longer match: %w", op, a, ErrTimeout)
	}
	if err := s.deadLocked(op); err != nil { // most likely others closed because of that
		return err
	}
	for r, f := range s.fate {
		if f.status == Closed && f.expected < seq {
			return s.peerErrorLocked(op, r)
		}
	}
	return nil
}

// blockLocked enters a block.
func (s *session) blockLocked(g *gather, seq uint64, origin int, block []byte) error {
	if g.have[origin] {
		return &protocolError{fmt.Sprintf("the block of rank %d for collective %d came twice", origin, seq)}
	}
	g.bytes += len(block)
	if g.bytes > MaxPayload {
		return &protocolError{fmt.Sprintf("the blocks of collective %d have more than %d bytes together", seq, MaxPayload)}
	}
	g.have[origin], g.blocks[origin] = true, block
	if g.left--; g.left == 0 {
		close(g.done)
	}
	return nil
}

// gatherArrived takes a block off a link and passes it on.
func (s *session) gatherArrived(l *link, seq uint64, origin int, block []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.aborted != nil {
		return nil
	}
	if origin >= s.size || origin == s.rank {
		return &protocolError{fmt.Sprintf("rank %d passed on a block of rank %d", l.peer, origin)}
	}
	clockwise := l == s.prev
	if !clockwise && l != s.next {
		return &protocolError{fmt.Sprintf("rank %d sent a block of collective %d outside the ring", l.peer, seq)}
	}
	hops := (s.rank - origin + s.size) % s.size
	if !clockwise {
		hops = s.size - hops
	}
	if hops > s.reach(clockwise) {
		return &protocolError{fmt.Sprintf("the block of rank %d came around the ring the wrong way", origin)}
	}
	if seq <= s.gathers.completed || seq > s.gathers.called+1 {
		return &protocolError{fmt.Sprintf("rank %d sent a block of collective %d while this rank is at %d", l.peer, seq, s.gathers.called)}
	}
	if err := s.blockLocked(s.gatherLocked(seq), seq, origin, block); err != nil {
		return err
	}
	s.forwardLocked(seq, origin, block, clockwise, hops)
	return nil
}

// reach is how many hops a block travels in a direction.
func (s *session) reach(clockwise bool) int {
	if clockwise {
		return s.size / 2
	}
	return (s.size - 1) / 2
}

// forwardLocked passes a block that has come hops to the next rank in its direction, unless it has come far enough.
func (s *session) forwardLocked(seq uint64, origin int, block []byte, clockwise bool, hops int) {
	if hops >= s.reach(clockwise) {
		return
	}
	h := appendHeader(make([]byte, 0, frameHeader+12), frameGather, 12+len(block))
	h = binary.BigEndian.AppendUint64(h, seq)
	h = binary.BigEndian.AppendUint32(h, uint32(origin))
	if !s.gathers.ready {
		s.gathers.parked = append(s.gathers.parked, parked{h, block, clockwise})
		return
	}
	s.onwards(clockwise).put(h, block)
}

func (s *session) onwards(clockwise bool) *link {
	if clockwise {
		return s.next
	}
	return s.prev
}

// ringFormedLocked sends on what came before both neighbours were there.
func (s *session) ringFormedLocked() {
	s.gathers.ready = true
	for _, p := range s.gathers.parked {
		s.onwards(p.clockwise).put(p.header, p.payload)
	}
	s.gathers.parked = nil
}
