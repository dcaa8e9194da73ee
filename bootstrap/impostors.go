package bootstrap

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// impostors are those who came to a root with the proof of another secret: most often ranks of its own world that were given a wrong one,
// for which it then waits in vain.
type impostors struct {
	all int
	of  map[string]int // by host, of the first few
}

// mostImpostors is how many hosts of theirs are remembered.
const mostImpostors = 8

// add counts one, and reports whether it is the first of its host that text names.
func (i *impostors) add(e *auth.Error) (news bool) {
	if e.Kind != auth.WrongSecret {
		return false
	}
	host, _, err := net.SplitHostPort(e.Peer)
	if err != nil {
		host = e.Peer
	}
	i.all++
	_, known := i.of[host]
	if !known && len(i.of) == mostImpostors {
		return false
	}
	if i.of == nil {
		i.of = map[string]int{}
	}
	i.of[host]++
	return !known
}

// text says who they are, behind what an error says of missing ranks; "" if there were none.
func (i *impostors) text() string {
	if i.all == 0 {
		return ""
	}
	var from []string
	rest := i.all
	for _, host := range slices.SortedFunc(maps.Keys(i.of), func(a, b string) int { return cmp.Or(i.of[b]-i.of[a], strings.Compare(a, b)) }) {
		n := i.of[host]
		rest -= n
		from = append(from, fmt.Sprintf("%d from %s", n, host))
	}
	if rest > 0 {
		from = append(from, fmt.Sprintf("%d from elsewhere", rest))
	}
	return "; connections with the proof of a wrong secret: " + strings.Join(from, ", ") +
		": do all ranks have the same secret (GCCL_SECRET, GCCL_SECRET_FILE or the id), or is another job set to meet here?"
}
