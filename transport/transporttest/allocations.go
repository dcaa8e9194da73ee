package transporttest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// testNoAllocations passes messages in the steady state without one allocation.
func testNoAllocations(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	for _, n := range []int{0, 8, 4096, 200 << 10} {
		out, in := pattern(1, n), make([]byte, n)
		bufOut, bufIn := lend(out), lend(in)
		from, to := a.Stream(0), b.Stream(0)
		failed := false
		const tries = 10_000_000
		pass := func() {
			var sent, got bool
			var view unsafe.Pointer
			for i := 0; i < tries && !failed && !sent; i++ {
				ok, err := from.Send(1, bufOut)
				sent, failed = ok, err != nil
				w.eps[1].Progress()
			}
			for i := 0; i < tries && !failed && view == nil; i++ {
				p, err := to.View(1, n)
				view, failed = p, err != nil
				w.eps[0].Progress()
			}
			to.Release()
			sent = false
			for i := 0; i < tries && !failed && !sent; i++ {
				ok, err := from.Send(2, bufOut)
				sent, failed = ok, err != nil
				w.eps[1].Progress()
			}
			for i := 0; i < tries && !failed && !got; i++ {
				ok, err := to.Recv(2, bufIn)
				got, failed = ok, err != nil
				w.eps[0].Progress()
			}
			failed = failed || !sent || !got || view == nil
		}
		for range 100 { // warm-up: buffers grow to what is needed
			pass()
		}
		require.False(t, failed, "%d bytes: a message did not pass", n)
		allocs := testing.AllocsPerRun(200, pass)
		require.False(t, failed, "%d bytes: a message did not pass", n)
		require.Zero(t, allocs, "%d bytes", n)
	}
}
