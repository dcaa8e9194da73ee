package cuda

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Kernels that dawdle do so at each of their looks at what others store, each store for them and each barrier, and are otherwise the same.
func TestStagger(t *testing.T) {
	for _, packed := range [][]byte{everywhere, float8, wire8, wire9} {
		text, err := unpack(packed)
		require.NoError(t, err)
		slow := stagger(text)
		places := 0
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			if strings.Contains(line, ".sys.") || strings.Contains(line, "\tbar.") || strings.Contains(line, "bar.red") || strings.Contains(line, "%ctaid.y") {
				places++
				require.Equal(t, "\t// begin inline asm", lines[i-1], "%s: the place is not found", line)
			}
			if strings.Contains(line, "griddepcontrol") {
				places++
			}
		}
		require.Positive(t, places)
		require.Equal(t, places, bytes.Count(slow, []byte(dawdle)))
		require.True(t, bytes.Equal(text, bytes.ReplaceAll(slow, []byte(dawdle), nil)), "nothing else has changed")
	}
}
