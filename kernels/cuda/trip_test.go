package cuda_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

// TestTrips: rows of all lengths and alignments go to the host and come back as it wrote them, launched and in replays, numbered from 1 on; and
// what waits is let go.
func TestTrips(t *testing.T) {
	d := cudatest.Open(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, d.DestroyStream(s)) }()
	const room = 1 << 20
	words, err := d.AllocPinned(4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.FreePinned(words)) }()
	clear(unsafe.Slice((*byte)(words.Host), cuda.TripWordsBytes))
	host, err := d.AllocPinned(2 * room)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.FreePinned(host)) }()
	count, err := d.Alloc(8)
	require.NoError(t, err)
	require.NoError(t, d.Fill(s, count.Ptr, 0, 8))
	m, err := d.Alloc(4 * room)
	require.NoError(t, err)
	at := func(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(words.Host, i)) }
	number := uint32(0)
	serve := func(id uint32, work func()) {
		number++
		for at(cuda.TripTold).Load() != number {
		}
		require.Equal(t, id, at(cuda.TripID).Load())
		work()
		at(cuda.TripDone).Store(number)
	}
	here := make([]byte, 4*room)
	for i := range here {
		here[i] = byte(i * 7 / 3)
	}
	seen := unsafe.Slice((*byte)(host.Host), 2*room)
	for id, c := range []struct{ bytes, rows, pitch, src, dst int }{
		{1, 1, 1, 0, 0}, {16, 1, 16, 0, 0}, {1000, 3, 1000, 3, 5}, {4096, 7, 65536, 16, 32}, {8, 100, 24, 8, 0}, {2, 5, 6, 2, 4}, {100001, 2, 200001, 1, 0}, {262144, 4, 262144, 0, 0}, {12, 9, 100, 4, 8},
	} {
		require.NoError(t, d.CopyAny(s, m.Ptr, unsafe.Pointer(&here[0]), int64(len(here))))
		var x cuda.Trip
		x.Reset(words.Device, count.Ptr, uint32(id))
		require.True(t, x.Add(false, unsafe.Add(m.Ptr, c.src), host.Device, int64(c.pitch), int64(c.bytes), c.rows))
		require.True(t, x.Add(true, unsafe.Add(m.Ptr, 2*room+c.dst), unsafe.Add(host.Device, room), int64(c.pitch), int64(c.bytes), c.rows))
		total := c.bytes * c.rows
		work := func() {
			for i := range total {
				if want := here[c.src+i/c.bytes*c.pitch+i%c.bytes]; seen[i] != want {
					t.Fatalf("%+v: byte %d on the host is %d, want %d", c, i, seen[i], want)
				}
				seen[room+i] = ^seen[i]
			}
		}
		check := func() {
			require.NoError(t, d.Wait(s))
			got := make([]byte, 2*room)
			require.NoError(t, d.CopyAny(s, unsafe.Pointer(&got[0]), unsafe.Add(m.Ptr, 2*room), 2*room))
			require.NoError(t, d.Wait(s))
			want := append([]byte(nil), here[2*room:]...)
			for i := range total {
				want[c.dst+i/c.bytes*c.pitch+i%c.bytes] = ^here[c.src+i/c.bytes*c.pitch+i%c.bytes]
			}
			require.True(t, string(want) == string(got), "%+v: what came back", c)
		}
		require.NoError(t, d.LaunchTrip(&x, s))
		serve(uint32(id), work)
		check()
		g, err := d.Capture(s, func() error { return d.LaunchTrip(&x, s) })
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, g.Launch(s))
			serve(uint32(id), work)
			check()
		}
		require.NoError(t, g.Destroy())
	}
	// Of several streams at a time, each brings its own.
	other, err := d.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, d.DestroyStream(other)) }()
	both := []cuda.Stream{s, other}
	for i := range both {
		require.NoError(t, d.Fill(s, unsafe.Add(m.Ptr, 4*i), byte(i+1), 4))
	}
	require.NoError(t, d.Wait(s))
	for round := range 20 {
		for i, on := range both {
			var x cuda.Trip
			x.Reset(words.Device, count.Ptr, uint32(1000+i))
			require.True(t, x.Add(false, unsafe.Add(m.Ptr, 4*i), host.Device, 4, 4, 1))
			require.True(t, x.Add(true, unsafe.Add(m.Ptr, 4*(2+i)), host.Device, 4, 4, 1))
			require.NoError(t, d.LaunchTrip(&x, on))
		}
		for range both {
			number++
			for at(cuda.TripTold).Load() != number {
			}
			require.EqualValues(t, at(cuda.TripID).Load()-999, seen[0])
			seen[0] += byte(round)
			at(cuda.TripDone).Store(number)
		}
		got := make([]byte, 8)
		require.NoError(t, errors.Join(d.Wait(s), d.Wait(other), d.CopyAny(s, unsafe.Pointer(&got[0]), unsafe.Add(m.Ptr, 8), 8), d.Wait(s)))
		require.Equal(t, []byte{byte(1 + round), 1, 1, 1, byte(2 + round), 2, 2, 2}, got)
	}
	var x cuda.Trip
	x.Reset(words.Device, count.Ptr, 99)
	for range cuda.MaxParts {
		require.True(t, x.Add(false, m.Ptr, host.Device, 1, 1, 1))
	}
	require.False(t, x.Add(false, m.Ptr, host.Device, 1, 1, 1))
	require.NoError(t, d.LaunchTrip(&x, s))
	require.NoError(t, d.LaunchTrip(&x, s))
	at(cuda.TripStop).Store(1)
	require.NoError(t, d.Wait(s))
}
