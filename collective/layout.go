package collective

import (
	"fmt"
	"math"
)

// Align is what pieces are cut on, in bytes: a cache line.
const Align = 64

const maxElem = 1 << 16

// Layout is the only place that knows offsets: how a message of Count elements a block
// is run in rounds, each on the same range of every block, and how a round's range is
// cut in pieces.
type Layout struct {
	Count  int // elements in a block
	Elem   int // bytes of an element
	Round  int // elements of a block in a round, ≥ 1
	Pieces int // pieces that a round's range is cut in
}

// maxBytes bounds the bytes of all blocks together, 2^62 where an int has 64 bits, so that
// no offset overflows.
const maxBytes = math.MaxInt/2 + 1

// Check returns an error that names the field that makes no sense, or says that so many
// blocks are too large to address. After it no method overflows.
func (l Layout) Check(blocks int) error {
	switch {
	case l.Count < 0:
		return fmt.Errorf("collective: layout of %d elements, want at least 0", l.Count)
	case l.Elem < 1 || l.Elem > maxElem:
		return fmt.Errorf("collective: layout of elements of %d bytes, want 1…%d", l.Elem, maxElem)
	case l.Round < 1:
		return fmt.Errorf("collective: layout with rounds of %d elements, want at least 1", l.Round)
	case l.Pieces < 1 || l.Pieces > maxPieces:
		return fmt.Errorf("collective: layout with %d pieces, want 1…%d", l.Pieces, maxPieces)
	case blocks > 0 && l.Count > maxBytes/l.Elem/blocks:
		return fmt.Errorf("collective: %d blocks of %d elements of %d bytes are more than %d bytes", blocks, l.Count, l.Elem, maxBytes)
	}
	return nil
}

// Rounds is how many rounds the message takes: at least one, also for nothing.
func (l Layout) Rounds() int {
	if l.Count <= l.Round {
		return 1
	}
	return (l.Count + l.Round - 1) / l.Round
}

// Range returns the elements [at, at+n) of a block that round j covers, 0 ≤ j < Rounds.
func (l Layout) Range(j int) (at, n int) {
	at = j * l.Round
	return at, min(l.Round, l.Count-at)
}

// Piece returns the elements [at, at+n) of a block that piece p of round j covers. Pieces
// begin on multiples of Align bytes from the round's start; the last ones may be empty. A
// block is aligned throughout if Round is a multiple too.
func (l Layout) Piece(j, p int) (at, n int) {
	at, n = l.Range(j)
	size := l.PieceMax(n)
	from := min(p*size, n)
	return at + from, min(size, n-from)
}

// PieceMax returns the elements of the longest piece of a range of n elements.
func (l Layout) PieceMax(n int) int {
	size := (n + l.Pieces - 1) / l.Pieces
	if l.Pieces > 1 {
		a := grain(l.Elem)
		size = (size + a - 1) / a * a
	}
	return min(size, n)
}

// grain is the least number of elements that fill a multiple of Align bytes.
func grain(elem int) int {
	a, b := Align, elem
	for b != 0 {
		a, b = b, a%b
	}
	return Align / a
}
