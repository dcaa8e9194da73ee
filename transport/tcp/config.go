package tcp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// Name is what Endpoint.Name says.
const Name = "tcp"

// Config is what an endpoint needs besides the transport.Options.
type Config struct {
	// Addr is the local address to listen on and to dial from. A link-local one
	// has a zone. Required: peers must be able to reach it, so it can't be
	// unspecified.
	Addr netip.Addr
	// Ports are the first and the last port to try. Zero: any free port.
	Ports [2]uint16
	// Flows is the number of sockets of a connection to a peer's Addr, 1 to 16; the
	// larger of both ends' counts. Zero: 1. More than one helps where a single flow
	// cannot fill the path (bonded links, some clouds), not on loopback.
	Flows int
	// Rails are further ways to other hosts, at most 15, over which connections have sockets too. One that
	// can't be listened on is left out, and where the peer can't be reached over one its sockets go to Addr; the log tells.
	Rails []Rail
	// Window is how far a sender may be ahead of the reader of a stream, in
	// bytes: a power of two from 64 KiB to 64 MiB. Zero: 1 MiB. It should be the
	// bandwidth-delay product or more; up to Streams × Window bytes of a
	// connection are staged here when nobody asks for them.
	Window int
	// ConnectTimeout bounds the attempts to connect to a peer. Zero: 60 s.
	ConnectTimeout time.Duration
	// Linger bounds how long Close waits for the peers' kernels to have what was
	// sent. Zero: 1 s.
	Linger time.Duration
	// Log gets a line for each kind of stranger on the port, rate limited. Nil: no log.
	Log *slog.Logger
}

func (c Config) validate() (Config, error) {
	field := func(name string, value any, want string) (Config, error) {
		return c, fmt.Errorf("tcp config: %s is %v, want %s", name, value, want)
	}
	if c.Flows == 0 {
		c.Flows = 1
	}
	if c.Window == 0 {
		c.Window = 1 << 20
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = time.Minute
	}
	if c.Linger == 0 {
		c.Linger = time.Second
	}
	switch {
	case !c.Addr.IsValid() || c.Addr.IsUnspecified():
		return field("Addr", c.Addr, "an address of this host that peers can reach")
	case c.Addr.IsLinkLocalUnicast() && c.Addr.Is6() && c.Addr.Zone() == "":
		return field("Addr", c.Addr, "a zone on a link-local address, as in fe80::1%eth0")
	case c.Ports[0] > c.Ports[1] || c.Ports[0] == 0 && c.Ports[1] != 0:
		return field("Ports", c.Ports, "the first and the last port of a range")
	case c.Flows < 1 || c.Flows > maxFlows:
		return field("Flows", c.Flows, "1 to 16")
	case len(c.Rails) > maxRails:
		return field("Rails", c.Rails, "at most 15")
	case c.Window < 64<<10 || c.Window > 64<<20 || c.Window&(c.Window-1) != 0:
		return field("Window", c.Window, "a power of two from 65536 to 67108864")
	case c.ConnectTimeout < 0:
		return field("ConnectTimeout", c.ConnectTimeout, "a positive duration")
	case c.Linger < 0:
		return field("Linger", c.Linger, "a positive duration")
	}
	c.Addr = c.Addr.Unmap()
	c.Rails = slices.Clone(c.Rails)
	for i := range c.Rails {
		var err error
		if c.Rails[i], err = c.Rails[i].validate(c.Addr); err != nil {
			return c, err
		}
	}
	return c, nil
}
