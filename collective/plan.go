package collective

import (
	"fmt"
	"strings"
	"unsafe"
)

// Ref is where an op of a plan reads or writes: a piece of a block of In, Out or Temp, or
// a view.
type Ref struct {
	Block int32 // of a view: its number, below Plan.Views
	Piece int32 // of a view: the piece whose length it has
	Space Space
	Flags Flags
}

// Flags of a Ref among the sources of an op.
type Flags uint8

const (
	// Scaled: the elements are multiplied by the call's factor before they are used.
	Scaled Flags = 1 << iota
	// Last: this is the last use of a view; release it.
	Last
	// Lend: a send may let the peer read the memory where it lies until the peer releases
	// its view. Otherwise the transport must let go of it when the peer has taken the view.
	Lend
)

// IsView reports whether r is a view.
func (r Ref) IsView() bool { return r.Space == view }

// OpCode says what an Op does.
type OpCode uint8

// The codes of a plan's ops.
const (
	OpSend  OpCode = iota // hand the one source to Peer
	OpRecv                // receive Peer's next message into Dst
	OpView                // have Peer's next message shown as view Dst
	OpFold                // Dst = sum of the sources in their order
	OpCopy                // Dst = the one source
	OpReuse               // wait until the memory of all messages to Peer, but for the last Behind, is ours again
)

var opNames = [...]string{"send", "recv", "view", "fold", "copy", "reuse"}

func (c OpCode) String() string {
	if int(c) < len(opNames) {
		return opNames[c]
	}
	return fmt.Sprintf("op(%d)", uint8(c))
}

// Op is one action of a plan. It holds no pointers.
type Op struct {
	Dst  Ref
	Peer int32  // of Send, Recv, View, Reuse
	Src  uint32 // where in Plan.Srcs the sources begin; of Reuse: Behind
	Msg  uint32 // number of the message among those of this direction with Peer, in one round
	NSrc uint16 // number of sources
	Code OpCode
}

// Behind is how many messages a Reuse leaves unreleased: those sent to Peer after the one
// it waits for.
func (o *Op) Behind() uint64 { return uint64(o.Src) }

// Plan is a compiled schedule: what one rank does in a round, ready to run any number
// of times with any count, type and operator. It is immutable.
type Plan struct {
	Shape Shape
	Rank  int
	Options
	Pieces int
	Temps  int // blocks of Temp, each as long as the longest range of a round
	Views  int // views in it; at most one of a peer is out at a time
	Ops    []Op
	Srcs   []Ref
	// SendsTemp: some message is sent from Temp, so that a round must wait for
	// its readers before the next one may use the same Temp.
	SendsTemp bool
	To        []int32 // peers that are sent to, in order
	// Landings are ops: receives into Out, one of a peer, for which the peer waits for something of this rank's first, and whose memory no op before
	// them in the round touches. From the start of a round on, the peer may write their message where it is to be.
	Landings []int32
}

// Linear is the order in which an engine runs the ops: of each step the sends, folds and
// copies that wait for nobody, the receives, the other folds and copies; with reuses before what they are
// for. It is a topological order of what Machine runs.
func (p *Plan) Linear() []Op { return p.Ops }

// Sources returns the sources of an op.
func (p *Plan) Sources(o *Op) []Ref {
	if o.Code == OpReuse {
		return nil
	}
	return p.Srcs[o.Src : o.Src+uint32(o.NSrc)]
}

// Bytes is the memory that the plan holds.
func (p *Plan) Bytes() int {
	return int(unsafe.Sizeof(*p)) + cap(p.Ops)*int(unsafe.Sizeof(Op{})) + cap(p.Srcs)*int(unsafe.Sizeof(Ref{})) + 4*(cap(p.To)+cap(p.Landings))
}

// Describe says in words what op i does.
func (p *Plan) Describe(i int) string {
	o := &p.Ops[i]
	switch o.Code {
	case OpSend:
		lent := ""
		if p.Sources(o)[0].Flags&Lend != 0 {
			lent = ", lent"
		}
		return fmt.Sprintf("send of %v to rank %d (message %d)%s", p.Sources(o)[0], o.Peer, o.Msg, lent)
	case OpRecv:
		return fmt.Sprintf("receive of message %d from rank %d into %v", o.Msg, o.Peer, o.Dst)
	case OpView:
		return fmt.Sprintf("view %d of message %d from rank %d", o.Dst.Block, o.Msg, o.Peer)
	case OpReuse:
		return fmt.Sprintf("reuse of message %d to rank %d (%d behind)", o.Msg, o.Peer, o.Behind())
	}
	var sum strings.Builder
	for k, src := range p.Sources(o) {
		if k > 0 {
			sum.WriteString(" + ")
		}
		sum.WriteString(src.String())
		if src.Flags&Scaled != 0 {
			sum.WriteString(" scaled")
		}
		if src.Flags&Last != 0 {
			sum.WriteString(" last")
		}
		if sum.Len() > maxText {
			sum.WriteString(" …")
			break
		}
	}
	return fmt.Sprintf("%v %v = %v", o.Code, o.Dst, sum.String())
}

func (r Ref) String() string {
	return fmt.Sprintf("%v[%d.%d]", r.Space, r.Block, r.Piece)
}
