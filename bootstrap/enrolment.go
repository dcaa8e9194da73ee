package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"
)

// enrolment is one rank's conversation with the root, up to the table.
type enrolment struct {
	*Config
	roots    []string
	root     string // the one that answered last
	home     int    // the rank that serves it, as far as that is known
	token    [tokenSize]byte
	hub      *hub // once this rank listens
	listen   netip.AddrPort
	wildcard bool
	start    time.Time
	seen     *progress // the last that the root said
	lost     time.Time // when the connection to a root that had taken this rank in ended; zero: it did not
}

// rootGrace is how long a root that had taken this rank in may be away: longer than the root waits for a rank.
const rootGrace = 2 * returnGrace

// run asks again until the root gives the table. The connection on which that came stays open.
func (e *enrolment) run(ctx context.Context) (table, *muster, error) {
	pause := newBackoff(e.Seed, e.Rank)
	var last error
	for attempt := 1; ; attempt++ {
		lost := e.lost
		t, m, err := e.attempt(ctx)
		if err == nil {
			return t, m, nil
		}
		if e.lost != lost { // the root does not wait for long
			pause = newBackoff(e.Seed, e.Rank)
		}
		var refused *RefusedError
		var protocol *protocolError
		if errors.As(err, &refused) {
			return table{}, nil, err
		}
		if ctx.Err() == nil && (errors.As(err, &protocol) || errors.Is(err, errListen) || len(e.roots) == 1 && !transient(err)) {
			return table{}, nil, fmt.Errorf("bootstrap Join as rank %d of %d: %w", e.Rank, e.World, err)
		}
		if ctx.Err() == nil && (errors.Is(err, errRootSilent) || !e.lost.IsZero() && time.Since(e.lost) >= rootGrace) {
			return table{}, nil, e.rootLost(err)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if attempt == 5 {
			e.Log.Info("the root does not answer yet; trying on", "roots", e.roots, "rank", e.Rank, "error", err)
		}
		if ctx.Err() != nil || !pause.wait(ctx) {
			return table{}, nil, e.timedOut(ctx, last)
		}
	}
}

// rootLost is the error where the root had taken this rank in, and is no more.
func (e *enrolment) rootLost(err error) error {
	if e.home != nobody && e.home != e.Rank {
		return &PeerError{Op: "Join", Rank: e.home, Addr: e.root, Status: Dead, Reason: "it serves the root, and that is gone: " + err.Error()}
	}
	return fmt.Errorf("bootstrap Join as rank %d of %d: the root is gone, before all ranks had joined: %w: %w", e.Rank, e.World, ErrDead, err)
}

func (e *enrolment) timedOut(ctx context.Context, last error) error {
	m := &MissingError{World: e.World, Elapsed: time.Since(e.start), Err: last, cause: ctx.Err()}
	m.Root = e.root
	if e.seen != nil {
		m.Joined, m.Missing, m.Left, m.others = e.seen.joined, e.seen.missing, e.seen.left, e.seen.others
		if errors.Is(last, ctx.Err()) {
			m.Err = nil // it says no more than that the time is over
		}
	} else {
		m.Root = fmt.Sprint(e.roots)
		if len(e.roots) == 1 {
			m.Root = e.roots[0]
		}
	}
	return m
}

// attempt connects to the root, asks to join, and listens to what it says.
func (e *enrolment) attempt(ctx context.Context) (table, *muster, error) {
	dialing, cancel := ctx, func() {}
	if !e.lost.IsZero() {
		dialing, cancel = context.WithDeadline(ctx, e.lost.Add(rootGrace))
	}
	defer cancel()
	conn, address, err := race(dialing, e.roots, func(ctx context.Context, address string) (net.Conn, error) {
		return dialProven(ctx, e.Network, address, e.ID.Secret(), rootService)
	})
	if err != nil {
		return table{}, nil, err
	}
	e.root = address
	if err := e.open(ctx, conn, address); err != nil {
		conn.Close()
		return table{}, nil, err
	}
	host, _ := os.Hostname()
	ms := func(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 1), math.MaxUint32)) }
	j := joinRequest{
		proto: protocolVersion, rank: uint32(e.Rank), world: uint32(e.World), token: e.token, listen: e.listen, wildcard: e.wildcard,
		version: e.Version, arch: runtime.GOARCH, host: host, pid: uint32(os.Getpid()),
		heartbeat: ms(e.Heartbeat), silentAfter: max(ms(e.SilentAfter), 4*ms(e.Heartbeat)),
	}
	m := newMuster(conn, address, e.home, e.Heartbeat, e.SilentAfter)
	m.put(makeFrame(frameJoin, j.body()))
	t, err := e.listenTo(ctx, m)
	if err != nil {
		if errors.Is(err, errRootSilent) {
			conn.Close() // nobody there to say goodbye to
		}
		m.close(makeFrame(frameLeave, []byte{flag(errors.Is(ctx.Err(), context.DeadlineExceeded))}))
		return table{}, nil, err
	}
	m.home = t.home
	return t, m, nil
}

// listenTo returns the table when the root sends it.
func (e *enrolment) listenTo(ctx context.Context, m *muster) (table, error) {
	waited := false // the root took us in
	for {
		t, body, err := m.hear(ctx)
		if err != nil {
			if waited && ctx.Err() == nil {
				e.lost = time.Now()
			}
			return table{}, err
		}
		switch t {
		case frameProgress:
			p, err := parseProgress(body)
			if err != nil {
				return table{}, err
			}
			e.seen, waited, e.lost = &p, true, time.Time{}
			if p.home != nobody {
				e.home = p.home
			}
		case frameRefused:
			refusal, err := parseRefusal(body, m.root)
			if err != nil {
				return table{}, err
			}
			if !waited && e.outlives(refusal.Code) {
				return table{}, errors.New(refusal.Error())
			}
			return table{}, refusal
		case frameTable:
			t, err := parseTable(body, e.World, e.zone())
			if t.home == nobody {
				t.home = e.home
			}
			return t, err
		default:
			return table{}, &protocolError{fmt.Sprintf("the root at %s sent a frame of type %d", m.root, t)}
		}
	}
}

var errRootGone = errors.New("the root closed the connection")

// outlives reports whether a refusal is about a world that ended before ours began, at an address where the next root will
// soon be: a rank that joins anew may be faster than the rank that serves.
func (e *enrolment) outlives(code Refusal) bool {
	return code == RefusedMissing || code == RefusedClosed || (code == RefusedUsed || code == RefusedDead || code == RefusedAborted) && e.ID.derived()
}

// errListen: this rank cannot listen, which asking the root again does not change.
var errListen = errors.New("this rank cannot listen for the others")

// zone is the local interface for link-local addresses.
func (e *enrolment) zone() string {
	if z := e.Addr.Zone(); z != "" {
		return z
	}
	return e.listen.Addr().Zone()
}

// open begins to listen for other ranks: where the user wants, or else at the address from which this rank reaches the root.
func (e *enrolment) open(ctx context.Context, conn net.Conn, root string) error {
	if e.hub != nil {
		return nil
	}
	at := e.Addr
	if !at.IsValid() {
		local, err := addrPortOf(conn.LocalAddr())
		if err != nil {
			return fmt.Errorf("%w: our end of the connection to the root: %w", errListen, err)
		}
		at = local.Addr()
		// A name that means loopback on this host may mean something else on others, so they need a way in.
		host, _, _ := net.SplitHostPort(root)
		_, err = netip.ParseAddr(host)
		e.wildcard = at.IsLoopback() && err != nil
	}
	bind := at
	if e.wildcard {
		bind = netip.IPv6Unspecified()
		if at.Is4() {
			bind = netip.IPv4Unspecified()
		}
	}
	ln, err := e.Ports.listen(ctx, e.Network, bind.String(), e.World+1)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", errListen, bind, err)
	}
	a, err := addrPortOf(ln.Addr())
	if err != nil {
		ln.Close()
		return fmt.Errorf("%w: %w", errListen, err)
	}
	e.hub, e.listen = newHub(ln, e.Network, e.ID.Secret(), e.Seed, e.Log), netip.AddrPortFrom(at, a.Port())
	return nil
}
