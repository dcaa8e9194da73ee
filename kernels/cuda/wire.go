package cuda

import (
	_ "embed"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Limits of the traffic between GPUs.
const (
	MaxSites   = 8  // GPUs that one launch has to do with
	MaxStripes = 64 // of a FIFO

	ll128Words      = 497
	ll128Rows       = 128
	maxCopies       = 96
	maxCopyPointers = 256
	wireThreads     = 512
	pushThreads     = 544
)

// StageRows is where a stage's memory for rows of lines and for slots begins; what is before is zero at first, and the kernels' own.
// A stage is a GPU's memory for the traffic of one communicator, which all its GPUs map. See wire.h.
const StageRows = 64 << 10

// ReportOver is where in a report of exchanges those that are over are counted, in bytes.
const ReportOver = 64

// A WireKernel is one of the kernels in wire.cu. They wait for the launches on other GPUs that belong to theirs.
type WireKernel uint8

const (
	ll128Bytes WireKernel = iota
	bulkBytes
	messagesBytes
	numWireBytes
)

// wireDTypes are the types that wire.cu folds, the first ones of kernels.DType.
const wireDTypes = 10

const numWireKernels = numWireBytes + 2*wireDTypes*numRedOps

// wireFold returns the exchange's or the push's kernel that folds by d and op. Types that have none are a *kernels.UnsupportedError.
func wireFold(d kernels.DType, op kernels.RedOp, push bool) (WireKernel, error) {
	k, err := FoldKernel(d, op)
	if err != nil {
		return 0, err
	}
	if int(d) >= wireDTypes {
		return 0, &kernels.UnsupportedError{Kernel: "fold between GPUs", Device: "cuda", DType: d, Accepted: "the types of up to kernels.Bfloat16"}
	}
	w := numWireBytes + 2*WireKernel(k-numBytes)
	if push {
		w++
	}
	return w, nil
}

// CrossesLinks reports whether there are kernels between GPUs that fold by d and op.
func CrossesLinks(d kernels.DType, op kernels.RedOp) bool {
	_, err := wireFold(d, op, false)
	return err == nil
}

// fold is the kernel in kernels.cu that has its type and operator.
func (k WireKernel) fold() Kernel { return numBytes + Kernel(k-numWireBytes)/2 }

// exchanges reports whether it is one of the kernels of LL128.
func (k WireKernel) exchanges() bool {
	return k == ll128Bytes || k >= numWireBytes && (k-numWireBytes)%2 == 0
}

func (k WireKernel) name() string {
	if k < numWireBytes {
		return [...]string{"gccl_ll128_bytes", "gccl_bulk_bytes", "gccl_messages_bytes"}[k]
	}
	name, role := k.fold().name(), "gccl_ll128_"
	if (k-numWireBytes)%2 == 1 {
		role = "gccl_push_"
	}
	return role + name[len("gccl_move_"):]
}

// From compute capability 9.0 on an exchange may begin before the kernel ahead of it has ended.
const overlapCapability = 9

//go:embed zwire_sm80.ptx.gz
var wire8 []byte

//go:embed zwire_sm90.ptx.gz
var wire9 []byte

// loadWire compiles the kernels, once.
func (d *Device) loadWire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wireModule != 0 {
		return nil
	}
	packed := wire8
	if d.info.Major >= overlapCapability {
		packed = wire9
	}
	text, err := unpack(packed)
	if err != nil {
		return err
	}
	if d.wireModule, err = cu.ModuleLoad(d.ctx, d.edit(text)); err != nil {
		return err
	}
	for k := range WireKernel(numWireKernels) {
		if k >= numWireBytes && !k.fold().exists() {
			continue
		}
		if d.wire[k], err = cu.ModuleFunction(d.ctx, d.wireModule, k.name()); err != nil {
			return err
		}
		if _, err = cu.FunctionAttribute(d.ctx, d.wire[k], cu.FunctionRegisters); err != nil { // loads it, whatever the driver's laziness
			return fmt.Errorf("%s: %w", k.name(), err)
		}
	}
	return nil
}

// Linked reports whether the devices have been connected and reach each other's memory by a link that keeps the order and wholeness
// of what is stored, as NVLink does; one GPU under two handles is linked.
func (d *Device) Linked(peer *Device) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.linked[peer.info.Ordinal]
}

// link notes how d reaches a peer.
func (d *Device) link(peer *Device) error {
	yes := d.info.Ordinal == peer.info.Ordinal
	if !yes {
		atomics, err := cu.PeerAttribute(d.info.Ordinal, peer.info.Ordinal, cu.PeerNativeAtomics)
		if err != nil {
			return err
		}
		yes = atomics != 0
	}
	if !yes {
		return nil
	}
	if err := d.loadWire(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.linked == nil {
		d.linked = map[int]bool{}
	}
	d.linked[peer.info.Ordinal] = true
	return nil
}

// A Wire is a launch of one of these kernels: an [LL128], a [Push] or a [Bulk].
type Wire interface {
	parts() (args unsafe.Pointer, k WireKernel, blocks, threads uint32)
	key(to []byte) []byte // appends what of the arguments the kernel reads
}

// Threads returns how many a wire's launch has.
func Threads(w Wire) int {
	_, _, blocks, threads := w.parts()
	return int(blocks) * int(threads)
}

// LaunchWire is Launch of a wire, after what it waits for besides, and with done recorded behind it; id is that of the stream. In a capture, which it
// reports, these events are left out, and id is 0. All blocks run at once, or the launch fails.
func (d *Device) LaunchWire(w Wire, on Stream, others []Stream, j *Join, waits Waits, done Event) (id StreamID, captured bool, err error) {
	args, l := d.wireLaunch(w)
	before, after, others := j.events(others)
	return cu.LaunchAfter(d.ctx, &l, args, on, others, before, after, waits, done)
}

func (d *Device) wireLaunch(w Wire) (args unsafe.Pointer, l cu.Launch) {
	args, k, blocks, threads := w.parts()
	return args, cu.Launch{Function: d.wire[k], Columns: blocks, Rows: 1, Threads: threads, Cooperative: true, Overlaps: k.exchanges() && d.info.Major >= overlapCapability}
}
