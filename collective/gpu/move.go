package gpu

import (
	"fmt"
	"strings"

	"github.com/gccl-project/gccl/collective"
)

// A Move is what one lane of a launch does with one chunk: the fold of the sources, in their order, goes to every destination. One
// source is copied, as it is unless it is scaled.
type Move struct {
	Dsts, Srcs []Place
	Scaled     uint64 // sources multiplied by the call's factor, a bit each
	// Rank is the rank that does it where each rank does its own part: the source's if there is one, else of the first destination.
	Rank int32
	// Exchange: not a fold: destination k gets source k, all of which are read before any is written.
	Exchange bool
}

// A Place is a piece of a block of a rank's memory. In a call in place, input that lies in the output has the output's name, and
// the output of a reduce-scatter that lies in the input the input's.
type Place struct {
	Rank, Block, Piece int32
	Space              collective.Space // In, Out or Temp
}

func (p Place) String() string { return fmt.Sprintf("%d:%v[%d.%d]", p.Rank, p.Space, p.Block, p.Piece) }

func (m Move) String() string {
	words := func(places []Place) string {
		s := make([]string, len(places))
		for i, p := range places {
			s[i] = p.String()
		}
		return strings.Join(s, " ")
	}
	name := "move"
	switch {
	case m.Exchange:
		name = "exchange"
	case m.Scaled != 0:
		name = fmt.Sprintf("move scaled %#x", m.Scaled)
	}
	return name + " " + words(m.Dsts) + " = " + words(m.Srcs)
}

// Moves is what all ranks together do: phases, in each of which moves are independent. It is immutable.
type Moves struct {
	Shape  collective.Shape
	Pieces int
	Phases [][]Move
}

// MaxRanks is how many ranks Lower takes: a bit each in Move.Scaled.
const MaxRanks = 64
