package bootstrap

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
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
// a [*MissingError] or [*RefusedError] that names the missing ranks. Where a rank is lost that had joined the root, it is a
// [*RefusedError] with RefusedDead or a [*PeerError], both [ErrDead]; where one gave up after all had joined, an [*AbortedError]. A world of
// one touches no network.
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
			var missing *MissingError
			if errors.As(err, &missing) {
				missing.others = root.impostors()
			}
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
	e := &enrolment{Config: c, roots: c.roots(), home: nobody, start: time.Now()}
	if c.Serve {
		e.home = 0
	}
	rand.Read(e.token[:])
	t, m, err := e.run(ctx)
	if err != nil {
		if e.hub != nil {
			e.hub.shut()
		}
		return nil, err
	}
	e.hub.open(t.nonce)
	s := newSession(c.Rank, t.session(c.ID), t.addrs, e.hub, c)
	if err := e.hub.enter(s); err != nil {
		panic("bootstrap: a new hub refuses its first session: " + err.Error())
	}
	s.muster = m
	s.wg.Go(func() { s.follow(m) })
	if err := s.form(ctx, "Join"); err != nil {
		return nil, fmt.Errorf("bootstrap Join as rank %d of %d: all ranks joined the root at %s, but did not all meet: %w", c.Rank, c.World, e.root, err)
	}
	s.wg.Go(s.leaveRoot)
	if root != nil {
		s.root = root
	}
	return s, nil
}
