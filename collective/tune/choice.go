package tune

import (
	"fmt"
	"strings"
	"time"

	"github.com/gccl-project/gccl/collective"
)

// Choice is how to do a call, and why.
type Choice struct {
	Algorithm string        // of the shape's kind in collective.Catalog
	Round     int           // elements of a block in a round, ≥ 1: collective.Layout.Round
	Lanes     int           // rounds to have in flight, 1…Model.Lanes
	Cost      time.Duration // estimated

	Considered []Candidate // those that suit the shape, in the catalog's order, the chosen one among them
}

// Candidate is an algorithm that was considered.
type Candidate struct {
	Algorithm string
	Cost      time.Duration // estimated, with the rounds that suit it best
	WhyNot    string        // empty: it was chosen
}

// String tells in one line what was chosen, and why not the others.
func (c Choice) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, rounds of %d elements, %d lanes: %v", c.Algorithm, c.Round, c.Lanes, c.Cost)
	for _, k := range c.Considered {
		if k.WhyNot != "" {
			fmt.Fprintf(&b, "; not %s: %s", k.Algorithm, k.WhyNot)
		}
	}
	return b.String()
}

// manyRanks is from when on a rank does not, unless told to, send long messages to
// everybody at once: it would have a connection and buffers in use with each.
const manyRanks = 64

// Choose returns the way with the least estimated time for count elements of elem bytes
// in each block (none in a Barrier). With equal Models on all ranks it is the same on
// all. An error names what makes no sense: a field of the Model or the Shape, a count too large to
// address, or an element longer than a message may be.
func Choose(m Model, s collective.Shape, count, elem int) (Choice, error) {
	return chooseBy(m, s, count, elem, newProfile)
}

// profiler tells what an algorithm costs in a shape.
type profiler func(Model, collective.Shape, collective.Algorithm) profile

func chooseBy(m Model, s collective.Shape, count, elem int, cost profiler) (Choice, error) {
	if err := check(m, s, count, elem); err != nil {
		return Choice{}, err
	}
	var best *way
	var ways []way
	c := Choice{}
	for _, a := range collective.Catalog(s.Kind) {
		if a.Suits(s) {
			ways = append(ways, find(m, s, count, elem, a, cost(m, s, a)))
		}
	}
	for i := range ways {
		w := &ways[i]
		k := Candidate{Algorithm: w.Algorithm, Cost: w.Cost}
		if s.Ranks > manyRanks && w.fan > manyRanks && count*elem > m.Piece {
			k.WhyNot = fmt.Sprintf("%d messages at once are too many for blocks of more than %d bytes", w.fan, m.Piece)
		} else if best == nil || w.beats(*best) {
			best = w
		}
		c.Considered = append(c.Considered, k)
	}
	if best == nil {
		return Choice{}, fmt.Errorf("tune: no algorithm for %v of %d bytes with %d ranks: %v", s.Kind, count*elem, s.Ranks, c.Considered)
	}
	for i := range ways {
		if k := &c.Considered[i]; k.WhyNot == "" && &ways[i] != best {
			k.WhyNot = ways[i].whyNot(*best)
		}
	}
	c.Algorithm, c.Round, c.Lanes, c.Cost = best.Algorithm, best.Round, best.Lanes, best.Cost
	return c, nil
}

// With is Choose for an algorithm that is given, even one that Choose would leave out. A
// name that is not in the shape's catalog is an error that lists those that are.
func With(m Model, s collective.Shape, count, elem int, algorithm string) (Choice, error) {
	return withBy(m, s, count, elem, algorithm, newProfile)
}

func withBy(m Model, s collective.Shape, count, elem int, algorithm string, cost profiler) (Choice, error) {
	if err := check(m, s, count, elem); err != nil {
		return Choice{}, err
	}
	var names []string
	for _, a := range collective.Catalog(s.Kind) {
		if a.Name == algorithm {
			c := find(m, s, count, elem, a, cost(m, s, a)).Choice
			c.Considered = []Candidate{{Algorithm: c.Algorithm, Cost: c.Cost}}
			return c, nil
		}
		names = append(names, a.Name)
	}
	return Choice{}, fmt.Errorf("tune: no algorithm %q for %v; have %s", algorithm, s.Kind, strings.Join(names, ", "))
}

func check(m Model, s collective.Shape, count, elem int) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return err
	}
	if err := (collective.Layout{Count: count, Elem: elem, Round: 1, Pieces: 1}).Check(max(s.Kind.Blocks(s.Ranks))); err != nil {
		return err
	}
	if elem > m.longest() {
		return fmt.Errorf("tune: an element has %d bytes, want at most %d, the longest message of the model", elem, m.longest())
	}
	return nil
}
