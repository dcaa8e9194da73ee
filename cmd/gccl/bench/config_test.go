package bench

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
)

// plain is a configuration that makes sense.
func plain(t testing.TB, kind string) Config {
	k, err := ParseKind(kind)
	require.NoError(t, err)
	return Config{
		Kind: k, Sizes: Sizes{Min: 8, Max: 8, Factor: 2}, Iters: 1, Agg: 1, Checks: 1,
		Ops: []Op{OpOf(kernels.Sum)}, DTypes: []kernels.DType{kernels.Float32}, Roots: []int{0}, Memory: MemorySlice,
	}
}

func TestRowSizes(t *testing.T) {
	for _, c := range []struct {
		kind     string
		dtype    kernels.DType
		n        int
		min, max int64
		factor   int64
		want     []int64
	}{
		{"all_reduce", kernels.Float32, 2, 8, 32, 2, []int64{8, 16, 32}},
		{"all_reduce", kernels.Float64, 2, 1, 16, 2, []int64{8, 16}},      // less than an element is no row
		{"all_reduce", kernels.Float32, 2, 0, 8, 2, []int64{0, 4, 8}},     // nothing is one where it was asked for
		{"all_gather", kernels.Float32, 3, 8, 64, 2, []int64{12, 24, 60}}, // whole elements in each block
		{"reduce_scatter", kernels.Int8, 8, 8, 64, 8, []int64{8, 64}},     //
		{"alltoall", kernels.Float64, 2, 8, 32, 2, []int64{16, 32}},       //
		{"broadcast", kernels.Bfloat16, 5, 7, 7, 2, []int64{6}},           //
		{"barrier", kernels.Float32, 2, 8, 64, 2, []int64{0}},             // one row whatever was asked for
		{"all_gather", kernels.Float32, 2, 8, 9, 1, []int64{8}},           // and none twice
	} {
		cfg := plain(t, c.kind)
		cfg.Sizes = Sizes{Min: c.min, Max: c.max, Factor: c.factor, Step: 1}
		cfg.DTypes = []kernels.DType{c.dtype}
		require.NoError(t, cfg.Check(c.n))
		require.Equal(t, c.want, slices.Collect(cfg.rowSizes(c.dtype, c.n)), "%s %v of %d", c.kind, c.dtype, c.n)
		in, out := cfg.need(c.n)
		for _, size := range c.want {
			part := cfg.Kind.count(size, c.dtype.Size(), c.n) * int64(c.dtype.Size())
			require.LessOrEqual(t, part*int64(cfg.Kind.in(c.n)), in)
			require.LessOrEqual(t, part*int64(cfg.Kind.out(c.n)), out)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"-n 0":  func(c *Config) { c.Iters = 0 },
		"-w -1": func(c *Config) { c.Warmup = -1 },
		"-m 0":  func(c *Config) { c.Agg = 0 },
		"-c -3": func(c *Config) { c.Checks = -3 },
		"-r 2":  func(c *Config) { c.Roots = []int{0, 2} },
		"-e 4":  func(c *Config) { c.Sizes.Max = 4 },
		"-f -1": func(c *Config) { c.Sizes.Factor = -1 },
		"-e 1 ": func(c *Config) { c.Sizes = Sizes{Min: 1, Max: 1, Factor: 2} },
	} {
		cfg := plain(t, "all_reduce")
		change(&cfg)
		require.ErrorContains(t, cfg.Check(2), want)
	}
	cfg := plain(t, "all_reduce")
	cfg.Ops, cfg.DTypes = []Op{MulSum}, []kernels.DType{kernels.Int32}
	require.ErrorContains(t, cfg.Check(2), "-o mulsum of [int32]; want a floating-point type")
	cfg.DTypes = append(cfg.DTypes, kernels.Float32)
	require.NoError(t, cfg.Check(2))
	for kind, want := range map[string]string{
		"all_reduce": "no size from -b 1 to -e 7 holds one element of double; want a size of at least 8",
		"all_gather": "no size from -b 1 to -e 7 holds one element of double for each of 3 ranks; want a size of at least 24",
	} {
		cfg = plain(t, kind)
		cfg.Sizes, cfg.DTypes = Sizes{Min: 1, Max: 7, Factor: 8}, []kernels.DType{kernels.Float64}
		require.EqualError(t, cfg.Check(3), want)
	}
	cfg = plain(t, "sendrecv")
	require.ErrorContains(t, cfg.Check(1), "2 ranks")
	require.NoError(t, cfg.Check(2))
}

func TestMemoryIsThere(t *testing.T) {
	cfg := plain(t, "all_reduce")
	cfg.Sizes.Max = 1 << 30
	require.NoError(t, cfg.checkMemory(2, 2, 6<<30))
	require.ErrorContains(t, cfg.checkMemory(2, 2, 6<<30-2), "-e 1G needs 3.0 GiB for each of 2 ranks")
	cfg.Iters = 1<<31 - 1
	require.ErrorContains(t, cfg.checkMemory(2, 2, 6<<30), "-n 2147483647 needs 48.0 GiB")
	cfg.Iters = 1
	cfg.Sizes.Max = 1<<62 - 1
	require.Error(t, cfg.checkMemory(2, 1, 1<<60))
	require.Greater(t, availableMemory(), int64(1<<20))
	host := fstest.MapFS{"proc/meminfo": {Data: []byte("MemAvailable: 4194304 kB\n")}, "proc/self/cgroup": {Data: []byte("0::/job/step\n")}}
	require.Equal(t, int64(4<<30), availableBelow(host))
	host["sys/fs/cgroup/job/memory.max"] = &fstest.MapFile{Data: []byte("1073741824\n")}
	host["sys/fs/cgroup/job/memory.current"] = &fstest.MapFile{Data: []byte("268435456\n")}
	require.Equal(t, int64(768<<20), availableBelow(host), "the group above allows 1 GiB and uses 256 MiB")
	require.Equal(t, int64(1<<60), availableBelow(fstest.MapFS{}))
}
