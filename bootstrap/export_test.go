package bootstrap

import "net/netip"

// Addrs returns where a session's members listen.
func Addrs(s Session) []netip.AddrPort { return s.(*session).addrs }

var (
	FormatRanks = formatRanks
)
