//go:build linux && cgo

package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequestsPerMiB: a message of up to a slot is one request, a longer one as many as it fills slots, and the receiver answers with at
// most one credit for each 256 KiB.
func TestRequestsPerMiB(t *testing.T) {
	needDevices(t, 1)
	d := newDuo(t, testOptions(), Config{Addr: netip.MustParseAddr("127.0.0.1")})
	d.pass(0, message(100))
	for _, n := range []int{64 << 10, 1 << 20} {
		var before [2]uint32
		for i := range before {
			before[i] = d.conns[i].(*conn).link.queues[0].posted
		}
		const total = 8 << 20
		for range total / n {
			d.pass(0, message(n))
		}
		var posted [2]float64
		for i := range posted {
			posted[i] = float64(d.conns[i].(*conn).link.queues[0].posted-before[i]) / (total >> 20)
		}
		t.Logf("messages of %d bytes: %v requests a MiB from the sender, %v credits from the receiver", n, posted[0], posted[1])
		require.EqualValues(t, 16, posted[0])
		require.LessOrEqual(t, posted[1], 4.0)
	}
}
