package comm

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/gccl-project/gccl/transport/verbs"
)

// route is how to reach a rank of the world.
type route struct {
	endpoint transport.Endpoint
	address  []byte
	reason   string
	place    string // host and process, for people
}

// preference orders transports.
var preference = []string{mem.Name, "shm", verbs.Name, "tcp"}

// kindsOf numbers ranks by which transports they have, and says which anyone has.
func kindsOf(all []hello) (kinds []int, has map[string]bool) {
	number, has := map[string]int{}, map[string]bool{}
	for _, h := range all {
		var names []string
		for name, a := range h.Addresses {
			if a != nil {
				names = append(names, name)
				has[name] = true
			}
		}
		slices.Sort(names)
		key := strings.Join(names, " ")
		if _, known := number[key]; !known {
			number[key] = len(number)
		}
		kinds = append(kinds, number[key])
	}
	return kinds, has
}

// choose returns the transport of a pair: the most preferred one that both have and, for shared memory, both have
// proven, and for verbs, the topologies don't speak against where there is TCP, too; and why it is that one.
func choose(a, b *hello, proven bool, noRDMA func() topology.Reason) (name, reason string) {
	has := func(name string) bool { return a.Addresses[name] != nil && b.Addresses[name] != nil }
	for _, name := range preference {
		switch {
		case !has(name):
			continue
		case name == "shm" && proven:
			return name, "the same host, proven by a nonce in shared memory"
		case name == "shm":
			reason = "no shared memory between them"
			continue
		case name == verbs.Name && has("tcp"):
			if why := noRDMA(); why != "" {
				reason = string(why)
				continue
			}
		}
		return name, cmp.Or(reason, "chosen by configuration")
	}
	return "", "they have " + reason + " and no other"
}
