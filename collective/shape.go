package collective

import "fmt"

// Kind says which collective.
type Kind uint8

// The kinds. Blocks says what their buffers hold.
const (
	AllReduce Kind = iota
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	AllToAll
	Barrier
	numKinds
)

var kindNames = [numKinds]string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "barrier"}

// Kinds lists all kinds.
func Kinds() []Kind {
	ks := make([]Kind, numKinds)
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind is the inverse of String.
func ParseKind(s string) (Kind, error) {
	for i, name := range kindNames {
		if s == name {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("collective: unknown kind %q; have %v", s, kindNames)
}

// Reduces reports whether the kind combines values of several ranks.
func (k Kind) Reduces() bool {
	return k == AllReduce || k == ReduceScatter || k == Reduce || k == Barrier
}

// Rooted reports whether the kind has a root.
func (k Kind) Rooted() bool { return k == Broadcast || k == Reduce }

// Blocks returns how many blocks of count elements the input and the output
// buffer of one of n ranks hold: one block, or one for every rank. A Barrier is an
// all-reduce of nothing.
func (k Kind) Blocks(n int) (in, out int) {
	switch k {
	case AllGather:
		return 1, n
	case ReduceScatter:
		return n, 1
	case AllToAll:
		return n, n
	default:
		return 1, 1
	}
}

// Shape is what an algorithm may depend on, besides the rank.
type Shape struct {
	Kind  Kind
	Ranks int // 1…2^24
	Root  int // of Broadcast and Reduce; 0 otherwise
	// Hosts says which ranks are near each other, for algorithms that send less between hosts. The schedules that are built do
	// not say it again.
	Hosts *Hosts
}

const maxRanks = 1 << 24

// Check returns an error that names the field that makes no sense.
func (s Shape) Check() error {
	switch {
	case s.Kind >= numKinds:
		return fmt.Errorf("collective: unknown %v", s.Kind)
	case s.Ranks < 1 || s.Ranks > maxRanks:
		return fmt.Errorf("collective: %d ranks, want 1…%d", s.Ranks, maxRanks)
	case s.Root < 0 || s.Root >= s.Ranks:
		return fmt.Errorf("collective: root %d, want 0…%d", s.Root, s.Ranks-1)
	case s.Root != 0 && !s.Kind.Rooted():
		return fmt.Errorf("collective: root %d, but %v has no root", s.Root, s.Kind)
	case s.Hosts != nil && s.Hosts.ranks() != s.Ranks:
		return fmt.Errorf("collective: hosts of %d ranks, want %d", s.Hosts.ranks(), s.Ranks)
	}
	return nil
}

// HasIn reports whether the rank's input takes part.
func (s Shape) HasIn(rank int) bool { return s.Kind != Broadcast || rank == s.Root }

// HasOut reports whether the rank gets an output.
func (s Shape) HasOut(rank int) bool { return s.Kind != Reduce || rank == s.Root }
