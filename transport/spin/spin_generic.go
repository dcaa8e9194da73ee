//go:build !amd64 && !arm64

package spin

import "sync/atomic"

// WaitNot polls word until it differs from idle, at most polls times, and reports whether it does. What another processor
// stored before it stored the word is then seen.
func WaitNot(word *uint64, idle uint64, polls int32) bool {
	for ; polls > 0; polls-- {
		if atomic.LoadUint64(word) != idle {
			return true
		}
	}
	return false
}

// Pause lets a short time pass.
func Pause(n int32) {
	for ; n > 0; n-- {
		Preemptible()
	}
}

// Own asks for n ≥ 1 cache lines of 64 bytes from p on, as stores to them would, and returns at once: stores that come when the lines have need not
// wait. It changes nothing, and where no memory is it does nothing; here it never does anything.
func Own(*uint64, int) {}
