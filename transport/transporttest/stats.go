package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func testStats(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	before := w.eps[0].Stats()
	require.Zero(t, before.MessagesSent)
	require.Zero(t, before.BytesReceived)
	require.Zero(t, before.Conns)
	a, b := w.pair()
	var bytes uint64
	for k, n := range []int{0, 8, 5000, 100 << 10} {
		w.send(a.Stream(k), 1, pattern(0, n))
		w.receive(b.Stream(k), 1, n)
		w.sent(a.Stream(k), 1)
		bytes += uint64(n)
	}
	from, to := w.eps[0].Stats(), w.eps[1].Stats()
	require.EqualValues(t, 4, from.MessagesSent)
	require.EqualValues(t, 4, to.MessagesReceived)
	require.Equal(t, bytes, from.BytesSent)
	require.Equal(t, bytes, to.BytesReceived)
	require.Zero(t, from.MessagesReceived)
	require.Equal(t, 1, from.Conns)
	require.Equal(t, 1, to.Conns)
	require.GreaterOrEqual(t, from.Memory, int64(0))
	require.Zero(t, from.Allocated)
	require.NoError(t, a.Close())
	w.drive("the connection to be over", func() bool {
		ok, err := b.Stream(0).Recv(1, lend(make([]byte, 1)))
		return !ok && err != nil
	})
	require.NoError(t, b.Close())
	w.drive("no connection to be left", func() bool { return w.eps[0].Stats().Conns == 0 && w.eps[1].Stats().Conns == 0 })
}
