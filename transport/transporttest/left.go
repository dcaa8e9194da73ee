package transporttest

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// descriptors is the number of open descriptors of this process, or -1 where
// nothing tells.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

// mappings is the number of mapped files of this process's address space that
// hold the name part, or -1 where nothing tells.
func mappings(part string) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return -1
	}
	return strings.Count(string(b), part)
}

// testNothingLeft opens, uses and closes endpoints in several states and counts
// goroutines, descriptors and mapped segments.
func testNothingLeft(t *testing.T, open Provider) {
	use := func() {
		w := newWorld(t, open, 3, defaults())
		a, b := w.pair()
		w.send(a.Stream(0), 1, pattern(0, 100<<10))
		w.receive(b.Stream(0), 1, 100<<10)
		w.send(b.Stream(0), 1, pattern(0, 100<<10)) // never read
		half := w.conn(2, 0)                        // rank 0 does not know of it
		if _, err := half.Stream(0).Send(1, lend(pattern(0, 8))); err != nil {
			t.Error(err)
		}
		w.close()
	}
	use() // what a process keeps for good, like the runtime's poller, is there now
	goroutines, fds, maps := runtime.NumGoroutine(), descriptors(), mappings("gccl")
	for range 5 {
		use()
	}
	var now int
	for deadline := time.Now().Add(patience / 6); ; time.Sleep(time.Millisecond) {
		// Goroutines that were waited for may still be on their last instructions.
		if now = runtime.NumGoroutine(); now <= goroutines || time.Now().After(deadline) {
			break
		}
	}
	if now > goroutines {
		stacks := make([]byte, 1<<20)
		t.Fatalf("%d goroutines before, %d after:\n%s", goroutines, now, stacks[:runtime.Stack(stacks, true)])
	}
	require.LessOrEqual(t, descriptors(), fds, "descriptors are left")
	require.LessOrEqual(t, mappings("gccl"), maps, "mappings are left")
}
