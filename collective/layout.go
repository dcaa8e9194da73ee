package collective

import "fmt"

// Align is what pieces are cut on, in bytes: a cache line.
const Align = 64

// Layout is the only place that knows offsets: how a message of Count elements a block
// is run in rounds, each on the same range of every block, and how a round's range is
// cut in pieces.
type Layout struct {
	Count  int // elements in a block
	Elem   int // bytes of an element
	Round  int // elements of a block in a round, ≥ 1
	Pieces int // pieces that a round's range is cut in
}

// MaxCount bounds a block so that no offset overflows: 2^62 bytes in all blocks.
const maxBytes = 1 << 62

// Check returns an error when the message is too large to address.
func (l Layout) Check(blocks int) error {
	if l.Count < 0 || l.Elem < 1 || l.Round < 1 || l.Pieces < 1 {
		return fmt.Errorf("collective: layout %+v", l)
	}
	if blocks > 0 && l.Count > maxBytes/l.Elem/blocks {
		return fmt.Errorf("collective: %d blocks of %d elements of %d bytes are more than 2^62 bytes", blocks, l.Count, l.Elem)
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

// Range returns the elements [at, at+n) of a block that round j covers.
func (l Layout) Range(j int) (at, n int) {
	at = j * l.Round
	return at, min(l.Round, l.Count-at)
}

// Piece returns the elements [at, at+n) of a block that piece p of round j covers. Pieces
// begin on multiples of Align bytes from the round's start; the last ones may be empty.
func (l Layout) Piece(j, p int) (at, n int) {
	at, n = l.Range(j)
	size := l.PieceMax(n)
	from := min(p*size, n)
	return at + from, min(size, n-from)
}

// PieceMax returns the elements of the longest piece of a range of n elements.
func (l Layout) PieceMax(n int) int {
	size := (n + l.Pieces - 1) / l.Pieces
	if a := Align / l.Elem; l.Pieces > 1 && a > 1 {
		size = (size + a - 1) / a * a
	}
	return min(size, n)
}
