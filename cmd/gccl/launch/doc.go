// Package launch starts the ranks of a job as processes of this machine and looks after them until
// the last one has ended. It is what `gccl run` does, and what `gccl bench` does when no launcher
// started it.
//
// It promises: every rank gets the environment that comm.Config reads (GCCL_RANK, GCCL_WORLD_SIZE,
// GCCL_LOCAL_RANK, GCCL_ROOT, GCCL_SECRET); the port in GCCL_ROOT stays reserved for the job while
// it lasts; signals are passed on to every rank with all it started; when one rank fails the others
// are stopped; no rank outlives the launcher, however that ends (a rank's own children may, when
// the launcher is killed by SIGKILL).
//
// The caller says where each rank's output goes and hands in the signals to pass on; a job runs on
// the caller's goroutine.
//
//	lines := launch.NewLines(os.Stdout)
//	err := launch.Run(ctx, launch.Job{
//		Ranks:   4,
//		Program: "./train",
//		Output: func(rank int) (stdout, stderr io.Writer) {
//			w := lines.Writer(fmt.Sprintf("[%d] ", rank))
//			return w, w
//		},
//	})
//	var exit *launch.ExitError
//	if errors.As(err, &exit) {
//		os.Exit(exit.ExitCode()) // the first rank that failed
//	}
package launch
