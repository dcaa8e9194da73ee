package bootstrap

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
)

// maxWorld bounds the number of ranks, so that tables and messages about them stay within a frame.
const maxWorld = 1 << 20

// Config says which world to join, and as whom.
type Config struct {
	Rank  int // 0 … World-1
	World int
	// ID is the world's id: from [Root.ID], [ParseID] or [DeriveID]. Not looked at in a world of one.
	ID ID
	// Roots are the root's possible addresses, "host:port", instead of those in ID: it listens at the first that it can.
	Roots []string
	// Serve makes rank 0 serve the root itself, at the first of the addresses that is free, until the session is closed.
	Serve bool
	// Addr is where this rank listens for others. Zero: the address from which it reaches the root. Its zone completes link-local
	// addresses of others.
	Addr netip.Addr
	// Ports limits the port that this rank listens at.
	Ports PortRange
	// Descriptors is how many file descriptors the caller will need besides the session's. Join raises the process's soft limit if it
	// has to, and fails at once, with both numbers, if it may not.
	Descriptors int
	// Version must be equal on all ranks.
	Version string
	// Timeout bounds the whole Join, besides its context; 0 means DefaultTimeout.
	Timeout time.Duration
	Network Network
	Log     *slog.Logger // nil: no log
	// Heartbeat is how often a rank asks its neighbours for a sign of life, if nothing else came from them; 0 means DefaultHeartbeat.
	Heartbeat time.Duration
	// SilentAfter is after how much silence a rank is given up as dead; 0 means DefaultSilentAfter. It must be at least four
	// heartbeats, and should, as Heartbeat, be equal on all ranks. A debugger that stops a rank for longer makes it dead.
	SilentAfter time.Duration
	// Seed makes the random part of pauses between attempts repeatable. 0 takes one from the id.
	Seed uint64
}

func (c *Config) validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("bootstrap Join: Config.%s is %v; want %s", field, value, want)
	}
	switch {
	case c.World < 1 || c.World > maxWorld:
		return bad("World", c.World, fmt.Sprintf("1 to %d", maxWorld))
	case c.Rank < 0 || c.Rank >= c.World:
		return bad("Rank", c.Rank, fmt.Sprintf("0 to %d, as World is %d", c.World-1, c.World))
	case c.Timeout < 0:
		return bad("Timeout", c.Timeout, "a positive time, or 0 for the default")
	case c.Descriptors < 0:
		return bad("Descriptors", c.Descriptors, "0 or more")
	case c.Heartbeat < 0:
		return bad("Heartbeat", c.Heartbeat, "a positive time, or 0 for the default")
	case c.SilentAfter < 0:
		return bad("SilentAfter", c.SilentAfter, "a positive time, or 0 for the default")
	case cmp.Or(c.SilentAfter, DefaultSilentAfter) < 4*cmp.Or(c.Heartbeat, DefaultHeartbeat):
		return bad("SilentAfter", cmp.Or(c.SilentAfter, DefaultSilentAfter), fmt.Sprintf("at least 4 times Config.Heartbeat, which is %v", cmp.Or(c.Heartbeat, DefaultHeartbeat)))
	case len(c.Version) > 255:
		return bad("Version", fmt.Sprintf("%d bytes long", len(c.Version)), "at most 255")
	case c.Addr.IsUnspecified() || c.Addr.IsMulticast():
		return bad("Addr", c.Addr, "an address that other ranks can connect to, or none")
	}
	if err := c.Ports.check(); err != nil {
		return fmt.Errorf("bootstrap Join: Config.Ports: %w", err)
	}
	if c.World == 1 {
		return nil
	}
	if err := c.ID.check(); err != nil {
		return fmt.Errorf("bootstrap Join: Config.ID: %w", err)
	}
	for _, r := range c.roots() {
		if _, _, err := splitRoot(r); err != nil {
			return fmt.Errorf("bootstrap Join: Config.Roots: %w", err)
		}
	}
	return nil
}

func (c *Config) roots() []string {
	if len(c.Roots) > 0 {
		return c.Roots
	}
	return c.ID.Roots(c.Addr.Zone())
}

// Join brings this rank into its world and returns when all ranks are there and connected. A rank that is not up yet, a name
// that does not resolve yet and a link that comes up late are waited for, until ctx or Config.Timeout ends; the error then is
// a [*MissingError] or [*RefusedError] that names the missing ranks. A world of one touches no network.
func Join(ctx context.Context, c Config) (Session, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Network = c.Network.orTCP()
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.SilentAfter = cmp.Or(c.SilentAfter, DefaultSilentAfter)
	if c.Seed == 0 {
		c.Seed = c.ID.Hash()
	}
	if c.World == 1 {
		return newSession(0, c.ID.Hash(), []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Loopback(), 0)}, nil, &c), nil
	}
	if err := needDescriptors(c.World, c.Serve && c.Rank == 0, c.Descriptors); err != nil {
		return nil, fmt.Errorf("bootstrap Join as rank %d of %d: %w", c.Rank, c.World, err)
	}
	if c.Rank == 0 && !c.ID.Authenticated() {
		c.Log.Warn("unauthenticated: the ranks have no secret, so anybody who knows the job's name and reaches its ports can join; set GCCL_SECRET or GCCL_SECRET_FILE")
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()

	var root *Root
	if c.Serve && c.Rank == 0 {
		var err error
		if root, err = c.serveRoot(ctx); err != nil {
			return nil, err
		}
	}
	s, err := c.join(ctx, root)
	if err != nil {
		if root != nil {
			if errors.Is(err, ErrTimeout) {
				root.refuse(root.missing(), true) // the others hear it from us, with the names
			} else {
				root.refuse(&RefusedError{Code: RefusedClosed, Ranks: []int{0}, Text: "rank 0, which serves it, failed: " + err.Error()}, true)
			}
			root.Close()
		}
		return nil, err
	}
	return s, nil
}

// serveRoot listens at the first of the addresses that is free, and leaves only that one to join at.
func (c *Config) serveRoot(ctx context.Context) (*Root, error) {
	var errs []error
	for _, address := range c.roots() {
		listen := address
		if host, port, err := net.SplitHostPort(address); err == nil {
			if _, err := netip.ParseAddr(host); err != nil {
				// What this host's name resolves to here (127.0.1.1, often) need not be what it resolves to elsewhere.
				listen = net.JoinHostPort("", port)
			}
		}
		if p, err := netip.ParseAddrPort(address); err == nil && c.Ports != (PortRange{}) && (p.Port() < c.Ports.Low || p.Port() > c.Ports.High) {
			c.Log.Warn("the root listens outside of the port range: does the firewall let it through?", "root", address, "low", c.Ports.Low, "high", c.Ports.High)
		}
		root, err := ListenRoot(ctx, RootConfig{Address: listen, ID: c.ID, Timeout: c.Timeout, Network: c.Network, Log: c.Log})
		if err == nil {
			c.Roots = []string{address}
			return root, nil
		}
		errs = append(errs, fmt.Errorf("root address %s: %w", address, err))
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("rank 0 serves the root, and cannot: %w", joined(errs))
}

func (c *Config) join(ctx context.Context, root *Root) (*session, error) {
	e := &enrolment{Config: c, roots: c.roots(), start: time.Now()}
	rand.Read(e.token[:])
	t, err := e.run(ctx)
	if err != nil {
		if e.ln != nil {
			e.ln.Close()
		}
		return nil, err
	}
	// An address of a world before this one may be in use again, by somebody of this one: the nonce tells them apart.
	id := binary.BigEndian.Uint64(t.nonce[:]) ^ c.ID.Hash()
	h := newHub(e.ln, c.Network, c.ID.Secret(), t.nonce, c.Seed, c.Log)
	s := newSession(c.Rank, id, t.addrs, h, c)
	if err := h.enter(s); err != nil {
		panic("bootstrap: a new hub refuses its first session: " + err.Error())
	}
	if err := s.form(ctx, "Join"); err != nil {
		return nil, fmt.Errorf("bootstrap Join as rank %d of %d: all ranks joined the root at %s, but did not all meet: %w", c.Rank, c.World, e.root, err)
	}
	if root != nil {
		s.root = root
	}
	return s, nil
}

// enrolment is one rank's conversation with the root.
type enrolment struct {
	*Config
	roots    []string
	root     string // the one that answered last
	token    [tokenSize]byte
	ln       net.Listener
	listen   netip.AddrPort
	wildcard bool
	start    time.Time
	seen     *progress // the last that the root said
}

// run asks again until the root gives the table.
func (e *enrolment) run(ctx context.Context) (table, error) {
	pause := newBackoff(e.Seed, e.Rank)
	var last error
	for attempt := 1; ; attempt++ {
		t, err := e.attempt(ctx)
		if err == nil {
			return t, nil
		}
		var refused *RefusedError
		var protocol *protocolError
		if errors.As(err, &refused) {
			return table{}, err
		}
		if ctx.Err() == nil && (errors.As(err, &protocol) || errors.Is(err, errListen) || len(e.roots) == 1 && !transient(err)) {
			return table{}, fmt.Errorf("bootstrap Join as rank %d of %d: %w", e.Rank, e.World, err)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if attempt == 5 {
			e.Log.Info("the root does not answer yet; trying on", "roots", e.roots, "rank", e.Rank, "error", err)
		}
		if ctx.Err() != nil || !pause.wait(ctx) {
			return table{}, e.timedOut(ctx, last)
		}
	}
}

func (e *enrolment) timedOut(ctx context.Context, last error) error {
	m := &MissingError{World: e.World, Elapsed: time.Since(e.start), Err: last, cause: ctx.Err()}
	m.Root = e.root
	if e.seen != nil {
		m.Joined, m.Missing, m.Left = e.seen.joined, e.seen.missing, e.seen.left
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
func (e *enrolment) attempt(ctx context.Context) (table, error) {
	conn, address, err := race(ctx, e.roots, func(ctx context.Context, address string) (net.Conn, error) {
		return dialProven(ctx, e.Network, address, e.ID.Secret(), rootService)
	})
	if err != nil {
		return table{}, err
	}
	defer conn.Close()
	e.root = address
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := e.open(ctx, conn, address); err != nil {
		return table{}, err
	}
	host, _ := os.Hostname()
	j := joinRequest{
		proto: protocolVersion, rank: uint32(e.Rank), world: uint32(e.World), token: e.token, listen: e.listen, wildcard: e.wildcard,
		version: e.Version, arch: runtime.GOARCH, host: host, pid: uint32(os.Getpid()),
	}
	if _, err := conn.Write(makeFrame(frameJoin, j.body())); err != nil {
		return table{}, err
	}
	r := bufio.NewReader(conn)
	waited := false // the root took us in
	for {
		t, body, err := readFrame(r, maxFrame)
		if err != nil {
			if ctx.Err() != nil {
				return table{}, ctx.Err()
			}
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: %w", errRootGone, err)
			}
			return table{}, fmt.Errorf("root at %s: %w", address, err)
		}
		switch t {
		case frameProgress:
			p, err := parseProgress(body)
			if err != nil {
				return table{}, err
			}
			e.seen, waited = &p, true
		case frameRefused:
			refusal, err := parseRefusal(body, address)
			if err != nil {
				return table{}, err
			}
			if !waited && e.outlives(refusal.Code) {
				return table{}, errors.New(refusal.Error())
			}
			return table{}, refusal
		case frameTable:
			return parseTable(body, e.World, e.zone())
		default:
			return table{}, &protocolError{fmt.Sprintf("the root at %s sent a frame of type %d", address, t)}
		}
	}
}

var errRootGone = errors.New("the root closed the connection")

// outlives reports whether a refusal is about a world that ended before ours began, at an address where the next root will
// soon be: a rank that joins anew may be faster than the rank that serves.
func (e *enrolment) outlives(code Refusal) bool {
	return code == RefusedMissing || code == RefusedClosed || code == RefusedUsed && e.ID.derived()
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
	if e.ln != nil {
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
	e.ln, e.listen = ln, netip.AddrPortFrom(at, a.Port())
	return nil
}
