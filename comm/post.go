package comm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/collective/gpu"
)

// posts reports whether the call is a message that goes over links.
func (c *Call) posts(of *Comm) bool { return c.Kind.pointToPoint() && c.crosses(of) }

// queuePosts queues messages over links: those of a communicator together, but for such as touch what an earlier one writes, or the other way round,
// which come behind. Messages of communicators stand in an order that all ranks know, for on one stream they wait for each other.
func (g groupOrder) queuePosts(calls []Call) (errs []error) {
	for len(calls) > 0 && len(errs) == 0 {
		n := 1
		for n < len(calls) && !calls[n].awaits(calls[:n]) {
			n++
		}
		var comms []*Comm
		lists := map[*Comm][]Call{}
		for _, call := range calls[:n] {
			if err := g.follow(&call); err != nil {
				errs = append(errs, err)
				continue
			}
			if lists[call.Comm] == nil {
				comms = append(comms, call.Comm)
			}
			lists[call.Comm] = append(lists[call.Comm], call)
		}
		slices.SortFunc(comms, func(a, b *Comm) int { return cmp.Compare(a.id, b.id) })
		for _, c := range comms {
			errs = append(errs, c.post(lists[c])...)
		}
		calls = calls[n:]
	}
	return errs
}

// post queues messages of this communicator. It waits for nobody, but where the GPU is far behind.
func (c *Comm) post(calls []Call) (errs []error) {
	list := make([]gpu.Message, 0, len(calls))
	var bytes []int64
	captured := false
	for i := range calls {
		call := &calls[i]
		m, n, err := c.messageOf(call)
		if err == nil {
			var graph bool
			if graph, err = c.family.device.Capturing(call.Stream); err == nil && len(list) > 0 && graph != captured {
				err = fmt.Errorf("comm %s: %v is captured in a graph or other messages of its group are, not both: %w", c.name(), call, ErrUnsupported)
			}
			if err == nil {
				captured = graph
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list, bytes = append(list, m), append(bytes, n)
	}
	if len(errs) > 0 { // what is behind it in its direction would be taken for it
		return errs
	}
	c.mu.Lock()
	failed := c.reason() != nil
	if !failed && !captured {
		for _, n := range bytes {
			c.count(n, 0)
		}
	}
	c.mu.Unlock()
	if !failed {
		err := c.part.Post(list)
		if err == nil {
			return errs
		}
		c.fail(fmt.Errorf("%v on %v: %w", &calls[0], c.family.device, err)) // others wait for it
	}
	return append(errs, (&run{comm: c, call: calls[0]}).outcome())
}

// messageOf checks a message and returns it as package gpu has it.
func (c *Comm) messageOf(call *Call) (m gpu.Message, bytes int64, err error) {
	if err := c.checkShape(call); err != nil {
		return m, 0, err
	}
	src, dst, err := c.sizes(call)
	if err == nil {
		err = c.checkMemory(call, src, dst, false)
	}
	if err != nil {
		return m, 0, err
	}
	if own := c.family.device; own.Device.Device() != call.memory().Device {
		return m, 0, argument("%v: memory on %v, but Config.Device is %v", call, call.memory().Device, own)
	}
	m = gpu.Message{Send: call.Kind == KindSend, Rank: c.rank, Peer: call.Peer, DType: call.DType, Count: call.Count, Stream: call.Stream}
	if m.Ptr = call.Dst.Ptr; m.Send {
		m.Ptr = call.Src.Ptr
	}
	return m, src + dst, nil
}
