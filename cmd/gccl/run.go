package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/cmd/gccl/launch"
)

// passedOn are the signals that a launcher passes on to its ranks.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGTSTP, syscall.SIGCONT,
}

func runCommand() *cobra.Command {
	var ranks int
	var grace time.Duration
	c := &cobra.Command{
		Use:   "run -n N [flags] -- PROGRAM [ARGS]",
		Short: "Start a program as N ranks on this machine",
		Long: `Start a program as N ranks on this machine.

Each rank finds GCCL_RANK, GCCL_WORLD_SIZE, GCCL_LOCAL_RANK, GCCL_ROOT and GCCL_SECRET in its
environment. Its output comes out line by line behind "[rank] ", its input is empty. Signals are passed
on; after a second one that asks to end, and when a rank fails, the ranks get SIGTERM and after the
grace SIGKILL. The exit status is that of the first rank that failed.`,
		Example: "  gccl run -n 4 -- ./train --steps 100",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no program to run; want: gccl run -n N -- PROGRAM [ARGS]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if ranks < 1 || ranks > launch.MaxRanks {
				return usageError{fmt.Errorf("-n %d; want 1 to %d ranks", ranks, launch.MaxRanks)}
			}
			if grace <= 0 {
				return usageError{fmt.Errorf("--grace %v; want a duration above 0, such as 5s", grace)}
			}
			signals := make(chan os.Signal, 16)
			signal.Notify(signals, passedOn...)
			defer signal.Stop(signals)
			out, errs := launch.NewLines(cmd.OutOrStdout()), launch.NewLines(cmd.ErrOrStderr())
			err := launch.Run(cmd.Context(), launch.Job{
				Ranks: ranks, Program: args[0], Args: args[1:], Signals: signals, Grace: grace,
				Output: func(rank int) (io.Writer, io.Writer) {
					prefix := fmt.Sprintf("[%d] ", rank)
					return out.Writer(prefix), errs.Writer(prefix)
				},
			})
			return notFound(cmd, err)
		},
	}
	c.Flags().IntVarP(&ranks, "ranks", "n", 0, "ranks to start (required)")
	c.Flags().DurationVar(&grace, "grace", launch.DefaultGrace, "time between SIGTERM and SIGKILL when ranks are stopped")
	c.Flags().SetInterspersed(false) // what comes after the program's name is the program's
	return c
}

// notFound gives a program that can't be started the exit status that shells give it.
func notFound(cmd *cobra.Command, err error) error {
	code := 0
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		code = 127
	case errors.Is(err, fs.ErrPermission):
		code = 126
	default:
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.CommandPath(), err)
	return statusError(code)
}
