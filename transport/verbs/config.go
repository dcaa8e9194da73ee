package verbs

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// Name is what Endpoint.Name says.
const Name = "verbs"

// Config is what an endpoint needs besides the transport.Options. Slot and Slots must be equal on all ranks, which is checked when they
// connect.
type Config struct {
	// Device is the RDMA device, "mlx5_0". Empty: the first one with an active port.
	Device string
	// Port is the device's port, from 1 on. Zero: its first active one.
	Port int
	// GIDIndex is the index of our GID. Nil: by rule, which the package comment has.
	GIDIndex *int
	// Addr is the local IP address where peers set connections up, over TCP. Required, and not unspecified. The GID of its network
	// interface is preferred.
	Addr netip.Addr
	// Ports are the first and the last TCP port to try. Zero: any free port.
	Ports [2]uint16
	// Slot is the size of the pieces that messages travel in, in bytes: a power of two from 1 KiB to 1 MiB. Zero: 64 KiB.
	Slot int
	// Slots is how many pieces of a stream may wait for their reader: a power of two from 4 to 256. Zero: 8. A connection holds
	// 2 × Streams × Slots × Slot bytes of pinned memory.
	Slots int
	// Timeout is how long a packet may go unacknowledged before it is sent again: 4.096 µs × 2^Timeout, 1 to 31. Zero: 17, which
	// is 0.54 s.
	Timeout uint8
	// Retry is how often it is sent again before the connection is broken, 1 to 7. Zero: 6; then a cut link is found in about 4 s.
	// Some devices take 7 as for ever.
	Retry uint8
	// TrafficClass and ServiceLevel go into the packets; HopLimit too. Zero: 0, 0 and 255.
	TrafficClass, ServiceLevel, HopLimit uint8
	// PKeyIndex is the index of the partition key.
	PKeyIndex uint16
	// ConnectTimeout bounds the attempts to connect to a peer. Zero: 60 s.
	ConnectTimeout time.Duration
	// Linger bounds how long Close waits for the peers' devices to have what was sent. Zero: 1 s.
	Linger time.Duration
	// Log gets asynchronous events of the device and a line for each kind of stranger on the port. Nil: no log.
	Log *slog.Logger
}

func (c Config) validate() (Config, error) {
	field := func(name string, value any, want string) (Config, error) {
		return c, fmt.Errorf("verbs config: %s is %v, want %s", name, value, want)
	}
	if c.Slot == 0 {
		c.Slot = 64 << 10
	}
	if c.Slots == 0 {
		c.Slots = 8
	}
	if c.Timeout == 0 {
		c.Timeout = 17
	}
	if c.Retry == 0 {
		c.Retry = 6
	}
	if c.HopLimit == 0 {
		c.HopLimit = 255
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = time.Minute
	}
	if c.Linger == 0 {
		c.Linger = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	powerOfTwo := func(n, least, most int) bool { return n >= least && n <= most && n&(n-1) == 0 }
	switch {
	case !c.Addr.IsValid() || c.Addr.IsUnspecified():
		return field("Addr", c.Addr, "an address of this host that peers can reach")
	case c.Addr.IsLinkLocalUnicast() && c.Addr.Is6() && c.Addr.Zone() == "":
		return field("Addr", c.Addr, "a zone on a link-local address, as in fe80::1%eth0")
	case c.Ports[0] > c.Ports[1] || c.Ports[0] == 0 && c.Ports[1] != 0:
		return field("Ports", c.Ports, "the first and the last port of a range")
	case c.Port < 0 || c.Port > 255:
		return field("Port", c.Port, "1 to 255, or 0 for the first active port")
	case c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 255):
		return field("GIDIndex", *c.GIDIndex, "0 to 255, or none for a choice by rule")
	case !powerOfTwo(c.Slot, 1<<10, 1<<20):
		return field("Slot", c.Slot, "a power of two from 1024 to 1048576")
	case !powerOfTwo(c.Slots, 4, 256):
		return field("Slots", c.Slots, "a power of two from 4 to 256")
	case c.Timeout > 31:
		return field("Timeout", c.Timeout, "1 to 31")
	case c.Retry > 7:
		return field("Retry", c.Retry, "1 to 7")
	case c.ServiceLevel > 15:
		return field("ServiceLevel", c.ServiceLevel, "0 to 15")
	case c.ConnectTimeout < 0:
		return field("ConnectTimeout", c.ConnectTimeout, "a positive duration")
	case c.Linger < 0:
		return field("Linger", c.Linger, "a positive duration")
	}
	c.Addr = c.Addr.Unmap()
	return c, nil
}
