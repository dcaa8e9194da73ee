package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// Devices are the GPUs of a run, and how it uses them.
type Devices struct {
	GPUs  []int // by CUDA's ordinals; ranks take them by turns
	Graph bool  // a batch is captured once, and replayed
	Local int   // our rank's number on its host, where each rank runs in a process of its own
}

// RunOnDevice measures and checks collectives on the memory of GPUs, of so many ranks in this process. An iteration is a batch of Config.Agg calls,
// one after the other, of all ranks from one goroutine; its time is the first GPU's, by events, divided by that.
func RunOnDevice(ctx context.Context, cfg Config, ranks int, on Devices, cc comm.Config, out Output) (Result, error) {
	return runOnDevice(&deviceRunner{ctx: ctx, cfg: &cfg, on: on, world: ranks}, cc, out)
}

// RunRankOnDevice is RunOnDevice of one rank of a world that the configuration, or a launcher's environment, describes. Times are those of the rank
// that took longest.
func RunRankOnDevice(ctx context.Context, cfg Config, world int, on Devices, cc comm.Config, out Output) (Result, error) {
	return runOnDevice(&deviceRunner{ctx: ctx, cfg: &cfg, on: on, world: world, apart: true}, cc, out)
}

func runOnDevice(r *deviceRunner, cc comm.Config, out Output) (Result, error) {
	if err := r.cfg.Check(r.world); err != nil {
		return Result{}, err
	}
	r.report = &report{inPlace: r.cfg.Kind.inPlace, out: out}
	err := r.prepare(cc)
	if err == nil {
		err = r.cfg.messages(r.world, r.message)
	}
	if err == nil {
		err = r.report.end()
	}
	if err != nil && r.apart && len(r.ranks) > 0 && r.ranks[0].c != nil {
		r.ranks[0].c.Abort(err) // nobody should wait for us
	}
	return r.report.result, errors.Join(err, r.close())
}

// deviceRunner is a run under way.
type deviceRunner struct {
	ctx    context.Context
	cfg    *Config
	on     Devices
	world  int  // ranks
	apart  bool // one of them is here
	report *report

	device     *cuda.Device   // the first rank's
	devices    []*cuda.Device // all
	ranks      []*deviceRank  // those that are here
	begin, end cuda.Event
	fork       cuda.Event   // of a capture
	joins      []cuda.Event // one a rank
}

// deviceRank is a rank with its stream, and two buffers each on the device and here, which look alike.
type deviceRank struct {
	device    *cuda.Device
	c         *comm.Comm
	stream    cuda.Stream
	in, out   *buffer
	din, dout kernels.Mem
	message   *message
}

func (r *deviceRunner) prepare(cc comm.Config) (err error) {
	if err := r.checkMemory(availableMemory()); err != nil {
		return err
	}
	for _, ordinal := range r.on.GPUs {
		if r.apart && ordinal != r.on.GPUs[r.on.Local%len(r.on.GPUs)] {
			continue
		}
		d, err := cuda.Open(ordinal)
		if err != nil {
			return err
		}
		r.devices = append(r.devices, d)
	}
	r.device = r.devices[0]
	for _, e := range []*cuda.Event{&r.begin, &r.end, &r.fork} {
		if *e, err = r.device.NewEvent(true); err != nil {
			return err
		}
	}
	if r.apart {
		k := &deviceRank{device: r.device}
		cc.Device = r.device.Device()
		if k.c, err = comm.New(r.ctx, cc); err != nil {
			return err
		}
		r.ranks = []*deviceRank{k}
		if k.c.Rank() != 0 {
			r.report.out.Table, r.report.out.JSON = nil, nil
		}
	} else if err := r.join(cc); err != nil {
		return err
	}
	in, out := r.cfg.need(r.world)
	for _, k := range r.ranks {
		for _, b := range []struct {
			host   **buffer
			device *kernels.Mem
			bytes  int64
		}{{&k.in, &k.din, in}, {&k.out, &k.dout, out}} {
			if *b.host, err = newBuffer(k.c, MemorySlice, b.bytes); err != nil {
				return err
			}
			if *b.device, err = k.c.AllocOn(k.device.Device(), int64(len((*b.host).all))); err != nil {
				return err
			}
		}
		if k.stream, err = k.device.NewStream(); err != nil {
			return err
		}
		e, err := k.device.NewEvent(true)
		if err != nil {
			return err
		}
		r.joins = append(r.joins, e)
	}
	r.report.result.Members = 1
	if r.apart {
		r.report.result.Members = r.world
	}
	return r.report.begin(r.head())
}

// checkMemory returns an error when what the ranks that are here hold on the host, which is as much as on the GPUs and the times, can't fit into
// so many bytes.
func (r *deviceRunner) checkMemory(available int64) error {
	here, noted := r.world, 1
	if r.apart {
		here, noted = 1, r.world+1 // everybody's times, to find the slowest
	}
	if times := 8 * uint64(r.cfg.Iters) * uint64(noted); times > uint64(available) {
		return fmt.Errorf("-n %d needs %s for the times, this host has %s available in all", r.cfg.Iters, human(times), human(uint64(available)))
	}
	in, out := r.cfg.need(r.world)
	if need := uint64(in) + uint64(out); need > uint64(available)/uint64(here) {
		return fmt.Errorf("-e %s needs %s on the host for each of %s in this process, to check results by; this host has %s available in all",
			FormatSize(r.cfg.Sizes.Max), human(need), plural(here, "rank"), human(uint64(available)))
	}
	return nil
}

// join makes the communicators of the ranks, which are all here.
func (r *deviceRunner) join(cc comm.Config) error {
	root, err := bootstrap.ListenRoot(r.ctx, bootstrap.RootConfig{Address: "127.0.0.1:0", Log: cc.Logger})
	if err != nil {
		return err
	}
	defer root.Close()
	r.ranks = make([]*deviceRank, r.world)
	var joining errgroup.Group
	for i := range r.ranks {
		r.ranks[i] = &deviceRank{device: r.devices[i%len(r.devices)]}
		joining.Go(func() (err error) {
			mine := cc
			mine.Rank, mine.Size, mine.ID, mine.Device = i, r.world, root.ID(), r.ranks[i].device.Device()
			r.ranks[i].c, err = comm.New(r.ctx, mine)
			return err
		})
	}
	return joining.Wait()
}

func (r *deviceRunner) head() string {
	var b strings.Builder
	i := r.device.Info()
	where := r.device.String()
	for _, d := range r.devices[1:] {
		where += ", " + d.String()
	}
	of := "one process"
	if r.apart {
		of = "as many processes, rank 0"
	}
	fmt.Fprintf(&b, "# gccl bench %s: %s of %s on %s (%s, compute capability %d.%d, %d multiprocessors)\n",
		r.cfg.Kind.Name, plural(r.world, "rank"), of, where, i.Name, i.Major, i.Minor, i.Multiprocessors)
	how := "queued one by one"
	if r.on.Graph {
		how = "captured in a graph, which is replayed"
	}
	fmt.Fprintf(&b, "# time: median of %s by the GPU's clock; an iteration is %s of all ranks, %s, and its time divided by that\n",
		plural(r.cfg.Iters, "iteration"), plural(r.cfg.Agg, "call"), how)
	if r.apart {
		b.WriteString("# an iteration's time is that of the rank that took longest\n")
	}
	return b.String()
}

// close waits for the GPU first.
func (r *deviceRunner) close() error {
	var errs []error
	for _, d := range r.devices {
		errs = append(errs, d.Synchronize())
	}
	for _, e := range []cuda.Event{r.begin, r.end, r.fork} {
		if e != 0 {
			errs = append(errs, r.device.DestroyEvent(e))
		}
	}
	for i, e := range r.joins {
		errs = append(errs, r.ranks[i].device.DestroyEvent(e))
	}
	for _, k := range r.ranks {
		if k.stream != 0 {
			errs = append(errs, k.device.DestroyStream(k.stream))
		}
		for _, m := range []kernels.Mem{k.din, k.dout} {
			if m.Ptr != nil {
				errs = append(errs, k.c.Free(m))
			}
		}
	}
	for _, k := range r.ranks { // all memory is free before the first communicator goes
		if k.c != nil {
			errs = append(errs, k.c.Close())
		}
	}
	for _, d := range r.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// message measures one message, out of place and in place.
func (r *deviceRunner) message(d kernels.DType, op Op, root int, size int64) error {
	return r.report.add(func(inPlace bool) (Row, error) {
		var calls []comm.Call
		for _, k := range r.ranks {
			k.message = newMessage(k.c, r.cfg, k.in, k.out, d, op, root, size, inPlace)
			for _, call := range k.message.calls {
				calls = append(calls, k.onDevice(call))
			}
		}
		m := r.ranks[0].message
		row := newRow(m, r.cfg)
		row.Transport, row.Memory, row.Barrier = r.device.String(), "device", "none"
		way := r.ranks[0].c.Way(calls[0])
		row.Algo = cmp.Or(r.cfg.Algorithm, string(way))
		if way == comm.WayProxied {
			row.Transport = "cuda+" + r.ways()
		}
		err := r.time(&row, calls)
		if err == nil && r.cfg.Checks > 0 && !m.kind.isBarrier() {
			row.Wrong, err = r.check(m, calls)
		}
		if err != nil {
			err = fmt.Errorf("%s of %s (%v): %w", r.cfg.Kind.Name, FormatSize(size), d, err)
		}
		return row, err
	})
}

// onDevice is a call on the host's buffers made one on the device's.
func (k *deviceRank) onDevice(call comm.Call) comm.Call {
	move := func(m kernels.Mem) kernels.Mem {
		if m.Ptr == nil && call.Kind != comm.KindBarrier {
			return m
		}
		for _, b := range []struct {
			host   *buffer
			device kernels.Mem
		}{{k.in, k.din}, {k.out, k.dout}} {
			first := uintptr(unsafe.Pointer(unsafe.SliceData(b.host.all)))
			if at := uintptr(m.Ptr); at >= first && at < first+uintptr(len(b.host.all)) {
				return kernels.Mem{Ptr: unsafe.Add(b.device.Ptr, at-first), Bytes: m.Bytes, Device: b.device.Device}
			}
		}
		return kernels.Mem{Device: k.din.Device}
	}
	call.Src, call.Dst, call.Stream = move(call.Src), move(call.Dst), k.stream
	return call
}

// time makes the warm-up and the timed iterations.
func (r *deviceRunner) time(row *Row, calls []comm.Call) error {
	batch := func() error {
		for range r.cfg.Agg {
			if err := comm.Group(r.ctx, calls...); err != nil {
				return err
			}
		}
		return nil
	}
	if err := batch(); err != nil { // also what comes before a capture: memory and modules
		return err
	}
	if r.on.Graph {
		for _, d := range r.devices {
			if err := d.Synchronize(); err != nil {
				return err
			}
		}
		g, err := r.capture(batch)
		if err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		defer func() { _ = g.Destroy() }()
		batch = func() error { return g.Launch(r.ranks[0].stream) }
	}
	times := make([]time.Duration, r.cfg.Iters)
	for i := -r.cfg.Warmup; i < r.cfg.Iters; i++ {
		on := r.ranks[0].stream
		if r.ctx.Err() != nil { // which a graph's replay does not look at
			return context.Cause(r.ctx)
		}
		err := r.device.Record(r.begin, on)
		if err == nil {
			err = batch()
		}
		if err == nil {
			err = r.device.Record(r.end, on)
		}
		if err == nil {
			err = r.device.Wait(on)
		}
		ms := 0.0
		if err == nil {
			ms, err = r.device.Milliseconds(r.begin, r.end)
		}
		if err != nil {
			return err
		}
		if i >= 0 {
			times[i] = time.Duration(ms * 1e6 / float64(r.cfg.Agg))
		}
	}
	row.TimeUS = newTimeUS(times)
	if r.apart {
		own := make([]int64, len(times))
		for i, t := range times {
			own[i] = int64(t)
		}
		all, err := gather(r.ctx, r.ranks[0].c, own)
		if err != nil {
			return err
		}
		row.TimeUS = slowest(all)
	}
	row.setBandwidth(r.ranks[0].message.kind, row.TimeUS.P50)
	return nil
}

// capture makes a graph of what all ranks' streams do.
func (r *deviceRunner) capture(batch func() error) (*cuda.Graph, error) {
	first := r.ranks[0].stream
	return r.device.Capture(first, func() error {
		err := r.device.Record(r.fork, first)
		for _, k := range r.ranks[1:] {
			err = errors.Join(err, k.device.WaitEvent(k.stream, r.fork))
		}
		if err == nil {
			err = batch()
		}
		for i, k := range r.ranks[1:] {
			err = errors.Join(err, k.device.Record(r.joins[i+1], k.stream), r.device.WaitEvent(first, r.joins[i+1]))
		}
		return err
	})
}

// check makes the checked calls with fresh inputs, and compares all that they wrote, and what they should not have written.
func (r *deviceRunner) check(m *message, calls []comm.Call) (*int64, error) {
	var total int64
	for s := range r.cfg.Checks {
		for _, special := range []bool{false, true} {
			if special && !m.dtype.IsFloat() {
				continue
			}
			in := m.input(r.cfg.Seed+uint64(s)+1, special)
			for _, k := range r.ranks {
				for _, h := range k.message.whole {
					h.buffer.poison(h.bytes)
				}
				in.Write(k.message.src, k.message.rank, 0)
				if err := k.copyAll(true); err != nil {
					return nil, err
				}
			}
			if err := comm.Group(r.ctx, calls...); err != nil {
				return nil, err
			}
			for _, k := range r.ranks {
				if err := k.copyAll(false); err != nil {
					return nil, err
				}
				v := k.message.verdict(in)
				if m.kind.comm == comm.KindAllReduce {
					bits, err := r.sameBits(k)
					if err != nil {
						return nil, err
					}
					v.Add(bits)
				}
				if v.Wrong > 0 && r.report.out.Log != nil {
					fmt.Fprintf(r.report.out.Log, "rank %d: %s of %s, %v, in place %v, special values %v: %d wrong; %s\n",
						k.message.rank, m.kind.Name, FormatSize(m.size), m.dtype, m.inPlace, special, v.Wrong, v.First)
				}
				total += v.Wrong
			}
		}
	}
	if !r.apart {
		return &total, nil
	}
	all, err := tally(r.ctx, r.ranks[0].c, total)
	return &all, err
}

// sameBits counts one where a rank's result is not as the first one's.
func (r *deviceRunner) sameBits(k *deviceRank) (v reference.Verdict, err error) {
	first := string(k.message.dst) == string(r.ranks[0].message.dst)
	if r.apart {
		h := fnv.New64a()
		h.Write(k.message.dst)
		sum := int64(h.Sum64())
		all, err := gather(r.ctx, k.c, []int64{sum})
		if err != nil {
			return v, err
		}
		first = all[0][0] == sum
	}
	if !first {
		v = reference.Verdict{Wrong: 1, First: "the result's bits are not those of rank 0"}
	}
	return v, nil
}

// ways are the transports that a rank's process uses.
func (r *deviceRunner) ways() string {
	var names []string
	for _, p := range r.ranks[0].c.Paths() {
		if !slices.Contains(names, p.Transport) {
			names = append(names, p.Transport)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// copyAll copies what the message uses of the buffers, canaries included, to the device or back.
func (k *deviceRank) copyAll(to bool) error {
	d := k.device
	for _, h := range k.message.whole {
		device := k.dout
		if h.buffer == k.in {
			device = k.din
		}
		n := int64(front) + h.bytes + back
		host := unsafe.Pointer(unsafe.SliceData(h.buffer.all))
		dst, src := device.Ptr, host
		if !to {
			dst, src = host, device.Ptr
		}
		if err := d.CopyAny(k.stream, dst, src, n); err != nil {
			return err
		}
	}
	return d.Wait(k.stream)
}
