//go:build amd64 || arm64

package engine

// waitNot polls word until it differs from idle, at most polls times, and reports
// whether it does. A loop of calls must call preemptible in between: the runtime cannot stop
// a goroutine inside assembly, and a garbage collection would wait for as long as the loop lasts.
//
//go:noescape
func waitNot(word *uint64, idle uint64, polls int32) bool

// pause lets n PAUSE instructions pass.
func pause(n int32)
