package comm

import (
	"fmt"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// Kind says what a Call does: one of collective's kinds, or point-to-point.
type Kind uint8

// The kinds of calls.
const (
	KindAllReduce     = Kind(collective.AllReduce)
	KindAllGather     = Kind(collective.AllGather)
	KindReduceScatter = Kind(collective.ReduceScatter)
	KindBroadcast     = Kind(collective.Broadcast)
	KindReduce        = Kind(collective.Reduce)
	KindAllToAll      = Kind(collective.AllToAll)
	KindBarrier       = Kind(collective.Barrier)
	KindSend          = KindBarrier + 1 // Src to Peer
	KindRecv          = KindBarrier + 2 // Dst from Peer
)

func (k Kind) String() string {
	switch k {
	case KindSend:
		return "send"
	case KindRecv:
		return "recv"
	}
	return collective.Kind(k).String()
}

// pointToPoint reports whether the kind is Send or Recv.
func (k Kind) pointToPoint() bool { return k == KindSend || k == KindRecv }

// combines reports whether the kind combines the ranks' numbers, by RedOp.
func (k Kind) combines() bool {
	return !k.pointToPoint() && collective.Kind(k).Reduces() && k != KindBarrier
}

// Call is one operation asked for: plain data. All ranks of Comm must ask for the same
// collectives in the same order, with equal Kind, Count, DType, Root and Algorithm, of AllReduce, ReduceScatter and Reduce RedOp,
// all or none with a Factor; a Send on one rank needs a Recv on its peer, in the same order between the two.
//
// Count is in elements of one block:
//
//	kind            Src holds             Dst holds
//	AllReduce       Count                 Count
//	AllGather       Count                 Size·Count, rank r's at r·Count
//	ReduceScatter   Size·Count            Count, the sum of all ranks' block Rank
//	Broadcast       Count (root only)     Count
//	Reduce          Count                 Count (root only)
//	AllToAll        Size·Count, to r at r·Count    Size·Count, from r at r·Count
//	Barrier         nothing               nothing
//	Send / Recv     Count / nothing       nothing / Count
//
// In place: Dst and Src the same memory; in an AllGather Src is Dst's block Rank, in a ReduceScatter Dst
// is Src's block Rank. Any other overlap is an error. The memory is borrowed until the call is done; Src is
// not written unless the call is in place.
//
// Memory of a GPU (Src and Dst on one device): the call is queued on Stream, behind what is there, and is done as the stream comes to it: Do,
// Wait and Group return once it is queued on all ranks' streams, with the errors that are known by then. The memory is borrowed until the
// stream has done it. Calls of one Group are done in one launch where they can be; those that touch memory which another one of the rank's
// calls writes are done in the order of the Group. Types of 8 bits are reduced on GPUs from compute capability 9.0 on.
//
// Between processes a call returns once it is queued here, whatever other ranks do. What goes wrong later is said by Comm.Err; the stream goes on all
// the same, within some seconds of it. A send and a receive that wait for each other belong in one Group.
//
// Where all ranks are processes of one host, up to eight, each with a GPU of its own, the GPUs linked to each other, and Config.Transport is auto, a collective is a
// kernel on each GPU that exchanges lines with the others', and a Group's messages of one communicator are another, in which all go on at once; of more than 158 as
// many of each direction as there is room for, so that ranks have to group such alike. A send is done once the receiver has it in its FIFO, of four messages and
// 2 MiB, or has received it. Who is some hundred calls ahead of the GPU waits for it. Kernels wait for each other, so calls of several communicators on one stream
// stand in one order on all ranks, and so do long ones of more than two communicators at a time, messages counted apart; nothing may be queued in front of a call that waits for what is
// behind it on another rank. In a Group collectives stand in the order of calls, and messages behind them; where they touch the same memory they stand in the order of
// the Group, too, and as others may wait for such a message elsewhere, two Groups are better. Each rank may capture a call in a graph of its own; replays stand in the
// order of the communicator's other calls, and end before Close.
//
// Otherwise, and for factors, named algorithms, averages of integers and reductions of types of 8-bit floating-point numbers, what goes between processes, or
// between GPUs that must not use each other's memory, goes by way of host memory. Where several ranks of this process share the GPU, and of a Group with
// several calls of which some are longer than a MiB, the caller waits for the other ranks, so that one goroutine has to put the calls of its ranks in one Group.
// In a capture such a call is ErrUnsupported if it is longer than 1 MiB, all ranks' blocks together, or another rank has the GPU, too; captured calls of several
// communicators stand in one order on all ranks; what was captured is replayed in the order of the communicator's other calls, and is of no more use after Close.
type Call struct {
	Comm     *Comm
	Kind     Kind
	Dst, Src kernels.Mem
	Count    int
	DType    kernels.DType
	RedOp    kernels.RedOp
	// Factor multiplies this rank's own input in a Sum of floating-point numbers; its value is each rank's own affair, that there is one is
	// not. In memory of a GPU (kernels.FactorAt) it goes with that GPU's memory alone.
	Factor    kernels.Factor
	Root      int         // of Broadcast and Reduce
	Peer      int         // of Send and Recv
	Stream    cuda.Stream // a CUstream of the device's primary context; zero: the default stream. Not used for host memory
	Algorithm string      // a name of collective.Catalog; empty: Config.Algorithm, and if that is empty the tuner's choice

	place int // in a Group, from 1 on
	whole int // Count of the call on GPU memory that this is a proxy's piece of; 0: none
}

// redop is RedOp where it counts, and zero where it does not.
func (c *Call) redop() kernels.RedOp {
	if c.Kind.combines() {
		return c.RedOp
	}
	return 0
}

func (c *Call) String() string {
	s := fmt.Sprintf("%v of %d %v", c.Kind, c.Count, c.DType)
	switch {
	case c.Kind.pointToPoint():
		return fmt.Sprintf("%s (peer %d)", s, c.Peer)
	case collective.Kind(c.Kind).Rooted():
		s = fmt.Sprintf("%s (root %d)", s, c.Root)
	}
	if c.Kind.combines() {
		s += " " + c.RedOp.String()
	}
	if c.Factor.Set {
		s += " of scaled inputs"
	}
	return s
}
