//go:build !amd64 && !arm64

package engine

import "sync/atomic"

// waitNot polls word until it differs from idle, at most polls times, and reports
// whether it does.
func waitNot(word *uint64, idle uint64, polls int32) bool {
	for ; polls > 0; polls-- {
		if atomic.LoadUint64(word) != idle {
			return true
		}
	}
	return false
}

// pause lets a short time pass.
func pause(n int32) {
	for ; n > 0; n-- {
		preemptible()
	}
}
