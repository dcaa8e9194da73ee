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
}

// FuzzReach: what a rank tells of whom it reaches is an error or says so of each rank.
func FuzzReach(f *testing.F) {
	f.Add(make([]byte, 10), 3)
	f.Add(reach{7, []byte{1, 0}, []byte("an address")}.bytes(), 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		r, err := parseReach(b, size)
		if len(b) < size+8 {
			require.ErrorContains(t, err, "want at least")
			return
		}
		require.NoError(t, err)
		require.Len(t, r.shm, size)
		require.Equal(t, b, r.bytes())
	})
}
