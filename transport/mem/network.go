// Package mem carries messages between endpoints of one process, through queues
// in ordinary memory. It is what simulated jobs and tests run on: it starts no
// goroutine, opens no descriptor, reads no clock and behaves the same way in
// every run that calls it in the same order, also inside testing/synctest.
//
// # Promises
//
// Beyond the contract of package transport: a message is there for the receiver
// as soon as Send returns true (unless a Hook delays it), and a queue has room
// for [Slots] messages of a stream in one direction. Ordinary memory is copied
// into the queue; memory of the endpoint's Allocator is lent, and Sent counts it
// when the receiver has released it. That is how shared memory behaves;
// Network.Credit makes pairs of hosts behave like a socket instead.
//
// # Duties
//
// Endpoints may belong to different goroutines. Options.Wake is called by
// whoever moves something, without a lock held; it must not call back into the
// endpoint.
//
//	var n mem.Network
//	a, err := n.Open(transport.Options{Streams: 1, MaxMessage: 1 << 20})
//	b, err := n.Open(transport.Options{Streams: 1, MaxMessage: 1 << 20})
//	c, err := a.Conn(transport.Key{Self: 0, Peer: 1}, b.Address())
//	ok, err := c.Stream(0).Send(tag, buf)
package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// Name is what Endpoint.Name says.
const Name = "mem"

// Slots is the number of messages that a stream holds in one direction.
const Slots = 8

// A Network joins endpoints. The zero value is an empty network. It may be used
// from several goroutines, and must not be copied. Hosts on it can fail, see [Network.Host].
type Network struct {
	mu    sync.Mutex
	last  uint64               // id of the newest endpoint; they begin at 1
	open  map[uint64]*endpoint // those not closed
	links map[linkKey]*link    // those not closed at both ends

	of    *Network          // what this is a host's view of, or nil
	host  string            // then
	hosts map[uint64]string // of endpoints that hosts opened
	cut   map[string]bool   // hosts, by Cut
	dead  map[string]bool   // hosts, by Kill

	// Credit, if not nil, says for two hosts how many bytes may be under way between them, in each direction of a stream; 0: they
	// share memory. With credit nothing is lent to the reader: a message stays in its sender's memory, whatever that is, until the
	// credit suffices or nothing else is under way, and Progress copies it then. Set it before anything is opened. It is called
	// with a lock held.
	Credit func(a, b string) int

	// Dwell, if not nil, says how long a reader at host b takes to read what host a has lent it: a View or Recv that is asked for comes
	// only then, but is under way, to the sender, from the beginning; of memory that is taken back meanwhile it sees rubbish. Set it
	// before anything is opened. It is called with a lock held.
	Dwell func(a, b string) time.Duration
}

// Open adds an endpoint. Its address holds in this network alone.
func (n *Network) Open(o transport.Options) (transport.Endpoint, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	host := n.host
	if n.of != nil {
		n = n.of
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[uint64]*endpoint{}
		n.links = map[linkKey]*link{}
	}
	n.last++
	if host != "" {
		n.hosts[n.last] = host
	}
	e := &endpoint{network: n, id: n.last, options: o, conns: map[transport.Key]*conn{}}
	n.open[e.id] = e
	return e, nil
}

var addressMagic = []byte("gccl-mem")

func (e *endpoint) Address() []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(addressMagic), e.id)
}

// parseAddress returns the endpoint's id.
func (n *Network) parseAddress(address []byte) (uint64, error) {
	rest, ok := bytes.CutPrefix(address, addressMagic)
	if !ok || len(rest) != 8 {
		return 0, fmt.Errorf("mem: %q is not the address of a mem endpoint", address)
	}
	id := binary.BigEndian.Uint64(rest)
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == 0 || id > n.last {
		return 0, fmt.Errorf("mem: no endpoint %d in this network, which has had %d", id, n.last)
	}
	return id, nil
}

// agree compares the options that both ends must have in common.
func agree(ours, theirs transport.Options) error {
	var field string
	var mine, other any
	switch {
	case ours.Streams != theirs.Streams:
		field, mine, other = "Streams", ours.Streams, theirs.Streams
	case ours.MaxMessage != theirs.MaxMessage:
		field, mine, other = "MaxMessage", ours.MaxMessage, theirs.MaxMessage
	case ours.Checksum != theirs.Checksum:
		field, mine, other = "Checksum", ours.Checksum, theirs.Checksum
	case ours.FirstSeq != theirs.FirstSeq:
		field, mine, other = "FirstSeq", ours.FirstSeq, theirs.FirstSeq
	case !bytes.Equal(ours.Secret, theirs.Secret):
		return errors.New("the peer does not know our secret")
	default:
		return nil
	}
	return fmt.Errorf("%w: transport options: %s is %v here and %v at the peer", transport.ErrMismatch, field, mine, other)
}
