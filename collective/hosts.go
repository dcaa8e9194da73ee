package collective

import (
	"fmt"
	"slices"
	"strings"
)

// Hosts says which ranks are on one host: consecutive ones. Ranks whose numbers go otherwise are renamed, see [Schedule.Rename]. It
// is immutable and compares by identity, so that a Shape can be a key. Nil: every rank is taken to be on a host of its own.
type Hosts struct{ first []int } // of each host the first rank, then the number of ranks

// NewHosts returns hosts with so many ranks each, in order. Every host must have one.
func NewHosts(sizes ...int) (*Hosts, error) {
	h := &Hosts{first: make([]int, 1, len(sizes)+1)}
	for i, n := range sizes {
		if n < 1 || n > maxRanks {
			return nil, fmt.Errorf("collective: host %d of %d has %d ranks, want 1…%d", i, len(sizes), n, maxRanks)
		}
		h.first = append(h.first, h.first[i]+n)
	}
	return h, nil
}

func (h *Hosts) ranks() int {
	if len(h.first) == 0 { // the zero value
		return 0
	}
	return h.first[len(h.first)-1]
}

// String lists the sizes in order, as "8×16 4": sixteen hosts of 8 ranks, then one of 4. Hosts with equal strings have equal ranks.
func (h *Hosts) String() string {
	var b strings.Builder
	for i := 0; i < len(h.first)-1; {
		size, from := h.first[i+1]-h.first[i], i
		for i++; i < len(h.first)-1 && h.first[i+1]-h.first[i] == size; i++ {
		}
		if from > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d", size)
		if i-from > 1 {
			fmt.Fprintf(&b, "×%d", i-from)
		}
	}
	return b.String()
}

// HostOf numbers the hosts: ranks are on one host if theirs is the same.
func (s Shape) HostOf(rank int) int { return s.host(rank).index }

// hosts is how many there are.
func (s Shape) hosts() int {
	if s.Hosts == nil {
		return s.Ranks
	}
	return len(s.Hosts.first) - 1
}

// home is one host's place among the ranks.
type home struct{ index, first, size int }

// host is the one that a rank is on.
func (s Shape) host(rank int) home {
	if s.Hosts == nil {
		return home{rank, rank, 1}
	}
	i, found := slices.BinarySearch(s.Hosts.first, rank)
	if !found {
		i--
	}
	return s.hostAt(i)
}

func (s Shape) hostAt(i int) home {
	if s.Hosts == nil {
		return home{i, i, 1}
	}
	return home{i, s.Hosts.first[i], s.Hosts.first[i+1] - s.Hosts.first[i]}
}

// least and most are the sizes of the smallest and the largest host.
func (s Shape) least() int { return s.extreme(func(a, b int) int { return min(a, b) }) }
func (s Shape) most() int  { return s.extreme(func(a, b int) int { return max(a, b) }) }

func (s Shape) extreme(better func(a, b int) int) int {
	size := s.hostAt(0).size
	for i := range s.hosts() {
		size = better(size, s.hostAt(i).size)
	}
	return size
}
