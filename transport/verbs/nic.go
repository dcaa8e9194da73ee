//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// nic is a port of an open device, with our GID on it and the completion queue of our QPs there.
type nic struct {
	index     int // in endpoint.nics
	device    *ibv.Device
	pd        *ibv.PD
	port      ibv.Port
	mtu       ibv.MTU
	gid       ibv.GIDEntry
	pkeyIndex uint16
	limits    ibv.Limits
	channel   *ibv.Channel
	cq        *ibv.CQ
	events    interface{ Close() error } // ends the watcher of the device
	failure   atomic.Pointer[error]      // why the device is of no use any more, for good
	take      func([]ibv.Completion) (int, error)
	condemn   func(why error) // has the driver call fail

	mu       sync.Mutex        // guards what follows
	queues   map[uint32]*queue // nil: it is being destroyed
	last     uint32
	reserved int // completions that may come
	stale    int // of those, for queues that are gone
	older    int // and for queues that were gone when the completion queue was last empty

	// What the driver alone touches.
	armed bool // the next completion that is polled has made an event
	fired int  // events since they were last drained
}

const firstCQ = 1024

// openPort opens a port of a device, which is given by name and still closed.
func openPort(name string, number int, c Config) (n *nic, err error) {
	n = &nic{queues: map[uint32]*queue{}}
	if n.device, err = ibv.Open(name); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.limits, err = n.device.Limits(); err != nil {
		return n, n.explain(err)
	}
	if n.port, err = n.device.Port(number); err != nil {
		return n, n.explain(err)
	}
	if n.port.LinkLayer == ibv.Unspecified {
		n.port.LinkLayer = ibv.InfiniBand
	}
	n.mtu = n.port.ActiveMTU
	for c.MTU > 0 && n.mtu.Bytes() > c.MTU {
		n.mtu--
	}
	table, err := n.device.GIDs()
	if err != nil {
		return n, fmt.Errorf("verbs: GIDs of %s (rdma-core 32 or later is needed): %w", name, err)
	}
	if n.gid, err = (gidChoice{device: name, port: n.port, table: table, netDev: interfaceOf(c.Addr), forced: c.GIDIndex}).choose(); err != nil {
		return n, err
	}
	if n.pkeyIndex, err = n.findPKey(c.PKey); err != nil {
		return n, err
	}
	if n.pd, err = n.device.AllocPD(); err != nil {
		return n, n.explain(err)
	}
	if n.channel, err = n.device.NewChannel(); err != nil {
		return n, n.explain(err)
	}
	if err := unix.SetNonblock(n.channel.FD(), true); err != nil {
		return n, n.explain(err)
	}
	if n.cq, err = n.device.NewCQ(min(firstCQ, n.limits.MaxCQE), n.channel, 0); err != nil {
		return n, n.explain(err)
	}
	n.take = n.cq.Poll
	rc, _, err := n.pd.NewQP(ibv.RC, n.cq, n.cq, nil, ibv.Caps{SendWR: 1, RecvWR: 1, SendSGE: 1, RecvSGE: 1})
	if err == nil {
		err = rc.Close()
	}
	if err != nil { // EFA has none, so that others had better be told now
		return n, n.explain(fmt.Errorf("it makes no reliable connection: %w", err))
	}
	if m := c.Moderation; m.On {
		switch err := n.cq.Moderate(m.Count, m.Period); {
		case errors.Is(err, errors.ErrUnsupported):
			c.Log.Warn("verbs: completion events are not moderated", "device", name, "reason", err)
		case err != nil:
			return n, n.explain(err)
		}
	}
	return n, nil
}

// findPKey returns the index of a partition key. The highest bit says who is a full member, and is not compared.
func (n *nic) findPKey(want uint16) (uint16, error) {
	if want == 0 {
		return 0, nil
	}
	var have []string
	for i := range n.port.PKeys {
		k, err := n.device.PKey(int(n.port.Number), i)
		if err != nil {
			return 0, n.explain(err)
		}
		if k&0x7fff == want&0x7fff && k != 0 {
			return uint16(i), nil
		}
		if k != 0 {
			have = append(have, fmt.Sprintf("%#04x", k))
		}
	}
	return 0, fmt.Errorf("verbs: %s port %d has no partition key %#04x, but %v: ask the subnet's administrator, or set another (GCCL_PKEY)", n.device.Name(), n.port.Number, want, have)
}

// interfaceOf is the index of the network interface that has the address, or 0.
func interfaceOf(a netip.Addr) int {
	all, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, have := range addresses {
			if n, ok := have.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == a.WithZone("") {
					return i.Index
				}
			}
		}
	}
	return 0
}

// explain adds to a failure on the NIC where it was, and, where it is about pinned memory, the limit and how to raise it.
func (n *nic) explain(err error) error {
	var limit unix.Rlimit
	if errors.Is(err, syscall.ENOMEM) && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		return fmt.Errorf("verbs: %s: %w: %s", n, err, memlockFix(limit.Cur))
	}
	return fmt.Errorf("verbs: %s: %w", n, err)
}

func (n *nic) String() string {
	return fmt.Sprintf("%s port %d GID %d %v", n.device.Name(), n.port.Number, n.gid.Index, addressOf(n.gid.GID))
}

// reserve makes room in the completion queue for so many more that may come at once: when a QP fails, all its requests do.
func (n *nic) reserve(more int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	need, have := n.reserved+more, n.cq.Entries()
	if need > have {
		if need > n.limits.MaxCQE {
			return fmt.Errorf("%w: verbs: %s: a completion queue of %d entries, want %d for one connection more: use less Streams, or smaller Slots", transport.ErrSpace, n, n.limits.MaxCQE, need)
		}
		if err := n.cq.Resize(min(max(need, 2*have), n.limits.MaxCQE)); err != nil {
			return n.explain(err)
		}
	}
	n.reserved = need
	return nil
}

// access is what peers may do by our QPs, to memory that was registered for it.
func (n *nic) access() ibv.Access {
	a := ibv.RemoteWrite | ibv.RemoteRead
	if n.limits.Atomics {
		a |= ibv.RemoteAtomic
	}
	return a
}

// readsMost is as many reads and atomic operations as a QP has under way, each of which takes resources of the device.
const readsMost = 16

func (n *nic) reads() uint8 {
	return uint8(max(1, min(readsMost, n.limits.MaxRDAtomic, n.limits.MaxInitRDAtomic)))
}

// enter makes the queue's completions find it.
func (n *nic) enter(q *queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	q.id = n.last
	n.queues[q.id] = q
}

// leave keeps completions from the queue: when it returns, none is being taken, nor will be.
func (n *nic) leave(q *queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queues[q.id] != nil {
		n.queues[q.id] = nil
	}
}

// vacate forgets the queue, whose QP is gone. Its completions may still lie in the completion queue, but there come no more.
func (n *nic) vacate(q *queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.queues, q.id)
	n.stale += q.sq + q.rq
}

// poll takes a batch of completions, and reports whether there were any, or other news.
func (n *nic) poll(batch []ibv.Completion) bool {
	got, err := n.take(batch)
	if err != nil {
		return n.fail(fmt.Errorf("its completions cannot be taken: %w", err))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if got < len(batch) {
		// The queue was empty: of queues that had gone when it was so the last time nothing is left in it.
		n.reserved -= n.older
		n.older, n.stale = n.stale, 0
	}
	if got == 0 {
		return false
	}
	for i := range batch[:got] {
		c := &batch[i]
		if q := n.queues[uint32(c.ID>>32)]; q != nil {
			q.take(c)
		}
	}
	if n.armed {
		n.armed = false
		// Undrained events only take room in the kernel; FD is edge-triggered.
		if n.fired++; n.fired%64 == 0 {
			n.cq.Drain()
		}
	}
	return true
}

// arm makes the next completion an event, and reports whether the device has failed instead.
func (n *nic) arm() bool {
	if err := n.cq.Arm(); err != nil {
		return n.fail(fmt.Errorf("it cannot be told to wake who sleeps: %w", err))
	}
	n.armed = true
	return false
}

// fail notes that the device is of no use any more, which costs connections their QPs on it, and reports whether that is news. The driver alone calls
// it. Links that no conn has taken up yet find out when one does.
func (n *nic) fail(why error) bool {
	if !n.failure.CompareAndSwap(nil, &why) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, q := range n.queues {
		if q != nil && q.link.conn != nil {
			q.link.forsake()
		}
	}
	return true
}

// failed is why the device is of no use any more, or nil.
func (n *nic) failed() error {
	if why := n.failure.Load(); why != nil {
		return n.explain(fmt.Errorf("the device has failed: %w", *why))
	}
	return nil
}

// without reports whether it is the device that something is refused for, of which there may be others: the kernel has taken it away, or it has
// failed before.
func (n *nic) without(err error) bool {
	return n.failure.Load() != nil || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)
}

// close frees what is the NIC's, in the reverse order of its making.
func (n *nic) close() error {
	var errs []error
	if n.cq != nil {
		n.cq.Drain()
		errs = append(errs, n.cq.Close())
	}
	if n.channel != nil {
		errs = append(errs, n.channel.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	if n.device != nil {
		errs = append(errs, n.device.Close())
	}
	return errors.Join(errs...)
}
