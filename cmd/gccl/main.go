// Command gccl measures, checks and starts jobs of gccl, the collective communications runtime.
//
//	gccl bench all_reduce -b 8 -e 64M -f 4     # between 2 processes of this machine
//	gccl run -n 4 -- ./train --steps 100       # 4 ranks of any program
//	gccl topo                                  # this host as gccl sees it
//	gccl doctor                                # what is wrong with it
//
// Exit status: what [exitStatus] says, which help shows.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/cmd/gccl/launch"
	"github.com/gccl-project/gccl/comm"
)

const exitStatus = `Exit status, of all commands:
  0    all went well
  1    something failed, a result was wrong, or doctor found what does not work
  2    the command line or the environment makes no sense, or names a file or folder to read that cannot be read or is none of that kind
  128  and the signal's number: a signal ended it (130 after Ctrl-C)
gccl run ends with the status of the first rank that failed; with 127 where there is no such program, 126 where it cannot be run.`

func main() { os.Exit(gccl(os.Args[1:], os.Stdout, os.Stderr)) }

// gccl runs a command line and returns the exit status.
func gccl(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	return status(cmd, err, stderr)
}

// newRoot returns gccl with all its commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "gccl",
		Short:         "Measure, check and start jobs of gccl",
		Long:          "Measure, check and start jobs of gccl, the collective communications runtime.\n\n" + exitStatus,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(benchCommand(), runCommand(), topoCommand(), doctorCommand(), configCommand(), recorderCommand(), versionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error {
			if about, _, err := root.Find(args); len(args) > 0 && (err != nil || about == root) {
				return unknownCommand(args[0])
			}
			return nil
		}
	}
	markUsage(root)
	return root
}

func unknownCommand(name string) error {
	return fmt.Errorf("unknown command %q; want bench, run, topo, doctor, config, recorder or version", name)
}

// flagsOnly refuses arguments. File is the flag that names a file, where there is one: an argument was most likely meant for it.
func flagsOnly(file string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case file == "":
			return fmt.Errorf("unexpected argument %q; want none", args[0])
		}
		return fmt.Errorf("unexpected argument %q; did you mean %s %s?", args[0], file, args[0])
	}
}

// usageError is an error in what the user typed or set, beside [comm.ErrConfig], which package comm finds.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// statusError ends the command with a status, about which everything has been said.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// markUsage makes errors in flags and arguments usage errors, of a command and all below it.
func markUsage(c *cobra.Command) {
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markUsage(sub)
	}
}

// status reports an error and returns the exit status that it stands for.
func status(cmd *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	var said statusError
	if errors.As(err, &said) {
		return int(said)
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	var usage usageError
	var exit *launch.ExitError
	var interrupted *interruptedError
	switch {
	case errors.As(err, &interrupted):
		return 128 + int(interrupted.by)
	case errors.As(err, &usage), errors.Is(err, comm.ErrConfig):
		fmt.Fprintf(stderr, "See `%s --help`.\n", cmd.CommandPath())
		return 2
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return 1
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  flagsOnly(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, revision := "(devel)", ""
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						revision = " " + s.Value
					}
				}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "gccl %s%s %s %s/%s\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
