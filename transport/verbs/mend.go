//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// What becomes of a QP that failed: again and again the lower rank offers another in its place, over TCP, and each end sends a request
// by it, which is the probe. An end whose probe succeeds uses the QP, and whatever the peer sends by it counts.
const (
	mendFirst = time.Second
	mendMost  = 10 * time.Second
)

var (
	errMendOver  = errors.New("there is nothing to mend any more")
	errMendLater = errors.New("the driver did not come by in time")
)

// job is what the background asks of the driver.
type job struct {
	do    func() error
	state atomic.Int32 // 0 waiting, 1 taken by the driver, 2 given up
	done  chan error
}

// ask has the driver do something, if it comes by soon.
func (e *endpoint) ask(do func() error) error {
	j := e.post(do)
	ctx, cancel := context.WithTimeout(e.ctx, stepTimeout)
	defer cancel()
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		if j.state.CompareAndSwap(0, 2) {
			return errMendLater
		}
		return <-j.done
	}
}

// post is ask without waiting.
func (e *endpoint) post(do func() error) *job {
	j := &job{do: do, done: make(chan error, 1)}
	e.jobsMu.Lock()
	e.jobs = append(e.jobs, j)
	e.jobsMu.Unlock()
	e.asked.Store(true)
	e.poke()
	return j
}

// work does what the background has asked for.
func (e *endpoint) work() {
	if !e.asked.Swap(false) {
		return
	}
	e.jobsMu.Lock()
	jobs := e.jobs
	e.jobs = nil
	e.jobsMu.Unlock()
	for _, j := range jobs {
		if j.state.CompareAndSwap(0, 1) {
			j.done <- j.do()
		}
	}
}

// mend offers the peer a QP in the place of one that failed until one works or there is no need any more.
func (e *endpoint) mend(l *link, index int, k transport.Key, a address) {
	for pause := mendFirst; ; pause = min(2*pause, mendMost) {
		sleep(e.ctx, pause)
		if e.ctx.Err() != nil {
			return
		}
		err := e.offerAgain(l, index, k, a)
		if errors.Is(err, errMendOver) {
			return
		}
		e.config.Log.Debug("verbs: mend a QP", "peer", k.Peer, "error", err)
	}
}

// offerAgain is one attempt. After it a QP is being probed, or nothing is left.
func (e *endpoint) offerAgain(l *link, index int, k transport.Key, a address) (err error) {
	h := e.hello(k)
	var q *queue
	err = e.ask(func() error {
		switch {
		case l.gone || !l.queues[index].broken:
			return errMendOver
		case l.probes[index] != nil && l.probes[index].probing:
			return errors.New("a probe is under way")
		}
		var err error
		h.mends = l.queues[index].peer.qpn
		q, err = l.newProbe(index)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.ask(func() error { return l.dropProbe(q) }))
		}
	}()
	h.kind, h.instance, h.queues, h.records = kindMend, a.instance, 1, []record{q.ours}
	ctx, cancel := context.WithTimeout(e.ctx, 2*stepTimeout)
	defer cancel()
	socket, err := e.dial(ctx, a)
	if err != nil {
		return err
	}
	defer socket.Close()
	r, err := e.tell(socket, &h)
	switch {
	case err != nil:
		return err
	case r.verdict != welcome || len(r.records) != 1:
		return fmt.Errorf("the peer says %d: %s", r.verdict, r.reason)
	}
	err = e.ask(func() error {
		if l.gone || l.probes[index] != q {
			return errMendOver
		}
		return q.connect(r.records[0])
	})
	if err == nil {
		_, err = socket.Write([]byte(commitMagic))
	}
	if err == nil {
		err = e.ask(func() error { return l.probe(q) })
	}
	return err
}

// considerMend decides about an offer to mend a QP, and makes our half, ready to receive.
func (e *endpoint) considerMend(h *hello) (l *link, q *queue, r reply) {
	if h.instance != e.address.instance {
		return nil, nil, reply{verdict: noEntry, reason: "the address is that of an earlier endpoint on this port"}
	}
	err := e.ask(func() error {
		e.mu.Lock()
		m := e.meets[swapped(h.key)]
		e.mu.Unlock()
		if m == nil || m.conn == nil || m.conn.link == nil || m.conn.gone {
			return errMendOver
		}
		l = m.conn.link
		at := slices.IndexFunc(l.queues, func(q *queue) bool { return q.ours.qpn == h.mends && q.broken && q.redone })
		if at < 0 {
			return errors.New("that QP has not failed here, or not all is known of it yet")
		}
		var err error
		if q, err = l.newProbe(at); err != nil {
			return err
		}
		if err := q.connect(h.records[0]); err != nil {
			return errors.Join(err, l.dropProbe(q))
		}
		return nil
	})
	if err != nil {
		return nil, nil, reply{verdict: later, reason: err.Error()}
	}
	return l, q, reply{verdict: welcome, records: []record{q.ours}}
}

// greetMend is greet for a peer that wants to mend a QP.
func (e *endpoint) greetMend(socket net.Conn, h *hello) {
	l, q, r := e.considerMend(h)
	if !answer(socket, r) || q == nil {
		if q != nil {
			e.ask(func() error { return l.dropProbe(q) })
		}
		return
	}
	var b [len(commitMagic)]byte
	_, err := io.ReadFull(socket, b[:])
	e.ask(func() error {
		if err != nil || string(b[:]) != commitMagic {
			return l.dropProbe(q)
		}
		return l.probe(q)
	})
}

// newProbe makes a QP that may take a failed one's place, instead of an earlier one.
func (l *link) newProbe(index int) (*queue, error) {
	if l.gone {
		return nil, errMendOver
	}
	if err := l.dropProbe(l.probes[index]); err != nil {
		return nil, err
	}
	q, err := l.newQueue(l.queues[index].nic)
	if err != nil {
		return nil, err
	}
	q.index, q.generation = index, l.queues[index].generation+1
	if l.probes == nil {
		l.probes = map[int]*queue{}
	}
	l.probes[index] = q
	return q, nil
}

// dropProbe destroys a probe that did not come to anything.
func (l *link) dropProbe(q *queue) error {
	if q == nil || l.probes[q.index] != q {
		return nil
	}
	delete(l.probes, q.index)
	return q.close()
}

// probe sends a request by a QP that may take another's place.
func (l *link) probe(q *queue) error {
	if l.gone || l.probes[q.index] != q {
		return errMendOver
	}
	q.probing = true
	q.say(immediate(immWord, wordProbe, 0), ibv.Signaled)
	return q.flush()
}

// settle acts on what became of the probes.
func (l *link) settle() error {
	var errs []error
	for _, q := range l.probes {
		switch {
		case q.failed:
			errs = append(errs, l.dropProbe(q))
		case q.probing && q.settled():
			l.promote(q)
		}
	}
	for _, q := range l.retired {
		err := q.close()
		if err != nil && l.queues[q.index] == q { // then nobody knows what the peer can still do by it
			l.fail(fmt.Errorf("%w: %s can neither be put in the state ERR nor be destroyed: %w", transport.ErrGone, q, err))
		}
		errs = append(errs, err)
	}
	l.retired = nil
	return errors.Join(errs...)
}

// promote puts a QP in the place of the one that failed, which is destroyed when nobody polls.
func (l *link) promote(q *queue) {
	delete(l.probes, q.index)
	l.retired = append(l.retired, l.queues[q.index])
	l.queues[q.index] = q
	q.probing = false
	l.live++
	l.e.config.Log.Info("verbs: a QP works again, in the place of one that had failed", "queue", q, "working", l.live)
}
