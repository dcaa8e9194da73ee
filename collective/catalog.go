package collective

import (
	"fmt"
	"strings"
)

// Algorithm is a way to do a kind of collective: a name and a pure function from shape and
// rank to schedule.
type Algorithm struct {
	Name  string
	Kind  Kind
	Build func(s Shape, rank int) Schedule // for s.Ranks ≥ 2
}

// Catalog returns the algorithms that gccl has for shapes of this kind. The order is
// the same everywhere and carries no preference.
func Catalog(k Kind) []Algorithm {
	var out []Algorithm
	for _, a := range catalog {
		if a.Kind == k {
			out = append(out, a)
		}
	}
	return out
}

var catalog = []Algorithm{
	{"ring", AllReduce, ringAllReduce},
	{"oneshot", AllReduce, directAllReduce},
}

// Build returns the rank's schedule by the algorithm of that name. One rank alone copies,
// whatever the name says. An unknown name is an error that lists the known ones.
func Build(s Shape, rank int, name string) (Schedule, error) {
	if err := s.Check(); err != nil {
		return Schedule{}, err
	}
	if rank < 0 || rank >= s.Ranks {
		return Schedule{}, fmt.Errorf("collective: rank %d of %d", rank, s.Ranks)
	}
	var names []string
	for _, a := range Catalog(s.Kind) {
		if a.Name == name {
			if s.Ranks == 1 {
				return alone(s), nil
			}
			return a.Build(s, rank), nil
		}
		names = append(names, a.Name)
	}
	return Schedule{}, fmt.Errorf("collective: no algorithm %q for %v; have %s", name, s.Kind, strings.Join(names, ", "))
}

// alone is every kind for one rank: a copy.
func alone(s Shape) Schedule {
	b := newBuilder(s, 0, 1)
	b.step(copySlot(b.out(0), b.in(0)))
	return b.schedule()
}
