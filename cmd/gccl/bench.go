package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/cmd/gccl/bench"
	"github.com/gccl-project/gccl/cmd/gccl/launch"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// benchFlags are what the command line of a benchmark says.
type benchFlags struct {
	cfg       bench.Config
	factor    int
	ranks     int
	transport string
	json      string
	strict    bool
	device    string
	graph     bool
	gpus      []int
}

func benchCommand() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench KIND [flags]",
		Short: "Measure and check a collective between processes",
		Long: `Measure and check a collective between processes: ` + strings.Join(bench.Kinds(), ", ") + `.

Where no launcher has set its environment (gccl run, torchrun), it starts --ranks copies of itself on this
machine. The short flags mean what they mean in nccl-tests, as do sizes: of an all_gather what a rank
receives, of a reduce_scatter what it gives. Inputs are rewritten before each timed call, every element of
the checked calls is compared, and the exit status is 1 if one was wrong.

The columns, and with --json the fields of a row's object:

  size (B)          bytes                 of the message: whole elements for each rank
  count (elements)  count                 elements in it
  type, redop       dtype, redop          redop is none where the kind reduces nothing
  root              root                  -1, in JSON null, where the kind has none
  time (us)         time_us               microseconds of a call: the median of the iterations, in each the slowest rank's; with --back-to-back the
                                          mean. In JSON min, p50 (the median), p99 and mean
  algbw (GB/s)      algbw_gb_per_s        size by time, in 10^9 bytes a second
  busbw (GB/s)      busbw_gb_per_s        algbw times 2(n-1)/n of an all_reduce between n ranks, times (n-1)/n of all_gather, reduce_scatter and
                                          alltoall, times 1 of the others; both are -, in JSON null, for one rank and for no bytes
  #wrong            wrong                 wrong elements of all ranks in all checked calls; N/A, in JSON null, when nothing was checked
  p99 out, p99 in   time_us.p99           microseconds that 99 % of the iterations don't exceed, out of place and in place; of fewer than 100 the longest

and in JSON alone kind, ranks, algo (the algorithm), transport, memory, in_place, iters, and barrier: what was before each call, page (in shared
memory), comm (a Barrier) or none.

One connection alone, without collectives, is what write_bw, write_lat, send_lat, read_bw and atomic_lat measure.`,
		Example: `  gccl bench all_reduce -b 8 -e 64M -f 4
  gccl bench all_reduce -d all -o all -b 1M -e 1M --ranks 4 --transport tcp
  gccl bench alltoall -b 1K -e 1G -f 2 --json rows.jsonl`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) != 1 {
				return fmt.Errorf("%d kinds given; want one of %s, %s", len(args), strings.Join(bench.Kinds(), ", "), alternatives(cmd))
			}
			if f.cfg.Kind, err = bench.ParseKind(args[0]); err != nil {
				return fmt.Errorf("%w, %s", err, alternatives(cmd))
			}
			return nil
		},
		ValidArgs: bench.Kinds(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.cfg.Sizes.Factor = int64(f.factor)
			if err := f.fit(cmd.Flags()); err != nil {
				return usageError{err}
			}
			return f.start(cmd)
		},
	}
	c.AddCommand(benchLinks()...)
	flags := c.Flags()
	cfg := &f.cfg
	flags.VarP(sizeFlag(&cfg.Sizes.Min, "32M"), "minbytes", "b", "smallest size")
	flags.VarP(sizeFlag(&cfg.Sizes.Max, "32M"), "maxbytes", "e", "largest size")
	flags.VarP(sizeFlag(&cfg.Sizes.Step, "1M"), "stepbytes", "i", "what is added from size to size")
	flags.VarP(intFlag(&f.factor, 1, "1"), "stepfactor", "f", "what is multiplied by from size to size; above 1 it stands for -i")
	flags.VarP(intFlag(&cfg.Iters, 1, "20"), "iters", "n", "timed iterations")
	flags.VarP(intFlag(&cfg.Warmup, 0, "1"), "warmup-iters", "w", "iterations before them")
	flags.VarP(intFlag(&cfg.Agg, 1, "1"), "agg-iters", "m", "calls one after the other in each iteration")
	flags.VarP(intFlag(&cfg.Checks, 0, "1"), "check", "c", "checked calls of each message, 0 for none")
	flags.VarP(opsFlag(&cfg.Ops), "op", "o", "reduction: sum, prod, min, max, avg, mulsum (each rank's input times a factor first); several by commas; all")
	flags.VarP(dtypesFlag(&cfg.DTypes), "datatype", "d", "type: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2; several by commas; all")
	flags.VarP(listFlag(&cfg.Roots, "root", "0", nil, parseRoot), "root", "r", "root of broadcast and reduce, or all")
	flags.Var(intFlag(&f.ranks, 1, "2"), "ranks", "ranks to start where no launcher has")
	flags.Var(newFlag("name", "auto", f.setTransport), "transport", "auto, shm, tcp or verbs")
	flags.StringVar(&cfg.Algorithm, "algo", "", "algorithm; default: what the tuner chooses")
	flags.Var(newFlag("kind", "alloc", func(s string) (err error) {
		cfg.Memory, err = bench.ParseMemory(s)
		return err
	}), "memory", "with --device host: alloc (comm.Alloc) or slice (Go slices)")
	flags.StringVar(&f.json, "json", "", "write one JSON object a row to this file; - is stdout, in place of the table")
	flags.BoolVar(&cfg.BackToBack, "back-to-back", false, "with --device host: no barrier between iterations and inputs not rewritten")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "of the inputs")
	flags.Var(newFlag("name", "host", f.setDevice), "device", "host, or cuda: GPU memory, the ranks all in this process, or each in the one that a launcher started")
	flags.Var(gpusFlag(&f.gpus), "gpus", "with --device cuda: the GPUs that the ranks are spread over, by CUDA's ordinals (default: the first one; where a launcher started the ranks, all that a rank sees, by local rank)")
	flags.BoolVar(&f.graph, "graph", false, "with --device cuda: capture the -m calls of an iteration in a graph and replay it")
	flags.BoolVar(&f.strict, "strict", false, "fail when a launcher promised more ranks than there are")
	// nccl-tests writes its long flags with underlines.
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return c
}

// alternatives are what the command measures besides the kinds.
func alternatives(cmd *cobra.Command) string {
	var names []string
	for _, link := range cmd.Commands() {
		names = append(names, link.Name())
	}
	return "or of one connection " + strings.Join(names, ", ")
}

func (f *benchFlags) setTransport(s string) error {
	if known := []string{"auto", "shm", "tcp", "verbs"}; !slices.Contains(known, s) {
		return fmt.Errorf("want one of %s", strings.Join(known, ", "))
	}
	f.transport = s
	return nil
}

func (f *benchFlags) setDevice(s string) error {
	if s != "host" && s != "cuda" {
		return errors.New("want host or cuda")
	}
	f.device = s
	return nil
}

// deviceFlags are the flags that mean something with one --device only, by its name.
var deviceFlags = map[string][]string{
	"host": {"memory", "back-to-back"},
	"cuda": {"gpus", "graph"},
}

// fit makes one of -b and -e follow the other where only that was given, and checks --algo and that --device has the flags given.
func (f *benchFlags) fit(flags *pflag.FlagSet) error {
	for device, names := range deviceFlags {
		for _, name := range names {
			if device != f.device && flags.Changed(name) {
				return fmt.Errorf("--%s with --device %s; it means something with --device %s only: leave one of the two out", name, f.device, device)
			}
		}
	}
	s := &f.cfg.Sizes
	switch {
	case !flags.Changed("maxbytes"):
		s.Max = max(s.Max, s.Min)
	case !flags.Changed("minbytes"):
		s.Min = min(s.Min, s.Max)
	}
	if f.cfg.Algorithm == "" {
		return nil
	}
	names := f.cfg.Kind.Algorithms()
	switch {
	case len(names) == 0:
		return fmt.Errorf("--algo %q; %s has no algorithms to choose from", f.cfg.Algorithm, f.cfg.Kind.Name)
	case !slices.Contains(names, f.cfg.Algorithm):
		return fmt.Errorf("--algo %q; %s has %s", f.cfg.Algorithm, f.cfg.Kind.Name, strings.Join(names, ", "))
	}
	return nil
}

// start finds out what world we are in, and runs our part of the benchmark or starts the ranks.
func (f *benchFlags) start(cmd *cobra.Command) error {
	env, err := bootstrap.Environment(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	promised, variable, err := bootstrap.PromisedWorld(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	ranksGiven := cmd.Flags().Changed("ranks")
	world := f.ranks
	switch {
	case env.World > 0 && ranksGiven && f.ranks != env.World:
		return usageError{fmt.Errorf("--ranks %d, but %s has started %d; leave --ranks out", f.ranks, env.Launcher, env.World)}
	case env.World > 0:
		world = env.World
	case promised > 1 && !ranksGiven:
		// Each of the launcher's processes is here. Two ranks for each would measure anything but that.
		world = 1
	}
	if world > launch.MaxRanks && env.World == 0 {
		return usageError{fmt.Errorf("--ranks %d; want 1 to %d on one machine", world, launch.MaxRanks)}
	}
	if err := f.cfg.Check(world); err != nil {
		return usageError{err}
	}
	spawn := env.World == 0 && world > 1 && f.device != "cuda" // on GPUs all ranks are in this process
	if promised > world {
		text := fmt.Sprintf("launcher says %d, running with %d (%s=%d): start the ranks by torchrun or `gccl run`, or give each GCCL_RANK, GCCL_WORLD_SIZE and GCCL_ROOT",
			promised, world, variable, promised)
		if f.strict {
			return errors.New(text)
		}
		if !spawn && env.Rank == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning: %s\n", cmd.CommandPath(), text)
		}
	}
	if spawn {
		return f.spawn(cmd, world)
	}
	if f.device == "cuda" {
		f.ranks = world
		return untilSignal(cmd.Context(), func(ctx context.Context) error { return f.measureOnDevice(ctx, cmd, env) })
	}
	return untilSignal(cmd.Context(), func(ctx context.Context) error { return f.measure(ctx, cmd, env, world) })
}

// spawn starts the ranks: this command again, which will find a launcher's environment.
func (f *benchFlags) spawn(cmd *cobra.Command, world int) error {
	_, set, err := comm.LoadConfig(settings.Process())
	if err != nil {
		return err // once, and not by every rank
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own program to start ranks of: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	stderr := launch.NewLines(os.Stderr)
	err = launch.Run(cmd.Context(), launch.Job{
		Ranks: world, Program: self, Args: os.Args[1:], Signals: signals, Records: set.Of("recorder").Text != "",
		Output: func(rank int) (io.Writer, io.Writer) {
			if rank == 0 {
				return os.Stdout, os.Stderr // the table stays as it is
			}
			w := stderr.Writer(fmt.Sprintf("[%d] ", rank))
			return w, w
		},
	})
	var exit *launch.ExitError
	if errors.As(err, &exit) && exit.Signal == 0 {
		return statusError(exit.Code) // the rank has said why
	}
	return err
}

// config is what the flags and the environment say of the communicator.
func (f *benchFlags) config(cmd *cobra.Command) (comm.Config, error) {
	cc, _, err := comm.LoadConfig(settings.Process())
	if err != nil {
		return cc, err
	}
	if cmd.Flags().Changed("transport") {
		cc.Transport = f.transport
	}
	if cc.Logger == nil {
		cc.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return cc, nil
}

// measure is one rank's part.
func (f *benchFlags) measure(ctx context.Context, cmd *cobra.Command, env bootstrap.Env, world int) (err error) {
	cc, err := f.config(cmd)
	if err != nil {
		return err
	}
	if env.World == 0 {
		cc.Size = 1
	}
	out, done, err := f.output(cmd, env.Rank)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	c, err := comm.New(ctx, cc)
	if err != nil {
		return err
	}
	result, err := bench.Run(ctx, c, f.cfg, out)
	if err != nil {
		c.Abort(err) // nobody should wait for us
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	return verdict(result)
}

func verdict(r bench.Result) error {
	if r.Wrong > 0 {
		return fmt.Errorf("%d elements were wrong", r.Wrong)
	}
	return nil
}

// output is where a rank's results go; done closes it.
func (f *benchFlags) output(cmd *cobra.Command, rank int) (out bench.Output, done func() error, err error) {
	out = bench.Output{Table: cmd.OutOrStdout(), Log: cmd.ErrOrStderr()}
	done = func() error { return nil }
	switch {
	case rank != 0 || f.json == "":
	case f.json == "-":
		out.JSON, out.Table = out.Table, nil
	default:
		file, err := os.Create(f.json)
		if err != nil {
			return out, done, fmt.Errorf("--json: %w", err)
		}
		out.JSON, done = file, file.Close
	}
	return out, done, nil
}

// measureOnDevice is the benchmark of all ranks in this process, or of the one that a launcher has started.
func (f *benchFlags) measureOnDevice(ctx context.Context, cmd *cobra.Command, env bootstrap.Env) (err error) {
	if len(f.gpus) == 0 && env.World > 0 {
		n, err := cuda.Count()
		if err != nil {
			return err
		}
		for i := range n {
			f.gpus = append(f.gpus, i)
		}
	}
	if len(f.gpus) == 0 {
		f.gpus = []int{0} // if there is none, its opening says why
	}
	cc, err := f.config(cmd)
	if err != nil {
		return err
	}
	out, done, err := f.output(cmd, env.Rank)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	run, on := bench.RunOnDevice, bench.Devices{GPUs: f.gpus, Graph: f.graph}
	if env.World > 0 {
		run, on.Local = bench.RunRankOnDevice, max(env.LocalRank, 0)
	}
	result, err := run(ctx, f.cfg, f.ranks, on, cc, out)
	if err != nil {
		return err
	}
	return verdict(result)
}
