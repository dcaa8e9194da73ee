//go:build linux && cgo

package ibv

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLibraryOrReason: where the library is missing the error says so; where it is there, devices are listed, maybe none.
func TestLibraryOrReason(t *testing.T) {
	names, err := Devices()
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Regexp(t, "libibverbs.so.1|ib_uverbs", err.Error())
	}
	t.Logf("devices %q, %v", names, err)
	_, err = Open("no such device")
	require.Error(t, err)
}
