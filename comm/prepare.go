package comm

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
)

// signature is everything about a collective but its memory: calls with the same signature run the same way.
type signature struct {
	kind      Kind
	dtype     kernels.DType
	redop     kernels.RedOp // of kinds that combine numbers; else zero, as what a call says counts for nothing
	inPlace   bool
	count     int
	root      int
	algorithm string // asked for; may be empty
	scaled    bool   // by factors of the ranks' own
	whole     int    // elements of the call that it is a piece of; 0: none
}

func (c *Call) signature(inPlace bool) signature {
	return signature{c.Kind, c.DType, c.redop(), inPlace, c.Count, c.Root, c.Algorithm, c.Factor.Set, c.whole}
}

// prepared is a signature made ready: what Do needs beside the memory. It is immutable.
type prepared struct {
	signature
	algorithm string
	lanes     int
	src, dst  int64  // bytes of the buffers
	digest    uint32 // of all that must be equal on all ranks

	plans  []*collective.Plan // by channel
	layout collective.Layout
	fold   cpu.Reduce
	preMul cpu.PreMulReduce
	factor float64                                        // of an average
	post   func(dst unsafe.Pointer, n int, divisor int64) // of an integer average
	outs   int                                            // elements that post runs over
	apart  uintptr                                        // in place, how far Src is behind Dst
	alike  bool                                           // calls differ in nothing but their memory
	small  bool                                           // … and that is not worth a look where it lies, for it is copied anyway
}

// maxPlanBytes and maxPrepared bound what a communicator keeps: the hot path needs one of each.
const (
	maxPlanBytes = 4 << 20
	maxPrepared  = 256
)

// planCache keeps plans by what they depend on, and prepared calls by signature.
type planCache struct {
	mu       sync.Mutex
	plans    map[planKey]*collective.Plan
	bytes    int
	prepared map[signature]*prepared
	onDevice map[signature]*prepared // of calls on device memory
}

type planKey struct {
	kind      collective.Kind
	root      int
	algorithm string
	channel   int
	collective.Options
}

// sizes returns the bytes of the buffers that a call of this kind needs on this rank, or an error when they do not
// fit an address space.
func (c *Comm) sizes(call *Call) (src, dst int64, err error) {
	elem := int64(call.DType.Size())
	if call.Kind.pointToPoint() {
		if int64(call.Count) > (1<<62)/elem {
			return 0, 0, argument("%v: more than 2^62 bytes", call)
		}
		if call.Kind == KindSend {
			return int64(call.Count) * elem, 0, nil
		}
		return 0, int64(call.Count) * elem, nil
	}
	k := collective.Kind(call.Kind)
	in, out := k.Blocks(c.Size())
	if int64(call.Count) > (1<<62)/elem/int64(max(in, out)) {
		return 0, 0, argument("%v over %d ranks: more than 2^62 bytes", call, c.Size())
	}
	shape := collective.Shape{Kind: k, Ranks: c.Size(), Root: call.Root}
	if k != collective.Barrier && shape.HasIn(c.rank) {
		src = int64(in) * int64(call.Count) * elem
	}
	if k != collective.Barrier && shape.HasOut(c.rank) {
		dst = int64(out) * int64(call.Count) * elem
	}
	return src, dst, nil
}

// prepare makes a signature ready, or finds it ready.
func (c *Comm) prepare(sig signature, call *Call) (*prepared, error) {
	pc := &c.plans
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if p := pc.prepared[sig]; p != nil {
		return p, nil
	}
	p := &prepared{signature: sig}
	var err error
	if p.src, p.dst, err = c.sizes(call); err != nil {
		return nil, err
	}
	kind, elem := collective.Kind(sig.kind), sig.dtype.Size()
	choice, err := c.choose(c.shape(kind, sig.root, 0), sig.count, elem, sig.algorithm)
	if err != nil {
		return nil, err
	}
	p.algorithm, p.lanes = choice.Algorithm, choice.Lanes
	opt := collective.Options{InPlace: sig.inPlace}
	if kind.Reduces() && kind != collective.Barrier {
		device, err := cpu.Choose(c.family.cfg.CPU)
		if err != nil {
			return nil, err
		}
		if err := p.reduction(device, c.Size()); err != nil {
			return nil, err
		}
		opt.Scale = p.preMul != nil
	} else {
		p.fold = func(unsafe.Pointer, []unsafe.Pointer, int) {} // of a Barrier's nothing
	}
	for channel := range c.channels(kind, p.algorithm, p.lanes) {
		plan, err := c.plan(planKey{kind, sig.root, p.algorithm, channel, opt})
		if err != nil {
			return nil, err
		}
		p.plans = append(p.plans, plan)
	}
	p.layout = collective.Layout{Count: sig.count, Elem: elem, Round: max(choice.Round, 1), Pieces: p.plans[0].Pieces}
	in, out := kind.Blocks(c.Size())
	if err := p.layout.Check(max(in, out)); err != nil {
		return nil, argument("%v: %w", call, err)
	}
	p.lanes = min(p.lanes, p.layout.Rounds())
	p.outs = sig.count
	p.apart = c.apart(call)
	p.alike = p.post == nil && !p.scaled
	p.small = p.alike && p.src < sharedFrom && p.dst < sharedFrom
	p.digest = p.sum()
	if len(pc.prepared) >= maxPrepared || pc.prepared == nil {
		pc.prepared = map[signature]*prepared{}
	}
	pc.prepared[sig] = p
	return p, nil
}

// tuner remembers for all ranks of this process.
var tuner tune.Tuner

// choose is the tuner's choice, within what the call or the configuration asks for.
func (c *Comm) choose(shape collective.Shape, count, elem int, name string) (tune.Choice, error) {
	name = c.named(Kind(shape.Kind), name)
	if c.Size() == 1 { // a copy, whatever the name
		if name != "" && !offers(shape.Kind, name) {
			return tune.Choice{}, argument("no algorithm %q for %v", name, shape.Kind)
		}
		return tune.Choice{Algorithm: collective.Catalog(shape.Kind)[0].Name, Round: max(count, 1), Lanes: 1}, nil
	}
	if name == "" {
		return tuner.Choose(c.model, shape, count, elem)
	}
	choice, err := tuner.With(c.model, shape, count, elem, name)
	if err != nil {
		return choice, argument("%w", err)
	}
	return choice, nil
}

// named is the algorithm that a call or else the configuration names; "" if neither does, or the configuration names one of other kinds.
func (c *Comm) named(kind Kind, name string) string {
	if all := c.family.cfg.Algorithm; name == "" && all != "" && offers(collective.Kind(kind), all) {
		return all
	}
	return name
}

// reduction finds the kernels of the redop.
func (p *prepared) reduction(device cpu.Implementation, ranks int) (err error) {
	if p.fold, err = device.Reducer(p.dtype, p.redop); err != nil {
		return argument("%w", err)
	}
	if p.scaled {
		p.preMul, err = device.PreMul(p.dtype)
		return err
	}
	if p.redop != kernels.Avg {
		return nil
	}
	if p.dtype.IsFloat() {
		p.factor = 1 / float64(ranks)
		p.preMul, err = device.PreMul(p.dtype)
	} else {
		p.post, err = device.PostDiv(p.dtype)
	}
	return err
}

// plan returns a plan from the cache, or compiles it. The cache's lock is held.
func (c *Comm) plan(k planKey) (*collective.Plan, error) {
	pc := &c.plans
	if p := pc.plans[k]; p != nil {
		return p, nil
	}
	s, err := c.schedule(k.kind, k.root, k.algorithm, k.channel)
	if err != nil {
		return nil, argument("%w", err)
	}
	p, err := collective.Compile(s, k.Options)
	if err != nil {
		return nil, err
	}
	if pc.bytes+p.Bytes() > maxPlanBytes || pc.plans == nil {
		pc.plans, pc.bytes, pc.prepared = map[planKey]*collective.Plan{}, 0, nil
	}
	pc.plans[k] = p
	pc.bytes += p.Bytes()
	return p, nil
}

// sum is a digest of all that must be equal on all ranks. In place or not is a rank's own affair.
func (p *prepared) sum() uint32 {
	h := fnv.New32a()
	var b [8]byte
	for _, x := range []uint64{uint64(p.kind), uint64(p.dtype), uint64(p.redop), uint64(p.count), uint64(p.root), uint64(p.lanes), uint64(p.layout.Round)} {
		binary.LittleEndian.PutUint64(b[:], x)
		h.Write(b[:])
	}
	h.Write([]byte(p.algorithm))
	if p.scaled {
		h.Write([]byte{1})
	}
	if p.whole != 0 {
		binary.LittleEndian.PutUint64(b[:], uint64(p.whole))
		h.Write(b[:])
	}
	return h.Sum32()
}

// Choice says which algorithm a call would take, in how many rounds and lanes, and why: what the tuner considered.
func (c *Comm) Choice(call Call) (tune.Choice, error) {
	if err := c.checkShape(&call); err != nil {
		return tune.Choice{}, err
	}
	if call.Kind.pointToPoint() {
		return tune.Choice{}, argument("%v has no algorithm", call.Kind)
	}
	return c.choose(c.shape(collective.Kind(call.Kind), call.Root, 0), call.Count, call.DType.Size(), call.Algorithm)
}

func offers(k collective.Kind, name string) bool {
	return slices.ContainsFunc(collective.Catalog(k), func(a collective.Algorithm) bool { return a.Name == name })
}

func knownAlgorithm(name string) bool { return slices.Contains(algorithmNames(), name) }

// algorithmNames lists the catalog's names, each once.
func algorithmNames() []string {
	var names []string
	for _, k := range collective.Kinds() {
		for _, a := range collective.Catalog(k) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
