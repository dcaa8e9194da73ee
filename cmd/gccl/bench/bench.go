package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

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
	dir := r.cfg.pageDir
	if dir == "" {
		dir = "/dev/shm"
	}
	if r.gate, err = newGate(r.ctx, r.c, dir); err != nil {
		return err
	}
	if err := r.cfg.checkMemory(r.c.Size(), onHostOf(r.members, r.c.Rank()), availableMemory()); err != nil {
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
