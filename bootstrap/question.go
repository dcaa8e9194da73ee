package bootstrap

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// MaxQuestion is the most bytes that a question or an answer may have.
const MaxQuestion = 1 << 20

const (
	maxAsking  = 256     // questions of one session under way; further ones wait
	maxAnswers = 8 << 20 // bytes that wait on a link, at which it takes no more answers
	maxWriter  = 4 * maxAnswers
)

// questions are those of this rank that wait for an answer, and who answers those of others.
type questions struct {
	answer func(from int, question []byte) []byte
	places chan struct{} // one taken for each question under way
	last   uint64
	open   map[uint64]*question
}

type question struct {
	link *link
	done chan struct{} // closed when the rest is set
	code answerCode
	b    []byte
}

type answerCode uint8

const (
	answered answerCode = iota
	notAnswering
	answerTooLong
	tooBusy
	answerCodes
)

func (q *questions) init() {
	q.places = make(chan struct{}, maxAsking)
	q.open = map[uint64]*question{}
}

func (s *session) Answer(f func(from int, question []byte) []byte) {
	s.mu.Lock()
	s.questions.answer = f
	s.mu.Unlock()
}

func (s *session) Ask(ctx context.Context, to int, text []byte) ([]byte, error) {
	const op = "Ask"
	if err := s.checkRank(op, to); err != nil {
		return nil, err
	}
	if len(text) > MaxQuestion {
		return nil, fmt.Errorf("bootstrap %s of rank %d: a question of %d bytes; it may have %d", op, to, len(text), MaxQuestion)
	}
	own := append([]byte{}, text...)
	if to == s.rank {
		s.mu.Lock()
		err := s.peerGoneLocked(op, to)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return s.answerOf(op, to, s.answerTo(s.rank, own))
	}
	start := time.Now()
	late := func() error {
		return &LateError{Op: op, Missing: []int{to}, Elapsed: time.Since(start), Err: ctx.Err()}
	}
	if ctx.Err() != nil {
		return nil, late()
	}
	select {
	case s.questions.places <- struct{}{}:
	case <-s.ctx.Done():
		return nil, fmt.Errorf("bootstrap %s: %w", op, ErrClosed)
	case <-ctx.Done():
		return nil, late()
	}
	defer func() { <-s.questions.places }()
	l, err := s.linkTo(ctx, op, to, s.peerGoneLocked)
	if err != nil {
		return nil, err
	}

	q := &question{link: l, done: make(chan struct{})}
	s.mu.Lock()
	s.questions.last++
	number := s.questions.last
	s.questions.open[number] = q
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.questions.open, number)
		s.mu.Unlock()
	}()
	h := appendHeader(make([]byte, 0, frameHeader+8), frameQuestion, 8+len(own))
	l.put(binary.BigEndian.AppendUint64(h, number), own)
	for {
		s.mu.Lock()
		changed := s.changed
		err := s.peerGoneLocked(op, to)
		if _, there := s.links[l]; err == nil && !there {
			err = fmt.Errorf("bootstrap %s: the connection to rank %d (%s) ended before the answer came: %w", op, to, s.addrs[to], ErrNoAnswer)
		}
		s.mu.Unlock()
		select {
		case <-q.done:
			return s.answerOf(op, to, q)
		default:
		}
		if err == nil && ctx.Err() != nil {
			err = late()
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-q.done:
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// answerOf is what the asker gets of an answered question.
func (s *session) answerOf(op string, to int, q *question) ([]byte, error) {
	why := ""
	switch q.code {
	case answered:
		return q.b, nil
	case notAnswering:
		why = "it has not called Answer"
	case answerTooLong:
		why = fmt.Sprintf("its answer has more than %d bytes", MaxQuestion)
	case tooBusy:
		why = fmt.Sprintf("%d bytes wait for it to be sent already", maxAnswers)
	}
	return nil, fmt.Errorf("bootstrap %s: rank %d (%s): %w: %s", op, to, s.addrs[to], ErrNoAnswer, why)
}

// answerTo lets the user's function answer.
func (s *session) answerTo(from int, text []byte) *question {
	s.mu.Lock()
	f := s.questions.answer
	s.mu.Unlock()
	if f == nil {
		return &question{code: notAnswering}
	}
	b := f(from, text)
	if len(b) > MaxQuestion {
		return &question{code: answerTooLong}
	}
	return &question{b: b}
}

// questionArrived answers a question on the link that it came from.
func (s *session) questionArrived(l *link, number uint64, text []byte) error {
	q := &question{code: tooBusy}
	switch waiting := l.waiting(); {
	case waiting > maxWriter:
		return &protocolError{fmt.Sprintf("rank %d asks on and on and reads no answers: %d bytes wait for it", l.peer, waiting)}
	case waiting <= maxAnswers:
		q = s.answerTo(l.peer, text)
	}
	h := appendHeader(make([]byte, 0, frameHeader+9), frameAnswer, 9+len(q.b))
	h = binary.BigEndian.AppendUint64(h, number)
	l.put(append(h, byte(q.code)), q.b)
	return nil
}

// answerArrived takes an answer to its question, which may have ended.
func (s *session) answerArrived(l *link, number uint64, code answerCode, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.questions.open[number]
	if q == nil || q.link != l {
		return
	}
	delete(s.questions.open, number)
	q.code, q.b = code, b
	close(q.done)
}
