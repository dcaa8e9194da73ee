//go:build linux && cgo

package verbs

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeviceLimits(t *testing.T) {
	of, why, err := DeviceLimits()
	if errors.Is(err, errors.ErrUnsupported) {
		require.ErrorContains(t, err, "RDMA") // which is all that a host without it can say
	}
	needDevices(t, 1)
	require.NoError(t, err)
	require.Empty(t, why)
	require.NotEmpty(t, of)
	for name, l := range of {
		require.Greater(t, l.MaxQP, 2, name)
		require.Greater(t, l.MaxCQE, 1024, name)
		require.Greater(t, l.MaxMR, 2, name)
	}
}

// TestMayPin: who may lock memory beyond its limit may pin it, whatever the limit is.
func TestMayPin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process that has less rights")
	}
	limited := []string{"bash", "-c", `ulimit -l 64; exec "$0" "$@"`}
	poor := []string{"setpriv", "--bounding-set=-ipc_lock"}
	out, err := child(t, "pins", limited...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "<nil> | <nil>", strings.TrimSpace(string(out)))
	out, err = child(t, "pins", append(poor, limited...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Regexp(t, `^<nil> \| .*pin 65537 bytes: memlock is 64 KiB.*ulimit -l unlimited`, string(out))
}

// TestPinned: what Config says that a connection holds.
func TestPinned(t *testing.T) {
	require.EqualValues(t, 2*4*8*(64<<10+64), Config{}.Pinned(4))
	require.EqualValues(t, 2*2*16*(1<<10+64), Config{Slot: 1 << 10, Slots: 16}.Pinned(2))
}
