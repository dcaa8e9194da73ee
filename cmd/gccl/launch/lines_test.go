package launch

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinesStayWhole(t *testing.T) {
	var out bytes.Buffer
	lines := NewLines(&out)
	const writers, each = 8, 200
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			to := lines.Writer(fmt.Sprintf("[%d] ", w))
			for i := range each {
				// In pieces that end anywhere.
				text := fmt.Sprintf("line %d of writer %d\n", i, w)
				cut := i % len(text)
				fmt.Fprint(to, text[:cut])
				fmt.Fprint(to, text[cut:])
			}
			to.Close()
		})
	}
	wait.Wait()
	next := make([]int, writers)
	for line := range strings.Lines(out.String()) {
		var w, i, same int
		n, err := fmt.Sscanf(line, "[%d] line %d of writer %d\n", &w, &i, &same)
		require.NoError(t, err, line)
		require.Equal(t, 3, n)
		require.Equal(t, w, same)
		require.Equal(t, next[w], i, "in order")
		next[w]++
	}
	for _, n := range next {
		require.Equal(t, each, n)
	}
}

func TestLinesOfAnyLength(t *testing.T) {
	for _, n := range []int{0, 1, maxLine - 1, maxLine, maxLine + 1, 3*maxLine + 5} {
		for _, end := range []string{"", "\n"} {
			var out bytes.Buffer
			w := NewLines(&out).Writer("> ")
			text := strings.Repeat("x", n) + end
			written, err := w.Write([]byte(text))
			require.NoError(t, err)
			require.Equal(t, len(text), written)
			require.NoError(t, w.Close())
			require.NoError(t, w.Close())
			kept := 0
			for line := range strings.Lines(out.String()) {
				require.True(t, strings.HasPrefix(line, "> ") && strings.HasSuffix(line, "\n"), "%.20q", line)
				require.LessOrEqual(t, len(line), maxLine+3)
				kept += len(line) - 3
			}
			require.Equal(t, n, kept, "%d bytes, end %q", n, end)
		}
	}
}
