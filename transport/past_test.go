package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPast: so much is remembered of either kind, and of a key more than of its communicator.
func TestPast(t *testing.T) {
	var p Past
	for n := range uint64(10) {
		p.Add(Key{Comm: n}, nil, 3)
		for range 2 {
			p.Leave(n, 4)
		}
	}
	require.Equal(t, 3+4, p.Len())
	for n := range uint64(10) {
		require.Equal(t, n >= 6, p.Left(n))
		why, is := p.Of(Key{Comm: n})
		require.Equal(t, n >= 6, is)
		if n == 6 {
			require.ErrorIs(t, why, ErrLeft, "the key is forgotten")
		} else {
			require.NoError(t, why)
		}
		if why, is = p.Of(Key{Comm: n, Channel: 1}); is {
			require.ErrorIs(t, why, ErrLeft)
		}
	}
}
