// Package cluster runs tests on ranks that are real processes of this machine.
//
// A rank is the test binary, started again: Main, called from TestMain, sees that it is a rank, runs the job that the parent
// named and exits. One launch of n ranks runs all cases of a table, because starting processes and meeting is slow beside a
// collective: the parent sends nothing, every rank makes the same table and reports on each case ([Rank.Case]), and the
// parent turns each case into a subtest that fails with the rank's words.
//
// It promises: the ranks find gccl's environment and a root that the parent serves, and nothing of an outer launcher's; shared memory
// lies in a directory of the launch's own, and what is left in it after the ranks have ended is a failure; output is kept for each
// rank and shown when the test fails; a rank that is still there at the timeout is asked for its goroutines' stacks and killed; no
// rank outlives the test binary; a rank that died, hung or left out a case fails that case by name.
//
// A test package needs
//
//	func TestMain(m *testing.M) { cluster.Main(m, cluster.Jobs{"sums": sums}) }
//
//	func TestSums(t *testing.T) { cluster.Run(t, cluster.Launch{Job: "sums", Ranks: 4}) }
//
//	func sums(r *cluster.Rank) {
//		c, err := comm.New(ctx, r.Config())
//		…
//		r.Case("int32", func(*cluster.Case) error { … })
//	}
//
// Linux only.
package cluster
