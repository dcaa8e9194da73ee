package comm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport/tcp"
)

// listenAt is where we listen for other ranks.
type listenAt struct {
	addr  netip.Addr
	iface string
	rails []topology.Rail // of data, that of addr first
}

// numbered fills in who we are, and where the roots are, from the environment where Size is 0. It warns of a launcher that started others,
// too, but told nobody how to meet.
func (c Config) numbered(getenv func(string) string) (Config, bootstrap.Env, error) {
	if c.Size > 0 {
		return c, bootstrap.Env{}, nil
	}
	env, err := bootstrap.Environment(getenv)
	if err != nil {
		return c, env, &misconfigured{fmt.Errorf("comm: %w", err)}
	}
	if env.World == 0 {
		// A variable that is none of ours may hold anything.
		if n, name, err := bootstrap.PromisedWorld(getenv); err == nil && n > 1 {
			c.Logger.Warn("one rank alone, though a launcher started more: start the ranks by torchrun or gccl run, or give each "+
				"GCCL_RANK, GCCL_WORLD_SIZE and GCCL_ROOT; if it is meant to be alone, set Config.Size to 1", "launched", n, "variable", name)
		}
	}
	c.Rank, c.Size, c.ID = env.Rank, env.World, env.ID
	return c, env, nil
}

// join meets the other ranks, where env says if it says anything. One rank alone has no session.
func join(ctx context.Context, cfg Config, env bootstrap.Env) (bootstrap.Session, Config, listenAt, error) {
	b := bootstrap.Config{Rank: cfg.Rank, World: cfg.Size, ID: cfg.ID, Roots: env.Roots, Serve: env.Serve, Ports: cfg.Ports,
		Version: fmt.Sprintf("gccl wire %d", wireVersion), Timeout: cfg.InitTimeout, Network: cfg.Network, Log: cfg.Logger}
	if cfg.Size <= 1 {
		return nil, cfg, listenAt{}, nil
	}
	var at listenAt
	if cfg.Network.Dial == nil {
		roots := b.Roots
		if roots == nil {
			roots = b.ID.Roots("")
		}
		var err error
		if at, err = awaitPlace(ctx, cfg, roots); err != nil {
			return nil, cfg, at, fmt.Errorf("comm: %w", err)
		}
		cfg.Logger.Debug("network interface", "rank", cfg.Rank, "interface", at.iface, "address", at.addr, "rails", at.rails)
		b.Addr = at.addr
	}
	s, err := bootstrap.Join(ctx, b)
	if err != nil {
		return nil, cfg, at, fmt.Errorf("comm: %w", err)
	}
	return s, cfg, at, nil
}

// awaitPlace is choosePlace once an interface is up, as long as ctx lasts.
func awaitPlace(ctx context.Context, cfg Config, roots []string) (listenAt, error) {
	for first := true; ; first = false {
		at, err := choosePlace(cfg.Interface, roots)
		if !errors.Is(err, topology.ErrNotUp) {
			return at, err
		}
		if first {
			cfg.Logger.Warn("waiting for a network interface", "rank", cfg.Rank, "reason", err)
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// choosePlace returns the address to listen at: on the interface that leads to the root, unless a filter says otherwise.
func choosePlace(filter string, roots []string) (listenAt, error) {
	f, err := topology.ParseFilter(filter)
	if err != nil {
		return listenAt{}, err
	}
	ifaces, err := topology.Interfaces()
	if err != nil {
		return listenAt{}, err
	}
	q := topology.Query{Filter: f}.LeadingTo(roots, ifaces)
	choice, err := topology.Choose(ifaces, q)
	if err != nil {
		return listenAt{}, err
	}
	at := listenAt{addr: choice.Addr, iface: choice.Interface.Name}
	at.rails, _ = topology.Rails(ifaces, discover(false).nets, q, choice)
	return at, nil
}

// sockets is what TCP needs to know of where we are.
func (at listenAt) sockets() tcp.Config {
	c := tcp.Config{Addr: at.addr}
	for i, r := range at.rails {
		if flows := min(r.Flows, 16); i == 0 {
			c.Flows = flows
		} else if len(c.Rails) < 15 {
			c.Rails = append(c.Rails, tcp.Rail{Addr: r.Addr, Flows: flows})
		}
	}
	return c
}

// hostPort is the address with a port that the kernel chooses.
func (at listenAt) hostPort() string { return netip.AddrPortFrom(at.addr, 0).String() }
