package main

import (
	"bufio"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/cmd/gccl/recorder"
	"github.com/gccl-project/gccl/comm"
)

func recorderCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "recorder FILE...",
		Short: "Join the records of a failed job's ranks and say who waits for whom",
		Long: `Join the records of a failed job's ranks and say who waits for whom.

With GCCL_RECORDER=DIR in its environment each rank writes what it was doing to DIR/gccl-COMM-RANK.json when its
communicator fails, and whenever it gets SIGUSR1.`,
		Example: "  gccl recorder /tmp/records/gccl-*.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no records; want: gccl recorder FILE and more")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var records []comm.Record
			for _, path := range args {
				r, err := recorder.Read(path)
				if err != nil {
					return usageError{err}
				}
				records = append(records, r)
			}
			out := bufio.NewWriter(cmd.OutOrStdout()) // which remembers that a write failed
			for _, w := range recorder.Join(records) {
				w.Print(out)
			}
			return out.Flush()
		},
	}
}
