package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// Filter selects devices (network interfaces, HCAs) by name. The zero Filter is not set and takes every device.
type Filter struct {
	exclude bool
	exact   bool
	items   []filterItem
}

type filterItem struct {
	name string
	port int // 0: any
}

// ParseFilter reads a comma-separated list of names in the syntax of NCCL_SOCKET_IFNAME and NCCL_IB_HCA:
//
//	eth,ib            every name that begins with eth or ib (so eth1 takes eth1 and eth10)
//	=eth1,eth2        exactly these names
//	^docker,lo        every name but those that begin so
//	^=eth1            every name but exactly these
//	=mlx5_1:1         port 1 of the HCA alone
//
// "^" and "=" stand once, at the front, and hold for the whole list; one before a later name is an error, since it would
// silently be taken as part of that name. Spaces around names and empty items ("eth0, ,") are ignored. An empty or blank
// string is the zero Filter; a sign without any name ("^", "=,") is an error.
func ParseFilter(s string) (Filter, error) {
	fail := func(format string, args ...any) (Filter, error) {
		return Filter{}, fmt.Errorf("device filter %q: %s; want a comma-separated list of names or name:port, with one ^ (all but), = (exact) or ^= before the whole list",
			s, fmt.Sprintf(format, args...))
	}
	rest := strings.TrimSpace(s)
	if rest == "" {
		return Filter{}, nil
	}
	var f Filter
	rest, f.exclude = strings.CutPrefix(rest, "^")
	rest, f.exact = strings.CutPrefix(strings.TrimSpace(rest), "=")
	for item := range strings.SplitSeq(rest, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if item[0] == '^' || item[0] == '=' {
			return fail("%q has its own sign", item)
		}
		name, port, hasPort := strings.Cut(item, ":")
		it := filterItem{name: name}
		if hasPort {
			n, err := strconv.ParseUint(port, 10, 8)
			if err != nil || n == 0 {
				return fail("port %q of %q is not a number from 1 to 255", port, item)
			}
			it.port = int(n)
		}
		if name == "" || strings.ContainsAny(name, " \t\n\r/^=") {
			return fail("%q is not a device name", name)
		}
		f.items = append(f.items, it)
	}
	if len(f.items) == 0 {
		return fail("it names no device")
	}
	return f, nil
}

// IsSet reports whether f was made from a string that names devices.
func (f Filter) IsSet() bool { return len(f.items) > 0 }

// Match reports whether f takes the device name at port (1 and up). Port 0 stands for a device without ports, or for any
// of its ports: the ports in f are then not looked at, except that a filter which excludes single ports keeps the device.
func (f Filter) Match(name string, port int) bool {
	if !f.IsSet() {
		return true
	}
	return f.lists(name, port) != f.exclude
}

func (f Filter) lists(name string, port int) bool {
	for _, it := range f.items {
		if it.name != name && (f.exact || !strings.HasPrefix(name, it.name)) {
			continue
		}
		switch {
		case it.port == 0 || it.port == port:
			return true
		case port == 0 && !f.exclude:
			return true
		}
	}
	return false
}

// names reports whether f asks for name, rather than only letting it pass.
func (f Filter) names(name string) bool { return f.IsSet() && !f.exclude && f.lists(name, 0) }

// String returns f in the syntax of [ParseFilter], without spaces and empty items.
func (f Filter) String() string {
	var b strings.Builder
	if f.exclude {
		b.WriteByte('^')
	}
	if f.exact {
		b.WriteByte('=')
	}
	for i, it := range f.items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(it.name)
		if it.port != 0 {
			fmt.Fprintf(&b, ":%d", it.port)
		}
	}
	return b.String()
}
