package bench

import (
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
)

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
			in := m.input(r.cfg.Seed+uint64(s)+1, special)
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
