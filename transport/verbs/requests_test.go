//go:build linux && cgo

package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequestsPerMiB: behind others a message is one request where there is memory for that, and the receiver answers with at most one
// credit for each 256 KiB.
func TestRequestsPerMiB(t *testing.T) {
	needDevices(t, 1)
	for _, c := range []struct {
		slots, bytes int
		most         float64
	}{{128, 64 << 10, 16}, {128, 1 << 20, 2}, {8, 64 << 10, 16}, {8, 1 << 20, 10}} {
		d := newDuo(t, testOptions(), Config{Addr: netip.MustParseAddr("127.0.0.1"), Slots: c.slots})
		d.stream(64<<10, 1)
		var before [2]uint32
		for i := range before {
			before[i] = d.conns[i].(*conn).link.queues[0].posted
		}
		const total = 24 << 20
		d.stream(c.bytes, total/c.bytes)
		var posted [2]float64
		for i := range posted {
			posted[i] = float64(d.conns[i].(*conn).link.queues[0].posted-before[i]) / (total >> 20)
		}
		t.Logf("messages of %d bytes, %d slots: %.2f requests a MiB from the sender, %.2f credits from the receiver", c.bytes, c.slots, posted[0], posted[1])
		// Cut are messages for which nothing is under way, and those that come to the end of the slots: where one goroutine is both ends,
		// now and then.
		require.LessOrEqual(t, posted[0], c.most)
		require.LessOrEqual(t, posted[1], 4.0)
	}
}

// stream sends so many messages of n bytes from rank 0 to rank 1, as many at once as there is room for.
func (d *duo) stream(n, times int) {
	b, sent, got := message(n), 0, 0
	d.until("messages", func() bool {
		for sent < times {
			ok, err := d.conns[0].Stream(0).Send(1, bufOf(b))
			require.NoError(d, err)
			if !ok {
				break
			}
			sent++
		}
		for got < times {
			p, err := d.conns[1].Stream(0).View(1, n)
			require.NoError(d, err)
			if p == nil {
				return false
			}
			require.NoError(d, d.conns[1].Stream(0).Release())
			got++
		}
		return true
	})
}
