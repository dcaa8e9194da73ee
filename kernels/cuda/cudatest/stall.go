package cudatest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Stall is a kernel that waits for one on another GPU, which never comes.
type Stall struct {
	t       testing.TB
	d       *cuda.Device
	stage   kernels.Mem
	private cuda.Stream
	done    cuda.Event
}

// NewStall makes one on a device, to begin and end any number of times.
func NewStall(t testing.TB, d *cuda.Device) *Stall {
	t.Helper()
	peer, err := cuda.Open(d.Info().Ordinal)
	require.NoError(t, err)
	require.NoError(t, cuda.Connect(d, peer))
	s := &Stall{t: t, d: d}
	s.stage, err = d.Alloc(cuda.StageRows)
	require.NoError(t, err)
	s.private, err = d.NewStream()
	require.NoError(t, err)
	s.done, err = d.NewEvent(false)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.End()
		require.NoError(t, d.Synchronize())
		require.NoError(t, d.DestroyEvent(s.done))
		require.NoError(t, d.DestroyStream(s.private))
		require.NoError(t, d.Free(s.stage))
		require.NoError(t, peer.Close())
	})
	return s
}

func (s *Stall) abort() unsafe.Pointer { return unsafe.Add(s.stage.Ptr, cuda.StageRows-64) }

// Begin has a stream stand still.
func (s *Stall) Begin(on cuda.Stream) {
	s.t.Helper()
	require.NoError(s.t, s.d.Synchronize())
	require.NoError(s.t, s.d.Fill(s.private, s.stage.Ptr, 0, cuda.StageRows))
	require.NoError(s.t, s.d.Wait(s.private))
	var x cuda.LL128
	x.Reset(0, []unsafe.Pointer{s.stage.Ptr, s.stage.Ptr}, 0, s.abort(), 1)
	x.Meet(1, false, true)
	_, _, err := s.d.LaunchWire(&x, on, nil, nil, cuda.Waits{}, s.done)
	require.NoError(s.t, err)
}

// End has it go on.
func (s *Stall) End() {
	s.t.Helper()
	require.NoError(s.t, s.d.Store(s.private, s.abort(), 1))
}
