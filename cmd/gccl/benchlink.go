package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/cmd/gccl/bench"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/tcp"
	"github.com/gccl-project/gccl/transport/verbs"
)

// benchLinks are the commands that measure one connection, by perftest's names.
func benchLinks() (all []*cobra.Command) {
	for _, c := range []struct {
		name, short string
		kind        bench.LinkKind
	}{
		{"write_bw", "Measure the bandwidth of one connection, as perftest's ib_write_bw does", bench.WriteBW},
		{"write_lat", "Measure the latency of one connection, as perftest's ib_write_lat does", bench.WriteLat},
		{"send_lat", "The same as write_lat: a connection has one way for short messages", bench.WriteLat},
		{"read_bw", "Measure the bandwidth of reading a peer's memory, as perftest's ib_read_bw does", bench.ReadBW},
		{"atomic_lat", "Measure the latency of adding to a peer's memory, as perftest's ib_atomic_lat does", bench.AtomicLat},
	} {
		link := bench.Link{Kind: c.kind, Sizes: []int{8}}
		size, every := int64(8), false
		if !c.kind.Latency() {
			size = 64 << 10
		}
		transports, message, over := []string{verbs.Name, "tcp"}, " -s 64K", " --transport tcp"
		if c.kind.OneSided() {
			transports, over = transports[:1], ""
		}
		if c.kind == bench.AtomicLat {
			message = ""
		}
		var transport string
		depth, gpu := 0, -1
		cmd := &cobra.Command{
			Use: c.name + " [flags]", Short: c.short, Args: flagsOnly(""),
			Long: c.short + `.

It starts two ranks on this machine, or runs as one of two where a launcher has set its environment (gccl run, torchrun), and moves
messages over a connection of the transport alone. The flags and the columns are perftest's; MB is 2^20 bytes. Of the settings that
gccl config lists those hold that a connection has a use for: GCCL_SOCKET_IFNAME, GCCL_PORT_RANGE, GCCL_INIT_TIMEOUT, GCCL_DEBUG, and those of
RDMA (GCCL_RDMA_DEVICE, GCCL_QP_COUNT, …).`,
			Example: "  gccl bench " + c.name + message + " -n 1000\n  gccl run -n 2 -- gccl bench " + c.name + over,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := linkFlags(cmd.Flags(), transport, depth); err != nil {
					return usageError{err}
				}
				link.Sizes = []int{int(size)}
				if every {
					link.Sizes = nil
					for n := 2; n <= 8<<20; n *= 2 {
						link.Sizes = append(link.Sizes, n)
					}
				}
				least := int64(0)
				if link.Kind.OneSided() {
					least = 1 // nothing is no memory to register
				}
				if size < least || size > transportMost {
					return usageError{fmt.Errorf("-s %s; want %d to %s", bench.FormatSize(size), least, bench.FormatSize(transportMost))}
				}
				return startLink(cmd, link, transport, depth, gpu)
			},
		}
		flags := cmd.Flags()
		if c.kind != bench.AtomicLat {
			flags.VarP(sizeFlag(&size, bench.FormatSize(size)), "size", "s", "bytes of a message")
			flags.BoolVarP(&every, "all", "a", false, "all sizes from 2 to 8M")
		}
		flags.VarP(intFlag(&link.Iters, 1, "1000"), "iters", "n", "messages")
		flags.VarP(intFlag(&link.Warmup, 0, "100"), "warmup", "w", "messages before them")
		flags.VarP(intFlag(&depth, 4, "128"), "tx-depth", "t", "verbs: messages of up to 64K on their way, a power of two up to 256")
		if c.kind.OneSided() {
			flags.Var(intFlag(&gpu, -1, "-1"), "use_cuda", "verbs: the GPU whose memory is used, by CUDA's ordinal; -1: the host's is")
		}
		flags.Var(newFlag("name", "verbs", func(s string) error {
			switch {
			case s == "tcp" && c.kind.OneSided():
				return errors.New("want verbs: tcp has no one-sided operations")
			case !slices.Contains(transports, s):
				return fmt.Errorf("want %s", strings.Join(transports, " or "))
			}
			transport = s
			return nil
		}), "transport", strings.Join(transports, " or "))
		all = append(all, cmd)
	}
	return all
}

const transportMost = transport.MostMessage

// linkFlags checks that the flags given mean something beside each other, and what verbs wants of the depth.
func linkFlags(flags *pflag.FlagSet, transport string, depth int) error {
	if flags.Changed("all") && flags.Changed("size") {
		return errors.New("-a and -s; want all sizes or one")
	}
	if depth > 256 || depth&(depth-1) != 0 {
		return fmt.Errorf("-t %d; want a power of two from 4 to 256", depth)
	}
	for _, name := range []string{"tx-depth", "use_cuda"} {
		if transport != verbs.Name && flags.Changed(name) {
			return fmt.Errorf("--%s with --transport %s; it means something with --transport verbs only", name, transport)
		}
	}
	return nil
}

// startLink runs our part of the measurement or starts both ranks.
func startLink(cmd *cobra.Command, link bench.Link, name string, depth, gpu int) (err error) {
	env, err := bootstrap.Environment(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	switch env.World {
	case 0:
		return new(benchFlags).spawn(cmd, 2)
	case 2:
	default:
		return usageError{fmt.Errorf("%s has started %d ranks; a link has 2", env.Launcher, env.World)}
	}
	cc, _, err := comm.LoadConfig(settings.Process())
	if err != nil {
		return err
	}
	if cc.Logger == nil {
		cc.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	cc.RDMA.Slots = depth
	if gpu >= 0 {
		if link.GPU, err = cuda.Open(gpu); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, link.GPU.Close()) }()
		cc.RDMA.GPUs = []verbs.GPU{link.GPU}
	}
	return untilSignal(cmd.Context(), func(ctx context.Context) error { return measureLink(ctx, cmd, link, name, env, cc) })
}

func measureLink(ctx context.Context, cmd *cobra.Command, link bench.Link, name string, env bootstrap.Env, cc comm.Config) (err error) {
	roots := env.Roots
	if roots == nil {
		roots = env.ID.Roots("")
	}
	at, err := place(cc.Interface, roots)
	if err != nil {
		return err
	}
	s, err := bootstrap.Join(ctx, bootstrap.Config{
		Rank: env.Rank, World: env.World, ID: env.ID, Roots: env.Roots, Serve: env.Serve, Ports: cc.Ports, Addr: at, Version: "gccl bench link 1", Timeout: cmp.Or(cc.InitTimeout, time.Minute), Log: cc.Logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e, err := openLink(link.LinkOptions(env.ID.Secret()), name, at, cc)
	if err != nil {
		s.Abort(err)
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := link.Run(ctx, s, e, cmd.OutOrStdout()); err != nil {
		s.Abort(err)
		return err
	}
	return nil
}

func openLink(o transport.Options, name string, at netip.Addr, cc comm.Config) (transport.Endpoint, error) {
	ports := [2]uint16{cc.Ports.Low, cc.Ports.High}
	if name == "tcp" {
		return tcp.Open(tcp.Config{Addr: at, Ports: ports, Log: cc.Logger}, o)
	}
	c := cc.RDMA
	c.Addr, c.Ports, c.Log = at, ports, cc.Logger
	if f, err := topology.ParseFilter(cc.RDMADevice); err != nil {
		return nil, usageError{err}
	} else if f.IsSet() {
		c.Devices = f.Match
	}
	return verbs.Open(c, o)
}

// place is the address to listen at: on the interface that leads to the root, unless a filter says otherwise, as of a communicator.
func place(filter string, roots []string) (netip.Addr, error) {
	f, err := topology.ParseFilter(filter)
	if err != nil {
		return netip.Addr{}, err
	}
	ifaces, err := topology.Interfaces()
	if err != nil {
		return netip.Addr{}, err
	}
	choice, err := topology.Choose(ifaces, topology.Query{Filter: f}.LeadingTo(roots, ifaces))
	return choice.Addr, err
}
