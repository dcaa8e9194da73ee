package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/cmd/gccl/launch"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/topology"
)

// passedOn are the signals that a launcher passes on to its ranks.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGTSTP, syscall.SIGCONT,
}

func runCommand() *cobra.Command {
	var ranks int
	var grace time.Duration
	var pin bool
	c := &cobra.Command{
		Use:   "run -n N [flags] -- PROGRAM [ARGS]",
		Short: "Start a program as N ranks on this machine",
		Long: `Start a program as N ranks on this machine.

Each rank finds GCCL_RANK, GCCL_WORLD_SIZE, GCCL_LOCAL_RANK, GCCL_ROOT and GCCL_SECRET in its
environment. Its output comes out line by line behind "[rank] ", its input is empty. Signals are passed
on; after a second one that asks to end, and when a rank fails, the ranks get SIGTERM and after the
grace SIGKILL. With GCCL_RECORDER, or recorder in the file that GCCL_CONFIG names, ranks have the grace before that, too, to write their records
of the failure, and each says where. What a program sets itself (Config.Recorder, Config.File) is not seen here, and its ranks may be ended
before they have written.

The exit status is that of the first rank that failed; 127 where there is no such program, 126 where there is one that cannot be run.

With --pin each rank may run on CPUs of its own alone: near GPU i for rank i, of those that CUDA_VISIBLE_DEVICES leaves, or spread over
the NUMA nodes. Where the CPUs are too few the ranks share them. What a rank was given and why goes to standard error.`,
		Example: `  gccl run -n 4 -- ./train --steps 100
  gccl run -n 2 --pin -- gccl bench all_reduce`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no program to run; want: gccl run -n N -- PROGRAM [ARGS]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if ranks == 0 {
				return usageError{fmt.Errorf("no -n; want: gccl run -n N -- PROGRAM [ARGS], with 1 to %d ranks", launch.MaxRanks)}
			}
			var cpus [][]int
			if pin {
				var err error
				if cpus, err = share(cmd.ErrOrStderr(), ranks); err != nil {
					return err
				}
			}
			signals := make(chan os.Signal, 16)
			signal.Notify(signals, passedOn...)
			defer signal.Stop(signals)
			out, errs := launch.NewLines(cmd.OutOrStdout()), launch.NewLines(cmd.ErrOrStderr())
			err := launch.Run(cmd.Context(), launch.Job{
				Ranks: ranks, Program: args[0], Args: args[1:], CPUs: cpus, Signals: signals, Grace: grace, Records: records(),
				Output: func(rank int) (io.Writer, io.Writer) {
					prefix := fmt.Sprintf("[%d] ", rank)
					return out.Writer(prefix), errs.Writer(prefix)
				},
			})
			return notRun(cmd, err)
		},
	}
	c.Flags().VarP(countFlag(&ranks, "ranks", launch.MaxRanks), "ranks", "n", "ranks to start (required)")
	c.Flags().Var(newFlag("duration", launch.DefaultGrace.String(), func(s string) (err error) {
		if grace, err = time.ParseDuration(s); err != nil || grace <= 0 {
			return errors.New("want a duration above 0, such as 5s")
		}
		return nil
	}), "grace", "time between SIGTERM and SIGKILL when ranks are stopped")
	c.Flags().BoolVar(&pin, "pin", false, "bind each rank to CPUs of its own")
	c.Flags().SetInterspersed(false) // what comes after the program's name is the program's
	return c
}

// records reports whether the ranks are set to write records of a failure. What is wrong in the settings the ranks say.
func records() bool {
	_, set, err := comm.LoadConfig(settings.Process())
	return err == nil && set.Of("recorder").Text != ""
}

// share divides the CPUs among the ranks, and says how.
func share(w io.Writer, ranks int) (cpus [][]int, err error) {
	err = discover("", func(_ fs.FS, h *topology.Host) {
		for rank, pin := range h.Share(ranks, os.Environ()) {
			list := pin.CPUs.List()
			cpus = append(cpus, list)
			why := make([]string, len(pin.Reasons))
			for i, r := range pin.Reasons {
				why[i] = string(r)
			}
			fmt.Fprintf(w, "[%d] CPUs %s: %s\n", rank, cmp.Or(pin.CPUs.String(), "any"), strings.Join(why, "; "))
		}
	})
	return cpus, err
}

// notRun gives a program that can't be run the exit status that shells give it.
func notRun(cmd *cobra.Command, err error) error {
	var program *launch.ProgramError
	if !errors.As(err, &program) {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.CommandPath(), err)
	return statusError(program.ExitCode())
}
