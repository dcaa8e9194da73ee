//go:build amd64 || arm64

package spin

import "testing"

// Own changes no memory, and needs none.
func TestOwn(t *testing.T) {
	var lines [1 << 10]uint64
	for i := range lines {
		lines[i] = uint64(i)
	}
	for _, n := range []int{1, 2, 66} {
		Own(&lines[8], n)
		Own(nil, n)
	}
	for i := range lines {
		if lines[i] != uint64(i) {
			t.Fatalf("word %d is %d", i, lines[i])
		}
	}
}
