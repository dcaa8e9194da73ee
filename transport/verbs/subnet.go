//go:build linux && cgo

package verbs

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// subnets says what subnets the ends of a connection are in, as far as this end knows, which is why most of those that never worked did not: two
// ports that each work reach each other through a router alone where these differ.
func subnets(link ibv.LinkLayer, ours, theirs ibv.GID, local []netip.Prefix) string {
	us, them := addressOf(ours), addressOf(theirs)
	own := netip.PrefixFrom(us, 64).Masked() // of InfiniBand and of link-local addresses
	if link != ibv.InfiniBand && !us.IsLinkLocalUnicast() {
		known := false
		for _, p := range local {
			if p.Addr() == us {
				own, known = p.Masked(), true
			}
		}
		if !known {
			return fmt.Sprintf("%v and %v, in subnets that are not known here: is there a way between them for RDMA?", us, them)
		}
	}
	if own.Contains(them) {
		return fmt.Sprintf("%v and %v are in one, %v", us, them, own)
	}
	return fmt.Sprintf("%v is not in %v, where %v is: for RDMA there has to be a router between them; GCCL_RDMA_DEVICE names ports that reach each other", them, own, us)
}

// localPrefixes are this host's addresses with the lengths of their subnets, none where they can't be read.
func localPrefixes() (all []netip.Prefix) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				ones, _ := n.Mask.Size()
				all = append(all, netip.PrefixFrom(ip.Unmap(), ones))
			}
		}
	}
	return all
}
