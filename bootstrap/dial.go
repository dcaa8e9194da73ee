package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// What one attempt to connect may take, where packets are dropped: the next may find that a link is up, a name resolves to another address, or
// another root listens. To resolve a name may take several name servers' time-outs.
const (
	connectTime = auth.Timeout
	resolveTime = 15 * time.Second
)

func attemptTime(address string) time.Duration {
	if host, _, err := net.SplitHostPort(address); err == nil {
		if _, err := netip.ParseAddr(host); err != nil {
			return resolveTime + connectTime
		}
	}
	return connectTime
}

// dialProven connects to address and goes through the handshake, once. Both end with ctx.
func dialProven(ctx context.Context, n Network, address string, secret []byte, service string) (net.Conn, error) {
	attempt, cancel := context.WithTimeout(ctx, attemptTime(address))
	conn, err := n.Dial(attempt, address)
	cancel()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if err = auth.Client(conn, secret, service); err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		stop()
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// permanent are the errors of a dial that waiting does not cure.
var permanent = []error{
	auth.ErrSecret, auth.ErrStranger,
	syscall.EACCES, syscall.EPERM, syscall.EINVAL, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT,
}

// transient reports whether err may go away by itself: nobody listens yet, a link is still coming up, a name does not resolve
// yet, a peer or a proxy in front of it hangs up.
func transient(err error) bool {
	for _, p := range permanent {
		if errors.Is(err, p) {
			return false
		}
	}
	var addr *net.AddrError
	var parse *net.ParseError
	return !errors.As(err, &addr) && !errors.As(err, &parse)
}

// firewallHint is for errors that a firewall which drops packets leads to.
func firewallHint(err error) error {
	var t interface{ Timeout() bool }
	if errors.Is(err, syscall.ETIMEDOUT) || errors.As(err, &t) && t.Timeout() && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w (no answer at all: is there a firewall in between?)", err)
	}
	return err
}

// backoff gives the pauses between attempts: from 10 ms growing to a second, each shortened at random by up to a half, so that
// a thousand ranks which began together do not come again together.
type backoff struct {
	rng  *rand.Rand
	full time.Duration
}

func newBackoff(seed uint64, rank int) *backoff {
	return &backoff{rng: rand.New(rand.NewPCG(seed, uint64(rank)))}
}

func (b *backoff) next() time.Duration {
	b.full = min(max(10*time.Millisecond, b.full*8/5), time.Second)
	return b.full/2 + time.Duration(b.rng.Int64N(int64(b.full/2)))
}

// wait sleeps for the next pause, or until ctx ends, and reports whether ctx goes on.
func (b *backoff) wait(ctx context.Context) bool {
	t := time.NewTimer(b.next())
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// stagger is how long race gives one address before it tries the next as well.
const stagger = 250 * time.Millisecond

// race dials the addresses in order, each when the one before failed or has been silent for the stagger, and returns the first
// proven connection. Otherwise the errors of all.
func race(ctx context.Context, addresses []string, dial func(context.Context, string) (net.Conn, error)) (net.Conn, string, error) {
	type result struct {
		conn    net.Conn
		address string
		err     error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(addresses))
	begun, ended := 0, 0
	begin := func() {
		address := addresses[begun]
		begun++
		go func() {
			conn, err := dial(ctx, address)
			if err != nil {
				err = fmt.Errorf("root at %s: %w", address, firewallHint(err))
			}
			results <- result{conn, address, err}
		}()
	}
	var won result
	var errs []error
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	next := func() {
		if begun < len(addresses) && won.conn == nil {
			begin()
			timer.Reset(stagger)
		}
	}
	next()
	for ended < begun {
		select {
		case <-timer.C:
			next()
		case r := <-results:
			ended++
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				next()
			case won.conn == nil:
				won = r
				cancel() // the others end at once
			default:
				r.conn.Close()
			}
		}
	}
	if won.conn != nil {
		return won.conn, won.address, nil
	}
	return nil, "", joined(errs)
}

// joined is the errors of several addresses on one line.
type joined []error

func (j joined) Error() string {
	var texts []string
	for _, e := range j {
		texts = append(texts, e.Error())
	}
	return strings.Join(texts, "; ")
}

func (j joined) Unwrap() []error { return j }
