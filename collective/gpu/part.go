package gpu

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Part is a rank's part of a communicator whose ranks are processes of one host, each with a GPU of its own, all of which are linked. Its
// calls are LL128 exchanges through stages that the processes map of each other; long ones go round by round. A rank queues its own launch and
// nobody meets on the host: kernels wait for the other ranks', which have to make the same calls in the same order. A call that others make
// otherwise ends on no rank that needs something of it, until Abort. Each rank's calls can be captured in a graph of its own.
//
// Its methods may be called from any goroutine.
type Part struct {
	rank int
	d    *cuda.Device

	mu     sync.Mutex // orders what is queued
	l      *links
	calls  []Call // ours, once for every rank: of others the addresses are not used
	last   Call   // whose program is there,
	ready  bool   // if one is
	closed bool

	reason atomic.Pointer[error] // why no more calls are taken

	look sync.Mutex // held while what the host and the GPU share is used
	gone bool       // it is freed, or about to be

	exchanges chain
	posts     posts
}

// partBlocks is the most of a launch. A block of a long one has a multiprocessor to itself, of which an H200 has 132: such of two communicators run
// beside each other, or one and messages, in whatever order their ranks queue them.
const partBlocks = 64

// NewPart makes the part of rank, of so many, on its device: each rank Exports its stage, and Imports those of all others, before its first call.
// crowd is the most ranks that are on one GPU, which are several only in tests. Close frees it.
func NewPart(rank, ranks, crowd int, d *cuda.Device) (*Part, error) {
	if ranks < 2 || ranks > cuda.MaxSites || rank < 0 || rank >= ranks || crowd < 1 {
		return nil, fmt.Errorf("gpu: rank %d of %d, want 2…%d ranks with a GPU each: %w", rank, ranks, cuda.MaxSites, errors.ErrUnsupported)
	}
	sites := make([]site, ranks)
	for r := range sites {
		sites[r] = site{device: d, ranks: []int{r}, elsewhere: r != rank, active: r == rank}
	}
	p := &Part{rank: rank, d: d, l: makeLinks(sites, ranks, crowd, d.Info().Multiprocessors), calls: make([]Call, ranks)}
	p.l.apart, p.l.lineBlocks = true, partBlocks*crowd
	for r := range sites {
		p.l.siteOf[r] = r
	}
	const half = (stageBytes - cuda.StageRows) / 2 &^ 1023
	err := p.l.open(rank, half, p.Bytes())
	if err == nil {
		err = d.Wait(p.l.side[rank]) // it is zero
	}
	if err == nil {
		err = errors.Join(p.exchanges.open(d), p.posts.open(d))
	}
	if err == nil { // there is no launch before the first, so its event can be any
		err = d.DestroyEvent(p.l.done[rank])
		p.l.done[rank] = p.exchanges.ring[maxAhead-1].done
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gpu: memory for traffic between GPUs of several processes: %w", err), p.Close())
	}
	return p, nil
}

// Bytes is how long the memory is that Export gives: a stage, and behind it memory for messages.
func (p *Part) Bytes() int64 { return stageBytes + cuda.MessageBytes(len(p.calls)) }

// Export returns a new descriptor of the rank's stage, which the caller closes, and has the proof, of 16 bytes, stored there.
func (p *Part) Export(proof [16]byte) (fd int, err error) {
	s := &p.l.stages[p.rank]
	if err := p.d.CopyNow(unsafe.Add(s.mem.Ptr, proofAt), unsafe.Pointer(&proof), int64(len(proof))); err != nil {
		return -1, err
	}
	return p.d.Export(s.mem)
}

// Import maps the stage of another rank, of which a kernel has to find the proof. The descriptor stays the caller's.
func (p *Part) Import(rank, fd int, proof [16]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rank < 0 || rank >= len(p.calls) || rank == p.rank || p.l.at[rank] != nil {
		return fmt.Errorf("gpu: rank %d of %d imports the stage of rank %d: %w", p.rank, len(p.calls), rank, kernels.ErrInvalid)
	}
	m, err := p.d.Import(fd, p.Bytes())
	if err != nil {
		return err
	}
	p.l.stages[rank], p.l.at[rank] = stage{m, p.d}, m.Ptr
	own := p.l.stages[p.rank].mem.Ptr
	return p.d.Prove(unsafe.Add(m.Ptr, proofAt), unsafe.Add(own, proofAt-64), proof[:])
}

// Takes reports whether calls like this one are done here: all kinds, of types that the kernels between GPUs fold, without factors of the
// ranks' own, averages of integers, and named algorithms.
func (p *Part) Takes(call *Call) bool {
	if call.Algorithm != "" || call.Factor.Set || call.divides() {
		return false
	}
	return !call.Kind.Reduces() || call.Kind == collective.Barrier || cuda.CrossesLinks(call.DType, call.RedOp)
}

// Queue queues the rank's part of a collective that Takes accepts, on the call's stream. It waits for no other rank, and allocates nothing
// after the first calls. The number is for Behind; of a call that is captured it is of no use.
func (p *Part) Queue(call *Call, number uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready && *call == p.last { // to repeat a call on the same memory is common
		return p.launch(number)
	}
	p.ready = false
	for r := range p.calls {
		p.calls[r] = *call
		if p.l.at[r] == nil {
			return fmt.Errorf("gpu: rank %d queues a call before it has the stage of rank %d: %w", p.rank, r, kernels.ErrInvalid)
		}
	}
	if err := p.calls[0].check(len(p.calls)); err != nil {
		return err
	}
	name := call.name()
	if call.Count == 0 { // ranks meet all the same: one that alone has no element called something else
		for r := range p.calls {
			p.calls[r].Kind = collective.Barrier
		}
	}
	p.l.sites[p.rank].lead = call.Stream
	how, most := p.round()
	for first := 0; first < max(call.Count, 1); first += most {
		p.l.plan.begin(p.l, p.calls)
		p.l.plan.round(first, min(most, call.Count-first))
		ok, err := p.l.plan.collective(how == byTwoShotLines), error(nil)
		if ok {
			ok, err = p.l.writeLines(&p.calls[0], len(p.calls), name)
		}
		if err == nil && !ok {
			err = fmt.Errorf("gpu: %v, of which %d elements at once do not fit: %w", call, most, errors.ErrUnsupported)
		}
		if err == nil {
			err = p.launch(number)
		}
		if err != nil {
			err = fmt.Errorf("gpu: %v: %w", call, err)
			if first > 0 { // others wait for the rest
				p.Abort(err)
			}
			return err
		}
	}
	p.last, p.ready = *call, most >= call.Count
	return nil
}

// round is how a call's data gets across, and the most elements of a block at once.
func (p *Part) round() (how crossing, most int) {
	call, n := &p.calls[0], int64(len(p.calls))
	payload := func(share int64) int64 { return share / 1024 * 960 }
	pair := payload(p.l.linesShare()) // that a site stores for another
	bytes := int64(call.Count) * int64(call.DType.Size())
	how, room := byLines, pair
	if n > 2 && bytes > tuned.oneShotLines { // pieces are cut at 64 bytes
		switch call.Kind {
		case collective.AllReduce, collective.Reduce: // a piece comes, and the sum of a piece
			how, room = byTwoShotLines, n*(payload(p.l.linesShare()/2)-64)
		case collective.Broadcast:
			how, room = byTwoShotLines, (n-1)*(pair-64)
		}
	}
	if call.Kind == collective.Barrier || bytes == 0 {
		return how, 1
	}
	const grain = 64
	rounds := (bytes + room - 1) / room
	most = int((int64(call.Count) + rounds - 1) / rounds)
	if most = (most + grain - 1) / grain * grain; int64(most)*int64(call.DType.Size()) > room {
		most -= grain
	}
	return how, most
}

// name is what all ranks' calls have in common.
func (c *Call) name() uint32 {
	h := fnv.New32a()
	redop := c.RedOp
	if !c.Kind.Reduces() {
		redop = 0
	}
	var b [24]byte
	for i, v := range [6]int{int(c.Kind), int(c.DType), int(redop), c.Count, c.Count >> 32, c.Root} {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	h.Write(b[:])
	return h.Sum32()
}

// launch queues what was written, once the GPU is not too far behind. The lock is held.
func (p *Part) launch(number uint64) error {
	l, q := p.l, &p.exchanges
	event, err := q.room(&p.reason)
	if err != nil {
		return err
	}
	before := l.done[p.rank]
	l.next[p.rank] = event
	if err := l.launch(byLines); err != nil || l.done[p.rank] == before { // captured
		return err
	}
	q.took(number)
	return nil
}

// Behind is the number of the oldest collective that is not done, or 0: of the last launches that no graph holds. It does not wait. An error is the
// GPU's, which does nothing any more.
func (p *Part) Behind() (number uint64, err error) { return p.exchanges.behind() }

// Begun returns how many exchanges with each rank the GPU has begun, and how many it is through with, of those in graphs, too. It asks nobody: the
// GPU has said so. After Close it is ErrClosed.
func (p *Part) Begun() (begun, over []uint32, err error) {
	p.look.Lock()
	defer p.look.Unlock()
	if p.gone {
		return nil, nil, ErrClosed
	}
	report := unsafe.Add(p.l.words.Host, reportAt)
	for r := range p.calls { // what is over was begun, so it is read first
		over = append(over, (*atomic.Uint32)(unsafe.Add(report, cuda.ReportOver+4*r)).Load())
	}
	for r := range p.calls {
		begun = append(begun, (*atomic.Uint32)(unsafe.Add(report, 4*r)).Load())
	}
	return begun, over, nil
}

// Abort has all kernels that wait for other ranks end, now and in future; their calls are then not done. It takes no more calls, for the reason
// given, which must not be nil. The first one counts. It waits for nothing, and needs nothing of the driver.
func (p *Part) Abort(reason error) {
	if !p.reason.CompareAndSwap(nil, &reason) {
		return
	}
	p.look.Lock()
	defer p.look.Unlock()
	if !p.gone {
		p.l.end()
	}
}

// Close waits for all work on the GPU and frees everything. Kernels that wait for other ranks go on waiting, unless Abort was called. Others may
// still store in the stage, which is theirs, too.
func (p *Part) Close() (err error) {
	if p == nil {
		return nil
	}
	closed := error(ErrClosed)
	p.reason.CompareAndSwap(nil, &closed)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.look.Lock()
	p.gone = true
	p.look.Unlock()
	if p.exchanges.has(p.l.done[p.rank]) {
		p.l.done[p.rank] = 0
	}
	err = p.l.close()
	return errors.Join(err, p.exchanges.close(), p.posts.close())
}
