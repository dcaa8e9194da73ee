package settings

import (
	"fmt"
	"strings"
)

// A word and its distance from another: how many letters must be added, dropped, changed or swapped with the next.
type near struct {
	word string
	far  int
}

// nearest returns the word that is most like the given one; of equals the first. A word with dots is also known by its
// last part.
func nearest(word string, words []string) near {
	best := near{far: 1 << 30}
	for _, w := range words {
		d := distance(word, w)
		if at := strings.LastIndexByte(w, '.'); at >= 0 {
			d = min(d, 1+distance(word, w[at+1:]))
		}
		if d < best.far {
			best = near{w, d}
		}
	}
	return best
}

// suggest ends an error about a word that is none of the words.
func suggest(word string, words []string) string {
	if n := nearest(word, words); n.far <= max(min(2, len(word)/2), len(word)/3) {
		return fmt.Sprintf("did you mean %s?", n.word)
	}
	return "want one of " + strings.Join(words, ", ")
}

// distance looks at no more than the first 64 bytes, which is longer than any name.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	var rows [3][65]int // of the prefix of a, the one shorter by one, by two
	row, above, over := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		over, above, row = above, row, over
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(above[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], over[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
