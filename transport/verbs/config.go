package verbs

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

const (
	defaultSlot  = 64 << 10
	defaultSlots = 8
	lookEvery    = time.Second // between looks at silent queues
)

// Name is what Endpoint.Name says.
const Name = "verbs"

// Config is what an endpoint needs besides the transport.Options. Slot and Slots must be equal on all ranks, which is checked when they
// connect.
type Config struct {
	// Devices says which ports of which RDMA devices to use: all that it takes and that are active, at most 8, in the order of their
	// names; they must have one link layer. Nil: the first active port.
	Devices func(name string, port int) bool
	// QPs is how many a connection has on each port, 1 to 32; of two ends with different numbers, of these or of ports, the greater
	// counts. Zero: 1. A connection has at most 64.
	QPs int
	// Budget is how many QPs the endpoint may have at once; beyond, the connections that were idle for longest are parked: their QPs
	// and memory go, and come again when somebody sends or receives. It is exceeded where too few are idle. Zero: what the device has.
	Budget int
	// Near, when set, is asked for the processors near the first of our ports, and all threads of the process are bound to them, for good:
	// whoever waits polls. None: they are left where they are.
	Near func(device string, port int) []int
	// GIDIndex is the index of our GID. Nil: by rule, which the package comment has.
	GIDIndex *int
	// MTU bounds the path MTU, in bytes: 256, 512, 1024, 2048 or 4096. Zero: only the ports do.
	MTU int
	// Addr is the local IP address where peers set connections up, over TCP. Required, and not unspecified. The GID of its network
	// interface is preferred.
	Addr netip.Addr
	// Ports are the first and the last TCP port to try. Zero: any free port.
	Ports [2]uint16
	// Slot is the memory that a short piece of a message takes, in bytes: a power of two from 1 KiB to 1 MiB. Zero: 64 KiB.
	Slot int
	// Slots is how many short pieces of a stream may wait for their reader, and four times what a long one takes at most: a power of two from
	// 4 to 256. Zero: 8. A connection holds
	// 2 × Streams × Slots × (Slot + 64) bytes of pinned memory.
	Slots int
	// Chunk is how much memory is mapped and registered at once, for several connections, in bytes; the first one when the endpoint
	// opens. Zero: what one connection takes. Pool bounds all of it, and by itself what users register; zero: no bound. HugePages takes 2 MiB pages, which the
	// administrator must have set aside (vm.nr_hugepages).
	Chunk     int64
	Pool      int64
	HugePages bool
	// GPUs are those whose memory users register. They stay open until the endpoint is closed.
	GPUs []GPU
	// Timeout is how long a packet may go unacknowledged before it is sent again: 4.096 µs × 2^Timeout, 1 to 31. Zero: 17, which
	// is 0.54 s.
	Timeout uint8
	// Retry is how often it is sent again before the connection is broken, 1 to 7. Zero: 6; then a cut link is found in about 4 s.
	// Some devices take 7 as for ever; a connection whose device says nothing for four times as long as so many retries may take, and 5 s, is
	// broken all the same.
	Retry uint8
	// Fallback lets a connection whose last QP has failed go on over TCP, until one works again; else it is an error then. It must be
	// equal on all ranks, too.
	Fallback bool
	// TrafficClass and ServiceLevel go into the packets; HopLimit too. Zero: 0, 0 and 255.
	TrafficClass, ServiceLevel, HopLimit uint8
	// PKey is the partition key, which each port must have in its table; its highest bit, full membership, is not compared. Zero:
	// the first of the table.
	PKey uint16
	// Moderation delays the event that wakes a sleeper until there are Count completions, or Period microseconds after the first. With
	// On and both zero: 16 and 10. A device that cannot is used without, and a line is logged.
	Moderation Moderation
	// ConnectTimeout bounds the attempts to connect to a peer. Zero: 60 s.
	ConnectTimeout time.Duration
	// Linger bounds how long Close waits for the peers' devices to have what was sent. Zero: 1 s.
	Linger time.Duration
	// Log gets asynchronous events of the device and a line for each kind of stranger on the port. Nil: no log.
	Log *slog.Logger

	look time.Duration // between looks at silent queues, 0: a second; tests' alone
}

// Pinned is how many bytes of pinned memory a connection with so many streams holds.
func (c Config) Pinned(streams int) int64 {
	c.Slot, c.Slots = cmp.Or(c.Slot, defaultSlot), cmp.Or(c.Slots, defaultSlots)
	return 2 * int64(c.layout(streams))
}

// layout is the bytes that a connection's slots take in one direction. A slot is a header and Slot bytes, so placed that the latter are
// aligned to 64. A longer piece goes on over the slots behind its own, headers and all.
func (c *Config) layout(streams int) int { return streams * c.Slots * c.stride() }

func (c *Config) stride() int { return c.Slot + slotAlign }

const slotAlign = 64

// Moderation is how a completion queue makes events.
type Moderation struct {
	On            bool
	Count, Period uint16
}

func (c Config) validate() (Config, error) {
	field := func(name string, value any, want string) (Config, error) {
		return c, fmt.Errorf("verbs config: %s is %v, want %s", name, value, want)
	}
	c.Slot, c.Slots = cmp.Or(c.Slot, defaultSlot), cmp.Or(c.Slots, defaultSlots)
	if c.QPs == 0 {
		c.QPs = 1
	}
	if m := &c.Moderation; m.On && m.Count == 0 && m.Period == 0 {
		m.Count, m.Period = 16, 10
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
	c.look = cmp.Or(c.look, lookEvery)
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
	case c.QPs < 1 || c.QPs > 32:
		return field("QPs", c.QPs, "1 to 32")
	case c.Budget < 0:
		return field("Budget", c.Budget, "a number of QPs, or 0 for what the device has")
	case c.MTU != 0 && !powerOfTwo(c.MTU, 256, 4096):
		return field("MTU", c.MTU, "256, 512, 1024, 2048 or 4096, or 0 for the port's")
	case c.Chunk < 0:
		return field("Chunk", c.Chunk, "a number of bytes")
	case slices.Contains(c.GPUs, nil):
		return field("GPUs", c.GPUs, "no nil in it")
	case c.Pool < 0:
		return field("Pool", c.Pool, "a number of bytes, or 0 for no bound")
	case c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 255):
		return field("GIDIndex", *c.GIDIndex, "0 to 255, or none for a choice by rule")
	case !powerOfTwo(c.Slot, 1<<10, 1<<20):
		return field("Slot", c.Slot, "a power of two from 1024 to 1048576")
	case !powerOfTwo(c.Slots, 4, 256):
		return field("Slots", c.Slots, "a power of two from 4 to 256")
	case c.Pool > 0 && c.Chunk > c.Pool:
		return field("Chunk", c.Chunk, fmt.Sprintf("no more than the whole Pool of %d bytes", c.Pool))
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
