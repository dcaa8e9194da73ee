package bench

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/topology"
)

// Config says what to measure. [Config.Check] tells whether it makes sense.
type Config struct {
	Kind   Kind
	Sizes  Sizes
	Iters  int // timed iterations of each message, at least 1
	Warmup int // iterations before, not counted
	Agg    int // calls one after the other in an iteration, at least 1; times are divided by it
	Checks int // checked calls of each message, each with other inputs; 0: none
	Ops    []Op
	DTypes []kernels.DType
	Roots  []int // empty: every rank in turn

	Memory     Memory
	Algorithm  string // empty: the library's choice
	BackToBack bool   // iterations follow each other at once: no barrier, inputs not rewritten
	Seed       uint64 // of the inputs

	pageDir string // where the page for the barrier lies; empty: /dev/shm
}

// Check returns an error that names the flag and value that make no sense in a world of n ranks.
func (c *Config) Check(n int) error {
	switch {
	case c.Iters < 1:
		return fmt.Errorf("-n %d; want at least 1 iteration", c.Iters)
	case c.Warmup < 0:
		return fmt.Errorf("-w %d; want 0 or more iterations", c.Warmup)
	case c.Agg < 1:
		return fmt.Errorf("-m %d; want at least 1 call an iteration", c.Agg)
	case c.Checks < 0:
		return fmt.Errorf("-c %d; want 0 for no check or a number of checked calls", c.Checks)
	case c.Kind.isExchange() && n < 2:
		return fmt.Errorf("%s needs at least 2 ranks, there is %d", c.Kind.Name, n)
	}
	for _, r := range c.Roots {
		if r < 0 || r >= n {
			return fmt.Errorf("-r %d; want 0 to %d, a rank of this world of %d, or all", r, n-1, n)
		}
	}
	if err := c.Sizes.Check(); err != nil {
		return err
	}
	if c.Kind.isBarrier() {
		return nil
	}
	if c.Kind.reduces && !slices.ContainsFunc(c.DTypes, func(d kernels.DType) bool {
		return slices.ContainsFunc(c.Ops, func(o Op) bool { return o.fits(d) })
	}) {
		return fmt.Errorf("-o %v of %v; want a floating-point type", MulSum, c.DTypes)
	}
	rows := 0
	for _, d := range c.DTypes {
		for range c.rowSizes(d, n) {
			rows++
			break
		}
	}
	if rows == 0 {
		least := slices.MinFunc(c.DTypes, func(a, b kernels.DType) int { return a.Size() - b.Size() })
		blocks, each := max(c.Kind.in(n), c.Kind.out(n)), ""
		if blocks > 1 {
			each = fmt.Sprintf(" for each of %d ranks", n)
		}
		return fmt.Errorf("no size from -b %s to -e %s holds one element of %v%s; want a size of at least %s",
			FormatSize(c.Sizes.Min), FormatSize(c.Sizes.Max), least, each, FormatSize(int64(blocks*least.Size())))
	}
	return nil
}

// messages calls f for every message to be measured: types, operators and roots outside, sizes inside, as nccl-tests does.
func (c *Config) messages(n int, f func(d kernels.DType, op Op, root int, size int64) error) error {
	roots := c.Roots
	if !c.Kind.rooted {
		roots = []int{0}
	} else if len(roots) == 0 {
		for q := range n {
			roots = append(roots, q)
		}
	}
	ops := c.Ops
	if !c.Kind.reduces {
		ops = []Op{OpOf(kernels.Sum)}
	}
	dtypes := c.DTypes
	if c.Kind.isBarrier() {
		dtypes = dtypes[:1]
	}
	for _, d := range dtypes {
		for _, op := range ops {
			if !op.fits(d) {
				continue
			}
			for _, root := range roots {
				for size := range c.rowSizes(d, n) {
					if err := f(d, op, root, size); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// rowSizes yields the sizes of the rows of a type, in bytes: those asked for, rounded down to whole
// elements in each rank's block; without what then is nothing or a row again. Nothing is a row only
// where the first size asked for is 0.
func (c *Config) rowSizes(d kernels.DType, n int) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		if c.Kind.isBarrier() {
			yield(0)
			return
		}
		last := int64(-1)
		blocks := int64(max(c.Kind.in(n), c.Kind.out(n)))
		for asked := range c.Sizes.All() {
			size := c.Kind.count(asked, d.Size(), n) * int64(d.Size()) * blocks
			if size == last || size == 0 && asked != 0 {
				continue
			}
			last = size
			if !yield(size) {
				return
			}
		}
	}
}

// maxSize returns the largest size of a row of any type.
func (c *Config) maxSize() int64 {
	if c.Kind.isBarrier() {
		return 0
	}
	return c.Sizes.Max
}

// need returns how many bytes of memory a rank's buffers take.
func (c *Config) need(n int) (in, out int64) {
	size := c.maxSize()
	blocks := int64(max(c.Kind.in(n), c.Kind.out(n), 1))
	in = (size + blocks - 1) / blocks * int64(c.Kind.in(n))
	out = (size + blocks - 1) / blocks * int64(c.Kind.out(n))
	return in, out
}

// checkMemory returns an error when the buffers of some ranks can't fit this host.
func (c *Config) checkMemory(ranks, local int, available int64) error {
	in, out := c.need(ranks)
	if times := 8 * uint64(c.Iters) * uint64(ranks+1); times > uint64(available/int64(local)) {
		return fmt.Errorf("-n %d needs %s for the times of %d ranks, this host has %s available in all",
			c.Iters, human(times), ranks, human(uint64(available)))
	}
	// A rank's input is held twice, to be rewritten from.
	need := 2*uint64(in) + uint64(out)
	if need > uint64(available/int64(local)) {
		return fmt.Errorf("-e %s needs %s for each of %d ranks on this host, which has %s available in all",
			FormatSize(c.Sizes.Max), human(need), local, human(uint64(available)))
	}
	return nil
}

// human shows bytes to people.
func human(n uint64) string {
	for _, u := range []struct {
		name  string
		shift int
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n >= 1<<u.shift {
			return strconv.FormatFloat(float64(n)/float64(uint64(1)<<u.shift), 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}

// availableMemory returns how many bytes this process can still get, of the host and within its control groups; a large number where neither
// says.
func availableMemory() int64 { return availableBelow(os.DirFS("/")) }

func availableBelow(root fs.FS) int64 { return topology.ReadMemory(root).Free().Or(1 << 60) }
