package bench

import (
	"fmt"
	"strings"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
)

// Kind is what is measured: a collective, or an exchange between neighbours.
type Kind struct {
	Name string
	comm comm.Kind // what each rank calls; for sendrecv the send

	// Blocks that a rank's input and output hold, of n ranks. The size of a row is that of the larger,
	// as nccl-tests has it: of an all-gather what a rank receives, of a reduce-scatter what it gives.
	in, out func(n int) int

	// factor is bus bandwidth over algorithm bandwidth: the part of the message's bytes that must
	// cross each rank's link, whatever the algorithm.
	factor func(n int) float64

	reduces, rooted, inPlace bool
}

func one(int) int      { return 1 }
func none(int) int     { return 0 }
func every(n int) int  { return n }
func unit(int) float64 { return 1 }
func twice(n int) float64 {
	return 2 * float64(n-1) / float64(n)
}
func others(n int) float64 { return float64(n-1) / float64(n) }

var kinds = []Kind{
	{"all_reduce", comm.KindAllReduce, one, one, twice, true, false, true},
	{"all_gather", comm.KindAllGather, one, every, others, false, false, true},
	{"reduce_scatter", comm.KindReduceScatter, every, one, others, true, false, true},
	{"broadcast", comm.KindBroadcast, one, one, unit, false, true, true},
	{"reduce", comm.KindReduce, one, one, unit, true, true, true},
	{"alltoall", comm.KindAllToAll, every, every, others, false, false, true},
	{"sendrecv", comm.KindSend, one, one, unit, false, false, false},
	{"barrier", comm.KindBarrier, none, none, unit, false, false, false},
}

// Kinds returns the names that [ParseKind] knows.
func Kinds() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.Name
	}
	return names
}

// ParseKind returns the kind of that name.
func ParseKind(name string) (Kind, error) {
	for _, k := range kinds {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("unknown kind %q; want one of %s", name, strings.Join(Kinds(), ", "))
}

// isBarrier reports whether the kind moves no data.
func (k Kind) isBarrier() bool { return k.comm == comm.KindBarrier }

// isExchange reports whether the kind is two calls, to the next rank and from the one before.
func (k Kind) isExchange() bool { return k.comm == comm.KindSend }

// count returns how many elements of elem bytes a block has in a message of size bytes among n
// ranks, rounded down.
func (k Kind) count(size int64, elem, n int) int64 {
	if k.isBarrier() {
		return 0
	}
	return size / int64(elem) / int64(max(k.in(n), k.out(n)))
}

// BusFactor returns bus bandwidth over algorithm bandwidth for n ranks.
func (k Kind) BusFactor(n int) float64 { return k.factor(n) }

// Algorithms returns the names of the algorithms that the kind may be asked for by, none for an
// exchange.
func (k Kind) Algorithms() []string {
	if k.isExchange() {
		return nil
	}
	var names []string
	for _, a := range collective.Catalog(collective.Kind(k.comm)) {
		names = append(names, a.Name)
	}
	return names
}
