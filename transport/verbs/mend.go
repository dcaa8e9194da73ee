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
// by it, which is the probe.
//
//	lower → higher   offer     which place, its number, record of my QP
//	higher → lower   welcome   record of mine, which can receive and send
//	lower → higher   commit    mine can, too
//
// An end whose probe is acknowledged uses the QP, and whatever the peer sends by it counts. An end whose probe is not, or that does not hear a
// commit or welcome, destroys its QP, and says so (wordGone). So the ends may differ for a while, and come together again:
//
//   - Who uses a QP that the other has destroyed hears of it, or has it fail and asks (wordBroken, answered by wordGone), and loses it like any
//     other that broke.
//   - An offer comes after all that its end had in the place before is in ERR or destroyed, and says that, too, whatever words were lost. It is
//     refused until the other end has sent again what it had lost, and made once more.
//
// Offers are numbered, in each place for itself, so that words and what is late tell one QP from the next.
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

// mend offers the peer QPs in the place of one that failed until one works or there is no need any more.
func (e *endpoint) mend(l *link, q *queue, k transport.Key, a address) {
	for pause := mendFirst; ; pause = min(2*pause, mendMost) {
		sleep(e.ctx, pause)
		if e.ctx.Err() != nil {
			return
		}
		err := e.offerAgain(l, q, k, a)
		if errors.Is(err, errMendOver) {
			return
		}
		e.config.Log.Debug("verbs: mend a QP", "peer", k.Peer, "error", err)
	}
}

// offerAgain is one attempt. After it a QP is being probed, or nothing is left, once the driver comes by.
func (e *endpoint) offerAgain(l *link, q *queue, k transport.Key, a address) (err error) {
	var p *queue
	err = e.ask(func() (err error) {
		p, err = l.offer(q)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		e.decide(l, p, err == nil)
	}()
	h := e.hello(k)
	h.kind, h.instance, h.queues, h.records = kindMend, a.instance, 1, []record{p.ours}
	h.number, h.mends = p.generation, q.origin().peer.name()
	ctx, cancel := context.WithTimeout(e.ctx, 2*stepTimeout)
	defer cancel()
	socket, err := e.dial(ctx, a)
	if err != nil {
		return err
	}
	defer socket.Close()
	defer hurry(ctx, socket)()
	r, err := e.tell(socket, &h)
	switch {
	case err != nil:
		return err
	case r.verdict != welcome || len(r.records) != 1:
		return fmt.Errorf("the peer says %d: %s", r.verdict, r.reason)
	}
	err = e.ask(func() error {
		if l.gone || l.probes[p.index] != p {
			return errors.New("it was destroyed meanwhile")
		}
		return p.connect(r.records[0])
	})
	if err == nil {
		_, err = socket.Write([]byte(commitMagic))
	}
	return err
}

// decide has the driver probe a QP, or destroy it, however late it comes by: one that lay there undecided would keep the ends apart.
func (e *endpoint) decide(l *link, p *queue, probe bool) {
	e.post(func() error {
		if probe {
			l.probe(p)
		} else {
			l.dropProbe(p)
		}
		return nil
	})
}

// considerMend decides about an offer to mend a QP, and makes our half, ready to receive.
func (e *endpoint) considerMend(h *hello) (l *link, p *queue, r reply) {
	if h.instance != e.address.instance {
		return nil, nil, reply{verdict: noEntry, reason: "the address is that of an earlier endpoint on this port"}
	}
	err := e.ask(func() (err error) {
		e.mu.Lock()
		m := e.meets[swapped(h.key)]
		e.mu.Unlock()
		if m == nil || m.conn == nil || m.conn.link == nil || m.conn.gone {
			return errMendOver
		}
		l = m.conn.link
		p, err = l.consider(h)
		return err
	})
	if err != nil {
		return nil, nil, reply{verdict: later, reason: err.Error()}
	}
	return l, p, reply{verdict: welcome, records: []record{p.ours}}
}

// greetMend is greet for a peer that wants to mend a QP.
func (e *endpoint) greetMend(socket net.Conn, h *hello) {
	l, p, r := e.considerMend(h)
	said := answer(socket, r)
	if p == nil {
		return
	}
	var b [len(commitMagic)]byte
	if said {
		io.ReadFull(socket, b[:])
	}
	e.decide(l, p, string(b[:]) == commitMagic)
}

// offer makes a QP that may take the place of one that has failed on both sides.
func (l *link) offer(q *queue) (*queue, error) {
	switch p := l.probes[q.index]; {
	case l.gone || l.queues[q.index] != q:
		return nil, errMendOver
	case p != nil && p.probing:
		return nil, errors.New("a probe is under way")
	}
	number := l.offered[q.index] + 1
	if uint16(number) == uint16(q.generation) { // words could not tell them apart
		number++
	}
	return l.newProbe(q.index, number)
}

// consider takes in what an offer says, and makes our half of what it offers.
func (l *link) consider(h *hello) (*queue, error) {
	at := slices.IndexFunc(l.queues, func(q *queue) bool { return q.origin().ours.name() == h.mends })
	if at < 0 {
		return nil, errors.New("there is no such QP")
	}
	q := l.queues[at]
	if h.number <= l.offered[at] || uint16(h.number) == uint16(q.generation) {
		return nil, fmt.Errorf("offer %d comes after offer %d, or is not to be told from %d", h.number, l.offered[at], q.generation)
	}
	if !q.theirs {
		q.theirs = true
		l.lose(q, fmt.Errorf("%w: the peer offers another in its place", transport.ErrGone))
		l.call()
	}
	if !q.redone {
		return nil, errors.New("what was sent by that QP has not all been sent again yet")
	}
	p, err := l.newProbe(at, h.number)
	if err != nil {
		return nil, err
	}
	if err := p.connect(h.records[0]); err != nil {
		l.dropProbe(p)
		return nil, err
	}
	return p, nil
}

// newProbe makes a QP that may take a failed one's place, instead of an earlier one.
func (l *link) newProbe(index int, number uint32) (*queue, error) {
	if l.gone {
		return nil, errMendOver
	}
	l.dropProbe(l.probes[index])
	if l.failed != nil {
		return nil, l.failed
	}
	p, err := l.makes(l.queues[index].nic)
	if err != nil {
		return nil, err
	}
	p.index, p.generation, p.first = index, number, l.queues[index].origin()
	if l.probes == nil {
		l.probes, l.offered = map[int]*queue{}, map[int]uint32{}
	}
	l.probes[index], l.offered[index] = p, number
	return p, nil
}

// dropProbe destroys a probe that did not come to anything here, and has the peer told, to whom it may have.
func (l *link) dropProbe(p *queue) {
	if p == nil || l.probes[p.index] != p {
		return
	}
	delete(l.probes, p.index)
	if err := p.close(); err != nil {
		l.fail(l.own(fmt.Errorf("%s cannot be destroyed: %w", p, err)))
	}
	l.lack(p.count())
	l.call()
}

// probe sends a request by a QP that may take another's place.
func (l *link) probe(p *queue) {
	if l.gone || l.probes[p.index] != p {
		return
	}
	p.probing = true
	p.say(immediate(immWord, wordProbe, 0), ibv.Signaled)
	if err := p.flush(); err != nil {
		p.failed = true
		l.call()
	}
}

// settle acts on what became of the probes.
func (l *link) settle() error {
	for _, p := range l.probes {
		switch {
		case p.failed:
			l.dropProbe(p)
		case p.probing && p.settled():
			l.promote(p)
		}
	}
	var errs []error
	for _, q := range l.retired {
		err := q.close()
		if err != nil && l.queues[q.index] == q { // then nobody knows what the peer can still do by it
			l.fail(l.own(fmt.Errorf("%s can neither be put in the state ERR nor be destroyed: %w", q, err)))
		}
		errs = append(errs, err)
	}
	l.retired = nil
	return errors.Join(errs...)
}

// promote puts a QP in the place of the one that failed, which is destroyed when nobody polls.
func (l *link) promote(p *queue) {
	delete(l.probes, p.index)
	l.retired = append(l.retired, l.queues[p.index])
	l.queues[p.index] = p
	p.probing = false
	l.live++
	l.e.config.Log.Info("verbs: a QP works again, in the place of one that had failed", "queue", p, "working", l.live)
}
