package bootstrap

import "net/netip"

// Addrs returns where a session's members listen.
func Addrs(s Session) []netip.AddrPort { return s.(*session).addrs }

// HearClosed has a session hear that a rank has closed its own, and which collective that rank completed last.
func HearClosed(s Session, rank int, last uint64) {
	s.(*session).rankClosed(rank, farewell{last: last}, nil)
}

var (
	FormatRanks = formatRanks
)
