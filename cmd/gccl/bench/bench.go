package bench

import (
	"context"
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
	r.report = &report{inPlace: cfg.Kind.inPlace, out: out}
	err := r.prepare()
	if err == nil {
		err = r.rows()
	}
	if err == nil {
		err = r.report.end()
	}
	return r.report.result, errors.Join(err, r.close())
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
	report  *report

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
	r.report.result.Members = len(r.members)
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
		r.report.out.Table, r.report.out.JSON = nil, nil
	}
	return r.report.begin(r.head())
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

// rows measures every message, out of place and where there is such a thing in place, and prints it.
func (r *runner) rows() error {
	return r.cfg.messages(r.c.Size(), func(d kernels.DType, op Op, root int, size int64) error {
		return r.report.add(func(inPlace bool) (Row, error) {
			row, err := r.measure(newMessage(r.c, r.cfg, r.in, r.outBuffer, d, op, root, size, inPlace))
			if err != nil {
				err = fmt.Errorf("%s of %s (%v): %w", r.cfg.Kind.Name, FormatSize(size), d, err)
			}
			return row, err
		})
	})
}

// measure times a message, then checks it.
func (r *runner) measure(m *message) (Row, error) {
	row := newRow(m, r.cfg)
	row.Transport, row.Barrier = transports(r.members), r.gate.name()
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
	err := r.time(m, &row)
	if err != nil {
		return row, err
	}
	if r.cfg.Checks == 0 {
		return row, nil
	}
	row.Wrong, err = r.check(m)
	return row, err
}
