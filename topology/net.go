package topology

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// NetFacts is a network device of the kernel.
type NetFacts struct {
	Name    string       `json:"name"`
	Type    Fact[int]    `json:"type"`  // ARPHRD number: 1 Ethernet, 32 InfiniBand, 772 loopback
	State   Fact[string] `json:"state"` // operstate: up, down, unknown, lowerlayerdown
	Mbps    Fact[int]    `json:"mbps"`  // Mbit/s
	MTU     Fact[int]    `json:"mtu"`
	Bus     Fact[string] `json:"bus"` // the device on PCI
	Virtual bool         `json:"virtual"`
	Master  string       `json:"master,omitempty"` // the bond or bridge that it is part of
	Bond    *BondFacts   `json:"bond,omitempty"`
}

// BondFacts is how a bond spreads traffic over its members.
type BondFacts struct {
	Mode    Fact[string]   `json:"mode"`   // 802.3ad, active-backup, balance-xor, …
	Policy  Fact[string]   `json:"policy"` // layer2, layer3+4, …
	Members Fact[[]string] `json:"members"`
}

// Flows returns how many connections to one peer it takes to use all of a device: one for each member of a bond that spreads
// flows.
func (n NetFacts) Flows() int {
	if n.Bond == nil || n.Bond.Mode.Or("") == "active-backup" {
		return 1
	}
	return max(1, len(n.Bond.Members.Or(nil)))
}

// Up reports whether a device can carry traffic, as far as the kernel says: virtual ones often say "unknown".
func (n NetFacts) Up() bool {
	return n.State.Or("unknown") == "up" || n.State.Or("unknown") == "unknown"
}

func (s sysfs) netFacts() Fact[[]NetFacts] {
	const dir = "sys/class/net"
	names, err := s.list(dir)
	if err != nil {
		return Unknown[[]NetFacts]("%s", reason(err))
	}
	var all []NetFacts
	for _, name := range names {
		at := path.Join(dir, name)
		if _, err := fs.Stat(s.root, path.Join(at, "mtu")); errors.Is(err, fs.ErrNotExist) {
			continue // bonding_masters is a file
		}
		n := NetFacts{Name: name, Type: s.number(at, "type"), State: s.text(at, "operstate"), MTU: s.number(at, "mtu"), Bus: s.pciOf(at)}
		n.Mbps = then(s.number(at, "speed"), func(mbps int) (int, error) {
			if mbps <= 0 { // -1 without carrier, and for virtual devices
				return 0, errors.New("the device gives no speed")
			}
			return mbps, nil
		})
		to, err := s.link(at)
		n.Virtual = err == nil && strings.Contains("/"+to, "/virtual/")
		n.Master = s.baseOf(at, "master").Or("")
		if mode := s.text(at, "bonding/mode"); mode.known {
			first := func(t string) (string, error) { word, _, _ := strings.Cut(t, " "); return word, nil } // "layer2 0"
			n.Bond = &BondFacts{
				Mode: then(mode, first), Policy: then(s.text(at, "bonding/xmit_hash_policy"), first),
				Members: then(s.text(at, "bonding/slaves"), func(t string) ([]string, error) { return strings.Fields(t), nil }),
			}
		}
		all = append(all, n)
	}
	return Known(all)
}
