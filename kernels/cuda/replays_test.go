package cuda_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// copies makes programs that copy block from of a to block to of b, one program a pair.
func copies(t *testing.T, a, b unsafe.Pointer, block int, pairs ...[2]int) []cuda.Program {
	t.Helper()
	ps := make([]cuda.Program, len(pairs))
	for i, pair := range pairs {
		ps[i].Reset(cuda.MoveBytes)
		require.True(t, ps[i].Lane())
		require.True(t, ps[i].Add(cuda.Instr{Code: cuda.Move, Count: uint64(block)}, []unsafe.Pointer{unsafe.Add(a, pair[0]*block)}, []unsafe.Pointer{unsafe.Add(b, pair[1]*block)}))
		ps[i].SetShape(1, 64)
	}
	return ps
}

// TestReplays launches more programs than are told apart, some far more often than others, on changing data and streams, alone and together: each
// does what a launch of its own does. So it does where there are no graphs.
func TestReplays(t *testing.T) {
	for _, graphs := range []int{5, 0} {
		replays(t, graphs)
	}
}

func replays(t *testing.T, graphs int) {
	const block, blocks = 1000, 48
	d := cudatest.Open(t)
	streams := []cuda.Stream{stream(t, d), stream(t, d), 0}
	a, b := alloc(t, d, block*blocks), alloc(t, d, block*blocks)
	r, err := d.NewReplays(graphs)
	require.NoError(t, err)
	j, err := d.NewJoin(1)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, block*blocks)
	var from []byte
	for i := range 600 {
		s := streams[rng.IntN(3)]
		if i%50 == 0 {
			from = kernelstest.Random(kernels.Uint8, block*blocks, uint64(i))
			upload(t, d, s, a.Ptr, from)
		}
		var pairs [][2]int
		k := rng.IntN(6)
		if i%4 == 0 {
			k = rng.IntN(blocks)
		}
		for n := range 1 + k%3 {
			pairs = append(pairs, [2]int{(k + n) % blocks, (k*7 + n) % blocks})
		}
		for _, p := range pairs {
			copy(want[p[1]*block:][:block], from[p[0]*block:])
		}
		ps := copies(t, a.Ptr, b.Ptr, block, pairs...)
		if other := streams[rng.IntN(2)]; i%3 == 0 {
			require.NoError(t, r.Launch(ps, s, []cuda.Stream{other}, j))
			s = other // which waits for it
		} else {
			require.NoError(t, r.Launch(ps, s, nil, nil))
		}
		if i < 60 {
			copy(want, download(t, d, s, b.Ptr, len(want))) // what nobody has written is anything
			for _, p := range pairs {
				require.True(t, bytes.Equal(from[p[0]*block:][:block], want[p[1]*block:][:block]), "launch %d", i)
			}
			continue
		}
		require.True(t, bytes.Equal(want, download(t, d, s, b.Ptr, len(want))), "launch %d", i)
	}
	require.NoError(t, j.Destroy())
	require.NoError(t, r.Close())
}

// What was launched often is captured all the same in a graph of the user's, which keeps it when the Replays is gone.
func TestReplaysInACapture(t *testing.T) {
	const block = 1000
	d := cudatest.Open(t)
	s := stream(t, d)
	a, b := alloc(t, d, block), alloc(t, d, block)
	r, err := d.NewReplays(2)
	require.NoError(t, err)
	ps := copies(t, a.Ptr, b.Ptr, block, [2]int{0, 0})
	for i := range 5 {
		data := kernelstest.Random(kernels.Uint8, block, uint64(i))
		upload(t, d, s, a.Ptr, data)
		require.NoError(t, r.Launch(ps, s, nil, nil))
		require.True(t, bytes.Equal(data, download(t, d, s, b.Ptr, block)))
	}
	g, err := d.Capture(s, func() error { return r.Launch(ps, s, nil, nil) })
	require.NoError(t, err)
	require.NoError(t, d.Fill(s, b.Ptr, 0, block))
	require.NoError(t, r.Launch(ps, s, nil, nil))
	require.NoError(t, r.Close())
	for i := range 3 {
		data := kernelstest.Random(kernels.Uint8, block, 10+uint64(i))
		upload(t, d, s, a.Ptr, data)
		require.NoError(t, g.Launch(s))
		require.True(t, bytes.Equal(data, download(t, d, s, b.Ptr, block)))
	}
	require.NoError(t, g.Destroy())
}

// A graph that was told what to launch in a capture, where it launched nothing, launches what it is told later.
func TestReplaysToldInACapture(t *testing.T) {
	const block = 1000
	d := cudatest.Open(t)
	s := stream(t, d)
	a, b := alloc(t, d, 3*block), alloc(t, d, 3*block)
	r, err := d.NewReplays(1)
	require.NoError(t, err)
	data := kernelstest.Random(kernels.Uint8, 3*block, 1)
	upload(t, d, s, a.Ptr, data)
	require.NoError(t, d.Fill(s, b.Ptr, 0, 3*block))
	first, second := copies(t, a.Ptr, b.Ptr, block, [2]int{0, 0}), copies(t, a.Ptr, b.Ptr, block, [2]int{1, 1})
	require.NoError(t, r.Launch(first, s, nil, nil))
	g, err := d.Capture(s, func() error { return r.Launch(second, s, nil, nil) })
	require.NoError(t, err)
	require.NoError(t, d.Fill(s, b.Ptr, 0, block))
	require.NoError(t, r.Launch(second, s, nil, nil))
	require.Equal(t, append(make([]byte, block), data[block:2*block]...), download(t, d, s, b.Ptr, 2*block))
	require.NoError(t, g.Destroy())
	require.NoError(t, r.Close())
}

// Whatever fails on the way: what has no error has been done, and the next launch does as if nothing had been.
func TestReplaysThatFail(t *testing.T) {
	const block = 1000
	d := cudatest.Open(t)
	s := stream(t, d)
	a, b := alloc(t, d, block), alloc(t, d, block)
	ps := copies(t, a.Ptr, b.Ptr, block, [2]int{0, 0})
	fails := func(n int, f func() error) (failed error, last bool) {
		cudatest.FailCall(t, n)
		err := f()
		return err, cudatest.FailCall(t, 0) > 0
	}
	for n := 1; ; n++ {
		var r *cuda.Replays
		err, last := fails(n, func() (err error) { r, err = d.NewReplays(2); return err })
		if last {
			require.NoError(t, err)
			require.NoError(t, r.Close())
			require.Greater(t, n, 5)
			break
		}
		require.ErrorContains(t, err, "CUDA_ERROR_UNKNOWN", "call %d", n)
	}
	quiet := 0
	for n, last := 1, false; !last; n++ {
		r, err := d.NewReplays(1)
		require.NoError(t, err)
		for i := range 3 {
			data := kernelstest.Random(kernels.Uint8, block, uint64(n*10+i))
			upload(t, d, s, a.Ptr, data)
			if i == 0 {
				if err, last = fails(n, func() error { return r.Launch(ps, s, nil, nil) }); err != nil {
					require.ErrorContains(t, err, "CUDA_ERROR_UNKNOWN")
					continue
				}
				quiet++
			} else {
				require.NoError(t, r.Launch(ps, s, nil, nil))
			}
			require.True(t, bytes.Equal(data, download(t, d, s, b.Ptr, block)), "failure %d, launch %d", n, i)
		}
		require.NoError(t, r.Close())
	}
	require.Equal(t, 2, quiet, "one that could not be told, and one without failures")
}
