package verbs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// gidChoice is what a GID is chosen from: a port of a device and the table of all its ports.
type gidChoice struct {
	device string
	port   ibv.Port
	table  []ibv.GIDEntry
	netDev int  // index of the network interface that is preferred; 0: none
	forced *int // index that the user wants
}

// choose returns our GID by rule, never by anybody's index. On InfiniBand it is the first one. On Ethernet, of those that are not
// empty, in this order: RoCE v2 before v1; on the preferred interface; IPv4, then IPv6 that routers forward, then link-local; the
// lowest index.
func (c gidChoice) choose() (ibv.GIDEntry, error) {
	var usable []ibv.GIDEntry
	for _, e := range c.table {
		if e.Port == int(c.port.Number) && e.GID != (ibv.GID{}) {
			usable = append(usable, e)
		}
	}
	where := fmt.Sprintf("%s port %d", c.device, c.port.Number)
	slices.SortStableFunc(usable, func(a, b ibv.GIDEntry) int {
		return cmp.Or(cmp.Compare(c.rank(a), c.rank(b)), cmp.Compare(a.Index, b.Index))
	})
	switch {
	case c.forced != nil:
		for _, e := range usable {
			if e.Index == *c.forced {
				return e, nil
			}
		}
		if len(usable) == 0 {
			return ibv.GIDEntry{}, fmt.Errorf("verbs: %s GID index %d is empty, as all others are", where, *c.forced)
		}
		return ibv.GIDEntry{}, fmt.Errorf("verbs: %s GID index %d is empty; try %d (%v, %v)", where, *c.forced, usable[0].Index, addressOf(usable[0].GID), usable[0].Type)
	case len(usable) == 0:
		return ibv.GIDEntry{}, fmt.Errorf("verbs: %s has no GID: give its network interface an address", where)
	}
	return usable[0], nil
}

func (c gidChoice) rank(e ibv.GIDEntry) int {
	if c.port.LinkLayer != ibv.Ethernet {
		return 0
	}
	r := 0
	if e.Type != ibv.GIDRoCE2 {
		r += 100
	}
	if c.netDev != 0 && e.NetDev != c.netDev {
		r += 10
	}
	switch a := addressOf(e.GID); {
	case a.Is4():
	case a.IsLinkLocalUnicast():
		r += 2
	default:
		r++
	}
	return r
}

// addressOf is the IP address that a RoCE GID is.
func addressOf(g ibv.GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }
