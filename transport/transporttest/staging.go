package transporttest

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// testStager: messages that are made in the transport's memory piece by piece, among others that are sent as ever, and memory that was
// asked for and not used, arrive in order and whole; and where there is no room, there is room once the reader has read.
func testStager(t *testing.T, open Provider) {
	o := defaults()
	w := newWorld(t, open, 2, o)
	a, b := w.pair()
	s, ok := a.Stream(1).(transport.Stager)
	if !ok {
		t.Skipf("the streams of %s are no Stagers", w.eps[0].Name())
	}
	require.Nil(t, s.Stage(o.MaxMessage+1), "longer than a message may be")
	random := rand.New(rand.NewPCG(1, 2))
	w.send(a.Stream(1), 0, pattern(0, 100)) // connects
	w.receive(b.Stream(1), 0, 100)
	staged, full := 0, 0
	for k := uint64(1); k < 150; {
		var lengths []int
		for range 1 + random.IntN(12) { // on their way at once, perhaps more than there is room for
			n := random.IntN(o.MaxMessage + 1)
			want := pattern(k+uint64(len(lengths)), n)
			slot := s.Stage(n)
			if slot != nil && random.IntN(4) == 0 {
				slot = nil // forgotten
			}
			if slot == nil {
				ok, err := a.Stream(1).Send(7, lend(want))
				require.NoError(t, err)
				if !ok {
					full++
					break
				}
				lengths = append(lengths, n)
				continue
			}
			for at := 0; at < n; {
				part := min(n-at, 1+random.IntN(16<<10))
				s.Fill(unsafe.Add(slot, at), unsafe.Pointer(&want[at]), part)
				at += part
				s.FillsLent()
			}
			require.NoError(t, s.SendStaged(7, n))
			staged++
			lengths = append(lengths, n)
		}
		for _, n := range lengths {
			w.same(pattern(k, n), w.receive(b.Stream(1), 7, n), "message %d of %d bytes", k, n)
			k++
		}
	}
	require.NotZero(t, staged)
	require.NotZero(t, full)
	require.NoError(t, a.Close())
	require.Nil(t, s.Stage(100_000), "closed")
	require.Error(t, s.SendStaged(7, 100))
}
