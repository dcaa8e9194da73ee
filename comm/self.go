package comm

import (
	"context"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/kernels/cpu"
)

// selfQueue matches sends of a rank to itself with its receives from itself, in order. The communicator's lock guards
// it. At most one of the two lists has members.
type selfQueue struct{ sends, recvs []*run }

// startSelf matches r with the oldest counterpart, and copies, or leaves it to be matched. Where the two are not alike it fails the communicator, and
// reports false. The communicator's lock is held.
func (c *Comm) startSelf(r *run) bool {
	mine, other := &c.self.sends, &c.self.recvs
	if r.call.Kind == KindRecv {
		mine, other = other, mine
	}
	r.matched = make(chan struct{})
	if len(*other) == 0 {
		*mine = append(*mine, r)
		return true
	}
	o := (*other)[0]
	*other = (*other)[1:]
	send, recv := r, o
	if r.call.Kind == KindRecv {
		send, recv = o, r
	}
	if send.call.Count != recv.call.Count || send.call.DType != recv.call.DType {
		c.fail(&cause{class: "mismatch", ranks: []int{c.rank}, text: fmt.Sprintf("%v of rank %d to itself meets %v", &send.call, c.rank, &recv.call), from: -1})
		return false
	}
	cpu.Copy(recv.call.Dst.Ptr, send.call.Src.Ptr, send.call.Count*send.call.DType.Size())
	close(send.matched)
	close(recv.matched)
	return true
}

// waitSelf waits until r is matched. When ctx or the time for a call ends first, the communicator fails.
func (r *run) waitSelf(ctx context.Context) error {
	c := r.comm
	const advice = "begin the receive and the send by Start, or in one Group"
	limits := &c.family.cfg
	warn, late := time.NewTimer(limits.WarnAfter), time.NewTimer(limits.CallTimeout)
	defer warn.Stop()
	defer late.Stop()
	for {
		select {
		case <-r.matched:
			return nil
		case <-warn.C:
			c.log.Warn("a call waits", "call", r.call.String(), "seq", r.seq, "for", limits.WarnAfter, "ranks", []int{c.rank},
				"because", "this rank has not made the other half of a message to itself: "+advice)
			continue
		case <-c.broken:
		case <-ctx.Done():
			c.fail(context.Cause(ctx))
		case <-late.C:
			text := fmt.Sprintf("%v (sequence %d) of rank %d with itself was not matched in %v: %s", &r.call, r.seq, c.rank, limits.CallTimeout, advice)
			c.fail(&cause{class: "timeout", ranks: []int{c.rank}, text: text, from: -1})
		}
		return r.outcome()
	}
}
