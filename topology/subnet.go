package topology

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// subnet names the neighbours that a port certainly reaches: on InfiniBand those with its prefix, on RoCE those of the IP subnet of its
// GID. Ports of one host in several subnets may be rails between which there is no way.
func (s sysfs) subnet(p PortFacts) Fact[string] {
	if p.Layer.Or("") == "InfiniBand" {
		for _, g := range p.GIDs {
			if g.Index == 0 {
				return Known(netip.PrefixFrom(g.Addr, 64).Masked().String())
			}
		}
		return Unknown[string]("%s port %d has no GID 0", p.Device, p.Number)
	}
	best, _ := chooseRoCE(p, GIDQuery{})
	if best == nil || best.Addr.IsLinkLocalUnicast() {
		return Unknown[string]("%s port %d has no routable GID of RoCE v2", p.Device, p.Number)
	}
	if !best.Addr.Is4In6() {
		return Known(netip.PrefixFrom(best.Addr, 64).Masked().String())
	}
	return then(s.text("proc/net/route"), func(table string) (string, error) {
		addr, dev := best.Addr.Unmap(), best.NetDevice.Or(p.NetDevice.Or(""))
		var found netip.Prefix // the narrowest
		for line := range strings.Lines(table) {
			if to, ok := connected(line, dev); ok && to.Contains(addr) && to.Bits() > found.Bits() {
				found = to
			}
		}
		if found.Bits() <= 0 {
			return "", fmt.Errorf("/proc/net/route has no subnet of %s at %s", addr, dev)
		}
		return found.String(), nil
	})
}

// connected reads a line of the kernel's IPv4 routes: an interface's subnet, whose hosts need no gateway.
func connected(line, dev string) (netip.Prefix, bool) {
	f := strings.Fields(line) // Iface Destination Gateway Flags RefCnt Use Metric Mask …
	if len(f) < 8 || f[0] != dev || f[2] != "00000000" {
		return netip.Prefix{}, false
	}
	to, err := hex.DecodeString(f[1])
	mask, maskErr := hex.DecodeString(f[7])
	if err != nil || maskErr != nil || len(to) != 4 || len(mask) != 4 {
		return netip.Prefix{}, false
	}
	slices.Reverse(to) // both are written as numbers of a little-endian processor
	slices.Reverse(mask)
	bits := 0
	for m := binary.BigEndian.Uint32(mask); m>>31 == 1; m <<= 1 {
		bits++
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(to)), bits).Masked(), true
}
