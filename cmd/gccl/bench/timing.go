package bench

import (
	"time"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
)

// time makes the warm-up and the timed iterations.
func (r *runner) time(m *message, row *Row) error {
	in := reference.Input{DType: m.dtype, RedOp: m.op.RedOp, Ranks: m.ranks, Seed: r.cfg.Seed}
	r.fill(in, len(m.src))
	began := time.Duration(0)
	for i := -r.cfg.Warmup; i < r.cfg.Iters; i++ {
		if !r.cfg.BackToBack || i == -r.cfg.Warmup {
			rewrite(m.src, r.pattern)
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
	if r.cfg.BackToBack {
		row.TimeUS = together(all)
		row.setBandwidth(m.kind, row.TimeUS.Mean)
	} else {
		row.TimeUS = slowest(all)
		row.setBandwidth(m.kind, row.TimeUS.P50)
	}
	return nil
}

// rewrite copies src to dst as a program computes it, by ordinary stores: from 1 MiB on Go copies past the caches, and inputs that are in none
// would be another measurement.
func rewrite(dst, src []byte) {
	for n := 0; n < len(dst); {
		n += copy(dst[n:min(n+256<<10, len(dst))], src[n:])
	}
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

// together returns the figures of iterations that follow each other at once. Where one ends and the next
// begins is another moment on each rank, so a short one here goes with a long one there: an iteration's time is the
// mean over ranks, and only the mean over iterations is that of the rank that took longest for all.
func together(all [][]int64) TimeUS {
	times := make([]time.Duration, len(all[0]))
	var longest time.Duration
	for _, one := range all {
		var sum time.Duration
		for i, t := range one {
			times[i] += time.Duration(t)
			sum += time.Duration(t)
		}
		longest = max(longest, sum)
	}
	for i := range times {
		times[i] /= time.Duration(len(all))
	}
	t := newTimeUS(times)
	t.Mean = us(longest) / float64(len(times))
	return t
}
