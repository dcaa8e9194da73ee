//go:build linux && cgo

package verbs

import (
	"runtime"
	"time"
)

// rest is when the driver's goroutine last let itself be scheduled.
type rest struct {
	posts uint32
	last  time.Time
}

const (
	restPosts = 32                   // posts between looks at the clock
	restEvery = 4 * time.Millisecond // well below the runtime's 10
)

// posted lets the runtime schedule the goroutine anew every few milliseconds. One that was not for 10 ms loses its processor in whatever
// call into C it is found: another thread goes on with the goroutine, and the runtime's watcher, which it keeps awake, takes a look
// every 20 µs. A device whose posts are system calls, as Soft-RoCE's, is found there nearly always.
func (r *rest) posted() {
	if r.posts++; r.posts%restPosts != 0 {
		return
	}
	now := time.Now()
	if now.Sub(r.last) >= restEvery {
		r.last = now
		runtime.Gosched()
	}
}
