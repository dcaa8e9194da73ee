//go:build linux && cgo

package verbs

import (
	"errors"
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
