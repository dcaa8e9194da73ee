package spin

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestWaitNot(t *testing.T) {
	word := uint64(7)
	if WaitNot(&word, 7, 100) {
		t.Error("7 differs from 7")
	}
	if !WaitNot(&word, 8, 1) {
		t.Error("7 does not differ from 8")
	}
	for _, polls := range []int32{0, 1, 64} {
		WaitNot(&word, 7, polls) // ends
		Pause(polls)
	}
}

// A store by another goroutine ends the wait, and a collection can stop a loop of waits.
func TestWaitNotSeesStore(t *testing.T) {
	var word uint64
	time.AfterFunc(20*time.Millisecond, func() {
		runtime.GC()
		atomic.StoreUint64(&word, 1)
	})
	for !WaitNot(&word, 0, 64) {
		Preemptible()
		runtime.Gosched()
	}
}
