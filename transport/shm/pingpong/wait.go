//go:build linux && (amd64 || arm64)

// Package pingpong measures package shm between two processes, each on a CPU of
// its own, against the least that two CPUs can do: one line of memory each way
// and nothing else. The two take turns in slices of some milliseconds, since
// the time that a line takes between two CPUs of a shared host changes within
// seconds. It is a benchmark; nothing here is for import.
//
//	go test -run '^$' -bench . ./transport/shm/pingpong
package pingpong

// waitNot polls word up to polls times, pausing in between, and reports whether
// it was found to be other than idle. Call it with few polls: it cannot be
// preempted.
//
//go:noescape
func waitNot(word *uint64, idle uint64, polls int32) bool
