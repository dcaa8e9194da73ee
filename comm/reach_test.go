package comm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReach(t *testing.T) {
	for _, r := range []reach{{1<<60 | 9, []byte{1, 0}, []byte("an address")}, {3, []byte{0, 1}, []byte{}}} {
		got, err := parseReach(r.bytes(), 2)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	_, err := parseReach(make([]byte, 10), 3)
	require.ErrorContains(t, err, "10 bytes, want at least 11")
}
