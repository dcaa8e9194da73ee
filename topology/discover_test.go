package topology

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

var noDriver = Unknown[[]GPUFacts]("no GPU driver was asked")

func discover(t testing.TB, root fs.FS) (*Host, *Graph) {
	t.Helper()
	h := Discover(root, noDriver)
	g := h.Graph()
	require.NoError(t, g.Check())
	return h, g
}
