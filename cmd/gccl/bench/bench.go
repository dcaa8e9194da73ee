package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Output says where results go. Any of them may be nil; ranks other than 0 write only to Log.
type Output struct {
	Table io.Writer // for people
	JSON  io.Writer // one Row a line
	Log   io.Writer // what was wrong, and notes
}

// Result is what a run found, the same on all ranks.
type Result struct {
	Rows    []Row
	Wrong   int64   // elements of all ranks and rows
	BusBW   float64 // the mean over the rows that have one, 10^9 bytes a second
	Members int
}

// Run measures and checks. All ranks of c call it with equal configurations; it returns when
// all have finished, with an error when a call failed, ctx ended, or memory or output did. Wrong
// values are no error but counted.
func Run(ctx context.Context, c *comm.Comm, cfg Config, out Output) (Result, error) {
	if err := cfg.Check(c.Size()); err != nil {
		return Result{}, err
	}
	r := &runner{ctx: ctx, c: c, cfg: &cfg, out: out, epoch: time.Now()}
	err := r.prepare()
	if err == nil {
		err = r.rows()
	}
	if err == nil && r.table != nil {
		err = r.table.end(&r.result)
	}
	return r.result, errors.Join(err, r.close())
}

// runner is a run under way.
type runner struct {
	ctx     context.Context
	c       *comm.Comm
	cfg     *Config
	out     Output
	epoch   time.Time
	members []member
	gate    *gate
	in      *buffer
	result  Result
	table   *table

	outBuffer *buffer
	pattern   []byte          // inputs to rewrite from
	filled    int             // bytes of it that hold
	of        reference.Input // the elements of this
	times     []int64
}

func (r *runner) prepare() (err error) {
	if r.members, err = spread(r.ctx, r.c, newMember(r.c)); err != nil {
		return err
	}
	r.result.Members = len(r.members)
	if r.gate, err = newGate(r.ctx, r.c, "/dev/shm"); err != nil {
		return err
	}
	if err := r.cfg.checkMemory(r.c.Size(), together(r.members, r.c.Rank()), availableMemory()); err != nil {
		return err
	}
	in, out := r.cfg.need(r.c.Size())
	if r.in, err = newBuffer(r.c, r.cfg.Memory, in); err != nil {
		return err
	}
	if r.outBuffer, err = newBuffer(r.c, r.cfg.Memory, out); err != nil {
		return err
	}
	r.pattern = make([]byte, in)
	r.times = make([]int64, r.cfg.Iters)
	if r.c.Rank() != 0 {
		r.out.Table, r.out.JSON = nil, nil
	}
	if r.out.Table != nil {
		r.table = &table{w: r.out.Table}
		return r.table.begin(r)
	}
	return nil
}

func (r *runner) close() error {
	var errs []error
	for _, b := range []*buffer{r.in, r.outBuffer} {
		if b != nil {
			errs = append(errs, b.free())
		}
	}
	if r.gate != nil {
		r.gate.close()
	}
	return errors.Join(errs...)
}

// rows measures every message: types, operators and roots outside, sizes inside, as nccl-tests does.
func (r *runner) rows() error {
	k, n := r.cfg.Kind, r.c.Size()
	roots := r.cfg.Roots
	if !k.rooted {
		roots = []int{0}
	} else if len(roots) == 0 {
		for q := range n {
			roots = append(roots, q)
		}
	}
	redops := r.cfg.RedOps
	if !k.reduces {
		redops = []kernels.RedOp{kernels.Sum}
	}
	dtypes := r.cfg.DTypes
	if k.isBarrier() {
		dtypes = dtypes[:1]
	}
	var sum float64
	var with int
	for _, d := range dtypes {
		for _, op := range redops {
			for _, root := range roots {
				for size := range r.cfg.rowSizes(d, n) {
					pair, err := r.row(d, op, root, size)
					if err != nil {
						return err
					}
					for _, row := range pair {
						if row.BusBW != nil {
							sum, with = sum+*row.BusBW, with+1
						}
					}
					r.result.Rows = append(r.result.Rows, pair...)
					if with > 0 {
						r.result.BusBW = sum / float64(with)
					}
				}
			}
		}
	}
	return nil
}

// row measures a message out of place and where there is such a thing in place, and prints it.
func (r *runner) row(d kernels.DType, op kernels.RedOp, root int, size int64) ([]Row, error) {
	places := []bool{false}
	if r.cfg.Kind.inPlace {
		places = []bool{false, true}
	}
	var rows []Row
	for _, inPlace := range places {
		m := newMessage(r.c, r.cfg, r.in, r.outBuffer, d, op, root, size, inPlace)
		row, err := r.measure(m)
		if err != nil {
			return rows, fmt.Errorf("%s of %s (%v): %w", r.cfg.Kind.Name, FormatSize(size), d, err)
		}
		if r.out.JSON != nil {
			line, err := json.Marshal(row)
			if err == nil {
				_, err = r.out.JSON.Write(append(line, '\n'))
			}
			if err != nil {
				return rows, fmt.Errorf("write JSON: %w", err)
			}
		}
		rows = append(rows, row)
	}
	if r.table != nil {
		return rows, r.table.row(rows)
	}
	return rows, nil
}

// measure times a message, then checks it.
func (r *runner) measure(m *message) (Row, error) {
	row := Row{
		Kind: m.kind.Name, Bytes: m.size, Count: m.size / int64(m.dtype.Size()), DType: m.dtype.String(), RedOp: "none",
		Ranks: m.ranks, Algo: "none", Transport: transports(r.members), Memory: string(r.cfg.Memory), InPlace: m.inPlace,
		Iters: r.cfg.Iters, Barrier: r.gate.name(), root: -1,
	}
	if m.kind.isBarrier() {
		row.DType = "none"
	}
	if m.kind.reduces {
		row.RedOp = m.redop.String()
	}
	if m.kind.rooted {
		row.root = m.root
	}
	if !m.kind.isExchange() && m.ranks > 1 {
		choice, err := r.c.Choice(m.calls[0])
		if err != nil {
			return row, err
		}
		row.Algo = choice.Algorithm
	}
	if r.cfg.BackToBack {
		row.Barrier = "none"
	}
	if err := r.time(m, &row); err != nil {
		return row, err
	}
	if r.cfg.Checks == 0 {
		return row, nil
	}
	wrong, err := r.check(m)
	if wrong != nil {
		r.result.Wrong += *wrong
	}
	row.Wrong = wrong
	return row, err
}

// time makes the warm-up and the timed iterations.
func (r *runner) time(m *message, row *Row) error {
	in := reference.Input{DType: m.dtype, RedOp: m.redop, Ranks: m.ranks, Seed: r.cfg.Seed}
	r.fill(in, len(m.src))
	began := time.Duration(0)
	for i := -r.cfg.Warmup; i < r.cfg.Iters; i++ {
		if !r.cfg.BackToBack || i == -r.cfg.Warmup {
			copy(m.src, r.pattern)
			if err := r.gate.wait(r.ctx); err != nil {
				return err
			}
			began = time.Since(r.epoch)
		}
		for range r.cfg.Agg {
			if err := m.do(r.ctx); err != nil {
				return err
			}
		}
		now := time.Since(r.epoch)
		if i >= 0 {
			r.times[i] = int64(now-began) / int64(r.cfg.Agg)
		}
		began = now
	}
	all, err := gather(r.ctx, r.c, r.times)
	if err != nil {
		return err
	}
	row.TimeUS = slowest(all)
	t := row.TimeUS.P50
	if r.cfg.BackToBack {
		// One rank's iteration ends before another's; only the whole has one length.
		row.TimeUS.Mean = meanUS(all)
		t = row.TimeUS.Mean
	}
	row.setBandwidth(m.kind, t)
	return nil
}

// fill makes n bytes of the pattern hold our elements.
func (r *runner) fill(in reference.Input, n int) {
	if r.of != in {
		r.of, r.filled = in, 0
	}
	if n > r.filled {
		in.Write(r.pattern[r.filled:n], r.c.Rank(), r.filled/in.DType.Size())
		r.filled = n
	}
}

// check makes the checked calls of a message and returns how many elements were wrong on all ranks,
// nil where that can't be known.
func (r *runner) check(m *message) (*int64, error) {
	if m.kind.isBarrier() {
		return r.checkBarrier(m)
	}
	var total int64
	for s := range r.cfg.Checks {
		for _, special := range []bool{false, true} {
			if special && !m.dtype.IsFloat() {
				continue
			}
			in := reference.Input{DType: m.dtype, RedOp: m.redop, Ranks: m.ranks, Seed: r.cfg.Seed + uint64(s) + 1, Special: special}
			v, err := m.check(r.ctx, in)
			if err != nil {
				return nil, err
			}
			if m.kind.comm == comm.KindAllReduce {
				differs, err := r.differs(m.dst)
				if err != nil {
					return nil, err
				}
				if differs {
					v.Add(reference.Verdict{Wrong: 1, First: "the result's bits are not those of rank 0"})
				}
			}
			if v.Wrong > 0 {
				r.log("rank %d: %s of %s, %v, in place %v, special values %v: %d wrong; %s",
					m.rank, m.kind.Name, FormatSize(m.size), m.dtype, m.inPlace, special, v.Wrong, v.First)
			}
			sum, err := tally(r.ctx, r.c, v.Wrong)
			if err != nil {
				return nil, err
			}
			total += sum
		}
	}
	return &total, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// differs reports whether our result has other bits than rank 0's, by two checksums.
func (r *runner) differs(b []byte) (bool, error) {
	sum := int64(crc32.Checksum(b, castagnoli))<<32 | int64(crc32.ChecksumIEEE(b))
	all, err := gather(r.ctx, r.c, []int64{sum})
	return err == nil && all[0][0] != sum, err
}

// checkBarrier has every rank come late once, and returns how many times a rank left before the last
// had come. That needs a clock that all ranks share.
func (r *runner) checkBarrier(m *message) (*int64, error) {
	if r.gate.page == nil && m.ranks > 1 {
		return nil, nil
	}
	var total int64
	for range r.cfg.Checks {
		for late := range m.ranks {
			if err := r.gate.wait(r.ctx); err != nil {
				return nil, err
			}
			if late == m.rank {
				time.Sleep(2 * time.Millisecond)
			}
			came := monotonic()
			if err := m.do(r.ctx); err != nil {
				return nil, err
			}
			left := monotonic()
			all, err := gather(r.ctx, r.c, []int64{came, left})
			if err != nil {
				return nil, err
			}
			last := slices.MaxFunc(all, func(a, b []int64) int { return int(a[0] - b[0]) })[0]
			for q, times := range all {
				if times[1] < last {
					total++
					if m.rank == 0 {
						r.log("rank %d left the barrier %v before the last had come", q, time.Duration(last-times[1]))
					}
				}
			}
		}
	}
	return &total, nil
}

// monotonic returns the time of a clock that all processes of a host share, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	// It fails only for a clock that the system doesn't have.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

func (r *runner) log(format string, args ...any) {
	if r.out.Log != nil {
		fmt.Fprintf(r.out.Log, format+"\n", args...)
	}
}

// slowest returns the figures over iterations of the slowest rank's time in each.
func slowest(all [][]int64) TimeUS {
	times := make([]time.Duration, len(all[0]))
	for _, one := range all {
		for i, t := range one {
			times[i] = max(times[i], time.Duration(t))
		}
	}
	return newTimeUS(times)
}

// meanUS returns the mean over iterations of the rank that took longest for all of them.
func meanUS(all [][]int64) (most float64) {
	for _, one := range all {
		var sum int64
		for _, t := range one {
			sum += t
		}
		most = max(most, us(time.Duration(sum))/float64(len(one)))
	}
	return most
}
