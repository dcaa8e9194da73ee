package verbs

import (
	"fmt"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// A transition is a step of a QP's life: RESET → INIT → RTR → RTS, and from anywhere to ERR or back to RESET.
type transition struct{ from, to ibv.State }

// path is all that the steps of a QP need to know: of our port, of the peer, and of how patient to be.
type path struct {
	port      uint8
	pkeyIndex uint16
	access    ibv.Access
	qkey      uint32 // UD
	av        ibv.AddressVector
	mtu       ibv.MTU
	peerQPN   uint32
	peerPSN   uint32 // the first packet that the peer sends
	psn       uint32 // and we
	timeout   uint8
	retry     uint8
	reads     uint8 // and atomics and atomics under way each way
}

const (
	minRNRTimer = 12 // 0.64 ms
	rnrRetry    = 6  // a receiver without receives breaks the protocol: credit bounds what comes
	most24      = 1<<24 - 1
)

// attributes returns what a QP of a kind has to be given in a transition. It is the whole machine: pure, and the same for every device.
func (t transition) attributes(kind ibv.QPType, p path) (ibv.Attr, error) {
	a := ibv.Attr{Mask: ibv.MaskState, State: t.to}
	connected := kind == ibv.RC || kind == ibv.UC
	if !connected && kind != ibv.UD {
		return a, fmt.Errorf("verbs: %v is no kind of QP that is used here", kind)
	}
	switch t {
	case transition{ibv.Reset, ibv.Init}:
		if p.port == 0 {
			return a, fmt.Errorf("verbs: a QP needs a port to become %v; ports start at 1", t.to)
		}
		a.Mask |= ibv.MaskPKey | ibv.MaskPort
		a.PKeyIndex, a.Port = p.pkeyIndex, p.port
		if connected {
			a.Mask |= ibv.MaskAccess
			a.Access = p.access
		} else {
			a.Mask |= ibv.MaskQKey
			a.QKey = p.qkey
		}
	case transition{ibv.Init, ibv.RTR}:
		if !connected {
			break
		}
		switch {
		case p.mtu.Bytes() == 0:
			return a, fmt.Errorf("verbs: path MTU code %d, want 1 to 5", p.mtu)
		case p.peerQPN < 2 || p.peerQPN > most24:
			return a, fmt.Errorf("verbs: the peer's QP number is %#x, want 0x2 to 0xffffff", p.peerQPN)
		case p.peerPSN > most24:
			return a, fmt.Errorf("verbs: the peer's first packet number is %#x, want at most 0xffffff", p.peerPSN)
		case p.av.Global && p.av.GID == ibv.GID{}:
			return a, fmt.Errorf("verbs: the peer's GID is empty")
		case !p.av.Global && p.av.LID == 0:
			return a, fmt.Errorf("verbs: the peer's LID is 0: is a subnet manager running?")
		}
		a.Mask |= ibv.MaskAV | ibv.MaskMTU | ibv.MaskDestQPN | ibv.MaskRQPSN
		a.AV, a.MTU, a.DestQPN, a.RQPSN = p.av, p.mtu, p.peerQPN, p.peerPSN
		if kind == ibv.RC {
			a.Mask |= ibv.MaskMaxDestRDAtomic | ibv.MaskMinRNRTimer
			a.MaxDestRDAtomic, a.MinRNRTimer = p.reads, minRNRTimer
		}
	case transition{ibv.RTR, ibv.RTS}:
		if p.psn > most24 || p.timeout > 31 || p.retry > 7 {
			return a, fmt.Errorf("verbs: packet number %#x, timeout %d, retries %d: want at most 0xffffff, 31, 7", p.psn, p.timeout, p.retry)
		}
		a.Mask |= ibv.MaskSQPSN
		a.SQPSN = p.psn
		if kind == ibv.RC {
			a.Mask |= ibv.MaskTimeout | ibv.MaskRetry | ibv.MaskRNRRetry | ibv.MaskMaxRDAtomic
			a.Timeout, a.Retry, a.RNRRetry, a.MaxRDAtomic = p.timeout, p.retry, rnrRetry, p.reads
		}
	default:
		if t.to != ibv.Err && t.to != ibv.Reset {
			return a, fmt.Errorf("verbs: a QP cannot go from %v to %v", t.from, t.to)
		}
	}
	return a, nil
}
