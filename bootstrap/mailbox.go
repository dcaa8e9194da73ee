package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// MaxUnexpected is how many bytes of messages a session keeps for Recvs that are still to come.
const MaxUnexpected = 64 << 20

// maxUnexpectedMessages bounds their number, for small ones have a cost, too.
const maxUnexpectedMessages = 1 << 16

type mailbox struct {
	kept    map[envelope][][]byte
	waiting map[envelope][]chan []byte // each with room for one
	bytes   int
	count   int
}

type envelope struct {
	from int
	tag  uint64
}

func (m *mailbox) init() {
	m.kept = map[envelope][][]byte{}
	m.waiting = map[envelope][]chan []byte{}
}

func (s *session) checkRank(op string, rank int) error {
	if rank < 0 || rank >= s.size {
		return fmt.Errorf("bootstrap %s: rank %d; this session has ranks 0 to %d", op, rank, s.size-1)
	}
	return nil
}

func (s *session) Send(ctx context.Context, to int, tag uint64, b []byte) error {
	const op = "Send"
	if err := s.checkRank(op, to); err != nil {
		return err
	}
	if len(b) > MaxPayload {
		return fmt.Errorf("bootstrap %s to rank %d: %d bytes; a message may have %d", op, to, len(b), MaxPayload)
	}
	own := append([]byte{}, b...)
	if to == s.rank {
		s.mu.Lock()
		err := s.usableLocked(op)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := s.messageArrived(to, tag, own); err != nil {
			s.abort(Notice{From: s.rank, Reason: err.Error()}, nil)
			return err
		}
		return nil
	}
	start := time.Now()
	l, err := s.linkTo(ctx, op, to, s.sendErrorLocked)
	for err == nil {
		room := l.room()
		if room == nil {
			break
		}
		s.mu.Lock()
		changed := s.changed
		err = s.sendErrorLocked(op, to)
		s.mu.Unlock()
		if err == nil {
			select {
			case <-room:
			case <-changed:
			case <-ctx.Done():
				err = &LateError{Op: op, Missing: []int{to}, Elapsed: time.Since(start), Err: ctx.Err()}
			}
		}
	}
	if err != nil {
		return err
	}
	h := appendHeader(make([]byte, 0, frameHeader+8), frameMessage, 8+len(own))
	l.put(binary.BigEndian.AppendUint64(h, tag), own)
	return nil
}

func (s *session) sendErrorLocked(op string, to int) error {
	if err := s.usableLocked(op); err != nil {
		return err
	}
	return s.peerGoneLocked(op, to)
}

// peerGoneLocked is sendErrorLocked for what goes on when the session is aborted.
func (s *session) peerGoneLocked(op string, to int) error {
	if s.closing {
		return fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	}
	if s.out != nil {
		return &AbortedError{Op: op, Notice: *s.out}
	}
	if s.fate[to].status != Unknown {
		return s.peerErrorLocked(op, to)
	}
	return nil
}

func (s *session) Recv(ctx context.Context, from int, tag uint64) ([]byte, error) {
	const op = "Recv"
	if err := s.checkRank(op, from); err != nil {
		return nil, err
	}
	start := time.Now()
	at := envelope{from, tag}
	arrived := make(chan []byte, 1)

	s.mu.Lock()
	if kept := s.box.kept[at]; len(kept) > 0 && s.usableLocked(op) == nil {
		b := kept[0]
		kept[0] = nil
		if s.box.kept[at] = kept[1:]; len(kept) == 1 {
			delete(s.box.kept, at)
		}
		s.box.bytes -= len(b)
		s.box.count--
		s.mu.Unlock()
		return b, nil
	}
	s.box.waiting[at] = append(s.box.waiting[at], arrived)
	s.mu.Unlock()

	for {
		s.mu.Lock()
		changed := s.changed
		err := s.recvErrorLocked(op, from)
		watch := err == nil && s.deaths > 0 && from != s.rank && s.to[from] == nil
		s.mu.Unlock()
		if watch {
			// With the ring cut, news of this rank may not reach us any more. A link of our own tells.
			_, err = s.linkTo(ctx, op, from, s.sendErrorLocked)
		} else if err == nil && ctx.Err() == nil {
			select {
			case b := <-arrived:
				return b, nil
			case <-changed:
			case <-ctx.Done():
			}
		}
		if err == nil && ctx.Err() != nil {
			err = &LateError{Op: op, Missing: []int{from}, Elapsed: time.Since(start), Err: ctx.Err()}
		}
		if err != nil {
			return s.leaveMailbox(at, arrived, err)
		}
	}
}

// leaveMailbox takes a waiting Recv out again, which returns err, unless its message was faster.
func (s *session) leaveMailbox(at envelope, arrived chan []byte, err error) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case b := <-arrived:
		return b, nil
	default:
	}
	w := slices.DeleteFunc(s.box.waiting[at], func(c chan []byte) bool { return c == arrived })
	if s.box.waiting[at] = w; len(w) == 0 {
		delete(s.box.waiting, at)
	}
	return nil, err
}

// recvErrorLocked returns why no message of rank from can come any more, or nil. A rank that closed may have sent before; its
// link then still has it, so the link's end counts and not the news, which travels on other ways.
func (s *session) recvErrorLocked(op string, from int) error {
	if err := s.usableLocked(op); err != nil {
		return err
	}
	switch s.fate[from].status {
	case Dead:
		return s.peerErrorLocked(op, from)
	case Closed:
		for l := range s.links {
			if l.peer == from {
				return nil
			}
		}
		return s.peerErrorLocked(op, from)
	}
	return nil
}

// messageArrived delivers b, which is the receiver's from now on.
func (s *session) messageArrived(from int, tag uint64, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.aborted != nil {
		return nil
	}
	at := envelope{from, tag}
	if w := s.box.waiting[at]; len(w) > 0 {
		w[0] <- b
		if s.box.waiting[at] = w[1:]; len(w) == 1 {
			delete(s.box.waiting, at)
		}
		return nil
	}
	if s.box.bytes+len(b) > MaxUnexpected || s.box.count >= maxUnexpectedMessages {
		return &protocolError{fmt.Sprintf("rank %d sent a message (tag %#x, %d bytes) for which nobody called Recv, on top of %d messages with %d bytes that wait already",
			from, tag, len(b), s.box.count, s.box.bytes)}
	}
	s.box.kept[at] = append(s.box.kept[at], b)
	s.box.bytes += len(b)
	s.box.count++
	return nil
}
