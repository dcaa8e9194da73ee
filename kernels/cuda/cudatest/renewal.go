package cudatest

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Renewal is a stream that stands still, and one that has taken its handle.
type Renewal struct {
	t    testing.TB
	d    *cuda.Device
	word cuda.Pinned
}

// NewRenewal has a stream stand still until End.
func NewRenewal(t testing.TB, d *cuda.Device, s cuda.Stream) *Renewal {
	t.Helper()
	word, err := d.AllocPinned(4096)
	require.NoError(t, err)
	x := &Renewal{t, d, word}
	x.at().Store(0)
	require.NoError(t, d.Until(s, word.Device, 1))
	t.Cleanup(func() {
		x.End()
		require.NoError(t, d.Synchronize())
		require.NoError(t, d.FreePinned(word))
	})
	return x
}

func (x *Renewal) at() *atomic.Uint32 { return (*atomic.Uint32)(x.word.Host) }

// Renew destroys a stream, with what is queued there, and makes another, which the driver gives the same handle, if it can.
func (x *Renewal) Renew(s cuda.Stream) cuda.Stream {
	x.t.Helper()
	before, _, err := x.d.Identify(s)
	require.NoError(x.t, err)
	require.NoError(x.t, x.d.DestroyStream(s))
	renewed, err := x.d.NewStream()
	require.NoError(x.t, err)
	if renewed != s {
		x.t.Log("the driver does not give this handle again")
	}
	now, _, err := x.d.Identify(renewed)
	require.NoError(x.t, err)
	require.NotEqual(x.t, before, now)
	return renewed
}

// End has the stream that stood still go on.
func (x *Renewal) End() { x.at().Store(1) }
