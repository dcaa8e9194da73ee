//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
)

const (
	// stepTimeout bounds dialling, and what the driver is asked for.
	stepTimeout = 5 * time.Second
	// agreeTimeout bounds what two ends that have proven the secret say to each other. In between either makes its QPs, which a busy host with
	// many peers may take long for; and an end that gives up after the other has said its last word breaks a connection.
	agreeTimeout = 30 * time.Second
	pauseFirst   = 5 * time.Millisecond
	pauseMost    = 500 * time.Millisecond
	// ringAgain is how long the higher rank waits for an offer before it asks again.
	ringAgain = time.Second
)

// keepAlive finds a host that vanished without a word in about 20 s when nothing is sent; what is sent finds it sooner.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 2 * time.Second, Count: 5}

// errLater says that the peer has a connection already, or soon will.
var errLater = errors.New("the peer has been connected already")

// refusal is an answer that more attempts would get again.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

// hello is what our end of k says.
func (e *endpoint) hello(k transport.Key) hello {
	return hello{
		key: k, firstSeq: e.options.FirstSeq, most: uint32(e.options.MaxMessage), slot: uint32(e.config.Slot), slots: uint16(e.config.Slots),
		streams: uint16(e.options.Streams), checksum: e.options.Checksum, fallback: e.config.Fallback,
	}
}

// search makes attempts until the meet is over or the time is. To whom there was a connection before does not listen any more once it
// refuses one.
func (e *endpoint) search(setUp context.Context, m *meet, a address, before bool) {
	ctx, cancel := context.WithTimeout(setUp, e.config.ConnectTimeout)
	defer cancel()
	pause := pauseFirst
	last := errors.New("no attempt was made")
	for ctx.Err() == nil {
		err := e.attempt(ctx, m, a)
		var refused refusal
		switch {
		case err == nil && m.offers():
			return
		case err == nil:
			last = errors.New("the peer was asked to connect and has not done so yet")
			sleep(ctx, ringAgain)
			continue
		case errors.As(err, &refused), errors.Is(err, auth.ErrSecret), errors.Is(err, auth.ErrStranger), before && errors.Is(err, syscall.ECONNREFUSED):
			if !errors.Is(err, transport.ErrMismatch) {
				err = notOwn(err)
			}
			e.fail(m.key, err)
			return
		case errors.Is(err, errNoRoom), errors.Is(err, errLater):
			last, pause = err, pauseFirst // somebody is about to make room
		case setUp.Err() == nil: // else it is about our own giving up
			last = err
		}
		sleep(ctx, pause/2+mathrand.N(pause))
		pause = min(2*pause, pauseMost)
	}
	if setUp.Err() == nil {
		if timeout := net.Error(nil); errors.As(last, &timeout) && timeout.Timeout() {
			last = fmt.Errorf("%w (no answer at all from %v: is there a firewall in between?)", last, a.from(e.config.Addr))
		}
		err := fmt.Errorf("not connected within %v: %w", e.config.ConnectTimeout, last)
		if transport.Scarce(last) {
			e.fail(m.key, &transport.OwnError{Rank: int(m.key.Self), Err: err})
		} else {
			e.fail(m.key, isGone(err))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// dial connects to the peer at a and proves the secret to it.
func (e *endpoint) dial(ctx context.Context, a address) (net.Conn, error) {
	d := net.Dialer{Timeout: stepTimeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(e.config.Addr, 0)), KeepAliveConfig: keepAlive}
	socket, err := d.DialContext(ctx, "tcp", a.from(e.config.Addr).String())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	defer stop()
	if err := auth.Client(socket, e.secret, service); err != nil {
		socket.Close()
		return nil, err
	}
	return socket, nil
}

// hurry has whoever reads or writes the socket give up when ctx ends, which leaves it open for a goodbye. Once the returned function was called nobody
// has to hurry.
func hurry(ctx context.Context, socket net.Conn) (stop func()) {
	hurried := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		socket.SetDeadline(time.Unix(1, 0))
		close(hurried)
	})
	return sync.OnceFunc(func() {
		if !unhook() {
			<-hurried
		}
		socket.SetDeadline(time.Time{})
	})
}

// tell says a hello and returns the answer.
func (e *endpoint) tell(socket net.Conn, h *hello) (reply, error) {
	if _, err := socket.Write(h.bytes()); err != nil {
		return reply{}, err
	}
	b := make([]byte, replySize)
	if _, err := io.ReadFull(socket, b); err != nil {
		return reply{}, err
	}
	r, err := parseReply(b)
	if err != nil {
		return r, refusal{err}
	}
	b = make([]byte, r.follows())
	if _, err := io.ReadFull(socket, b); err != nil {
		return r, err
	}
	if r.records, err = parseRecords(b); err != nil {
		return r, refusal{err}
	}
	return r, nil
}

// attempt rings, or offers and either establishes the connection or leaves nothing behind.
func (e *endpoint) attempt(ctx context.Context, m *meet, a address) (err error) {
	socket, err := e.dial(ctx, a)
	if err != nil {
		return err
	}
	var l *link
	defer func() {
		if err != nil || l == nil {
			socket.Close()
		}
		if err != nil && l != nil {
			err = errors.Join(err, l.shut(), l.free())
		}
	}()
	socket.SetDeadline(time.Now().Add(agreeTimeout))
	stop := hurry(ctx, socket)
	defer stop()
	h := e.hello(m.key)
	h.instance = a.instance
	h.kind, h.address = kindRing, e.address.bytes()
	if m.offers() {
		if !e.roomFor(m.key, e.address.queues(a)) {
			return errNoRoom
		}
		if l, err = e.newLink(int(m.key.Self), e.address.queues(a)); err != nil {
			return refusal{&transport.OwnError{Rank: int(m.key.Self), Err: err}}
		}
		h.kind, h.address, h.records, h.queues = kindOffer, nil, l.records(), uint8(len(l.queues))
	}
	r, err := e.tell(socket, &h)
	switch {
	case err != nil:
		return err
	case r.verdict == later:
		return errLater
	case r.verdict == differs:
		return refusal{fmt.Errorf("%w: %s", transport.ErrMismatch, r.reason)}
	case r.verdict == noEntry:
		return refusal{errors.New(r.reason)}
	case r.verdict == left:
		return refusal{fmt.Errorf("%w: %s", transport.ErrLeft, r.reason)}
	case h.kind == kindRing:
		return nil
	}
	if err := l.connect(r.records); err != nil {
		return refusal{err}
	}
	if _, err := socket.Write([]byte(commitMagic)); err != nil {
		return err
	}
	stop()
	l.socket = socket
	ready := l
	l = nil // establish owns it, and its socket
	if err := e.establish(m.key, ready); err != nil {
		return err
	}
	l = ready
	return nil
}

// greet is the other half of an attempt, for a peer that has proven the secret.
func (e *endpoint) greet(socket net.Conn) {
	socket.SetDeadline(time.Now().Add(agreeTimeout))
	stop := hurry(e.ctx, socket)
	defer stop()
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(socket, b); err != nil {
		socket.Close()
		return
	}
	h, err := parseHello(b)
	if err == nil {
		b = make([]byte, max(h.follows(), len(commitMagic)))
		if _, err := io.ReadFull(socket, b[:h.follows()]); err != nil {
			socket.Close()
			return
		}
		h.records, err = parseRecords(b[:h.follows()])
	}
	if err != nil {
		v := noEntry
		if errors.Is(err, transport.ErrMismatch) {
			v = differs
		}
		answer(socket, reply{verdict: v, reason: err.Error()})
		socket.Close()
		e.config.Log.Warn("verbs: refused a connection", "peer", socket.RemoteAddr(), "error", err)
		return
	}
	if h.kind == kindMend {
		e.greetMend(socket, &h)
		socket.Close()
		return
	}
	l, r := e.consider(&h)
	if answer(socket, r) && l != nil {
		_, err = io.ReadFull(socket, b[:len(commitMagic)])
		if err == nil && string(b[:len(commitMagic)]) == commitMagic || e.ctx.Err() != nil { // when the endpoint closes, the peer may just have committed
			stop()
			l.socket = socket
			if err := e.establish(swapped(h.key), l); err != nil && !errors.Is(err, errLater) {
				e.config.Log.Error("verbs: a connection", "error", err)
			}
			return
		}
	}
	socket.Close()
	if l != nil {
		if err := errors.Join(l.shut(), l.free()); err != nil {
			e.config.Log.Error("verbs: a connection", "error", err)
		}
	}
}

func answer(socket net.Conn, r reply) bool {
	_, err := socket.Write(r.bytes())
	return err == nil
}

func swapped(k transport.Key) transport.Key {
	k.Self, k.Peer = k.Peer, k.Self
	return k
}

// consider decides about a hello, and for an offer that is welcome makes our half of the connection, ready to receive.
func (e *endpoint) consider(h *hello) (*link, reply) {
	if h.instance != e.address.instance {
		return nil, reply{verdict: noEntry, reason: "the address is that of an earlier endpoint on this port"}
	}
	k := swapped(h.key)
	ours := e.hello(k)
	if err := h.agree(&ours); err != nil {
		e.fail(k, fmt.Errorf("%w: %w", transport.ErrMismatch, err))
		return nil, reply{verdict: differs, reason: err.Error()}
	}
	if v, reason := e.admit(k, h); v != welcome || h.kind == kindRing {
		return nil, reply{verdict: v, reason: reason}
	}
	if !e.roomFor(k, len(h.records)) {
		return nil, reply{verdict: later, reason: errNoRoom.Error()}
	}
	l, err := e.newLink(int(k.Self), len(h.records))
	if err != nil {
		err = &transport.OwnError{Rank: int(k.Self), Err: err}
		e.fail(k, err)
		return nil, reply{verdict: noEntry, reason: err.Error()}
	}
	if err := l.connect(h.records); err != nil {
		err = notOwn(errors.Join(err, l.shut(), l.free()))
		e.fail(k, err)
		return nil, reply{verdict: noEntry, reason: err.Error()}
	}
	return l, reply{verdict: welcome, records: l.records()}
}

// from completes a with the zone of the interface that ours is on.
func (a address) from(ours netip.Addr) netip.AddrPort {
	if ip := a.at.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(ip.WithZone(ours.Zone()), a.at.Port())
	}
	return a.at
}
