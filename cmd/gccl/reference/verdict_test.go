package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
)

// foldInSomeOrder reduces all ranks' elements with the library's own kernels, by a random tree and with
// random operands in one fold: what some algorithm might do.
func foldInSomeOrder(in Input, count int, rng *rand.Rand) []byte {
	size := in.DType.Size()
	var parts [][]byte
	for q := range in.Ranks {
		b := make([]byte, count*size)
		in.Write(b, q, 0)
		scale := 1 / float64(in.Ranks)
		if in.Factors {
			scale = Factor(q)
		}
		if in.Factors || in.RedOp == kernels.Avg && in.DType.IsFloat() && in.Ranks > 1 {
			dst := make([]byte, count*size)
			preMul, err := cpu.PreMul(in.DType)
			if err != nil {
				panic(err)
			}
			preMul(unsafe.Pointer(&dst[0]), []unsafe.Pointer{unsafe.Pointer(&b[0])}, count, 0, scale)
			b = dst
		}
		parts = append(parts, b)
	}
	op := in.RedOp
	if op == kernels.Avg {
		op = kernels.Sum
	}
	reduce, err := cpu.Reducer(in.DType, op)
	if err != nil {
		panic(err)
	}
	for len(parts) > 1 {
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		take := 2 + rng.IntN(len(parts)-1)
		var srcs []unsafe.Pointer
		for _, p := range parts[:take] {
			srcs = append(srcs, unsafe.Pointer(&p[0]))
		}
		dst := make([]byte, count*size)
		reduce(unsafe.Pointer(&dst[0]), srcs, count)
		parts = append(parts[take:], dst)
	}
	if in.RedOp == kernels.Avg && !in.DType.IsFloat() {
		postDiv, err := cpu.PostDiv(in.DType)
		if err != nil {
			panic(err)
		}
		postDiv(unsafe.Pointer(&parts[0][0]), count, int64(in.Ranks))
	}
	return parts[0]
}

func eachInput(t *testing.T, f func(t *testing.T, in Input)) {
	for _, d := range kernels.DTypes() {
		for _, op := range kernels.RedOps() {
			for _, n := range []int{2, 3, 5, 8, 64} {
				for _, special := range []bool{false, true} {
					if special && !d.IsFloat() {
						continue
					}
					in := Input{DType: d, RedOp: op, Ranks: n, Seed: uint64(n), Special: special}
					t.Run(fmt.Sprintf("%v/%v/%d/%v", d, op, n, special), func(t *testing.T) { f(t, in) })
					if in.Factors = op == kernels.Sum && d.IsFloat(); in.Factors {
						t.Run(fmt.Sprintf("%v/mulsum/%d/%v", d, n, special), func(t *testing.T) { f(t, in) })
					}
				}
			}
		}
	}
}

// Whatever the order of the folds, the reference must accept what the kernels give.
func TestReferenceAcceptsEveryOrder(t *testing.T) {
	const count = 1500
	eachInput(t, func(t *testing.T, in Input) {
		rng := rand.New(rand.NewPCG(1, uint64(in.Ranks)))
		for range 4 {
			v := in.Reduced(foldInSomeOrder(in, count, rng), 0)
			require.Zero(t, v.Wrong, v.First)
		}
	})
}

// What a broken library might give must not pass.
func TestReferenceRefusesMistakes(t *testing.T) {
	const count = 1500
	eachInput(t, func(t *testing.T, in Input) {
		rng := rand.New(rand.NewPCG(2, uint64(in.Ranks)))
		right := foldInSomeOrder(in, count, rng)
		require.Zero(t, in.Reduced(right, 0).Wrong)

		t.Run("another rank's data", func(t *testing.T) {
			for name, change := range map[string]func(*Input){
				"one rank less":  func(in *Input) { in.Ranks-- },
				"other inputs":   func(in *Input) { in.Seed++ },
				"other operator": func(in *Input) { in.RedOp, in.Factors = (in.RedOp+1)%5, false },
				"other factors":  func(in *Input) { in.Factors = in.RedOp == kernels.Sum && in.DType.IsFloat() && !in.Factors },
			} {
				other := in
				change(&other)
				if other == in || other.Ranks == 1 || in.Special && (in.Ranks > 8 || in.DType.Size() == 1 && other.RedOp == in.RedOp && other.Factors != in.Factors) {
					continue // among many inputs that round, one may hide
				}
				require.NotZero(t, in.Reduced(foldInSomeOrder(other, count, rng), 0).Wrong, name)
			}
		})
		t.Run("shifted by one element", func(t *testing.T) {
			require.NotZero(t, in.Reduced(right, 1).Wrong)
		})
		t.Run("one element", func(t *testing.T) {
			size := in.DType.Size()
			for range 20 {
				i := rng.IntN(count)
				b := append([]byte(nil), right...)
				b[(i+1)*size-1] ^= 0x40                             // an exponent bit, or a high one: no rounding error, on little-endian machines
				rough := in.DType.IsFloat() && in.DType.Size() == 1 // where one bit may hide among roundings
				if in.Ranks <= 8 && !rough || in.exactAt(i) && !(rough && in.RedOp == kernels.Avg) {
					require.EqualValues(t, 1, in.Reduced(b, 0).Wrong, "element %d", i)
				}
			}
		})
	})
}

func TestReferenceDemandsExactBits(t *testing.T) {
	one := func(d kernels.DType, op kernels.RedOp, operands []float64, got uint64) bool {
		in := Input{DType: d, RedOp: op, Ranks: len(operands)}
		r := newRules(in)
		var s float
		for _, v := range operands {
			r.fold(&s, r.f.encode(v))
		}
		return r.expect(&s, false).allows(r.f, got)
	}
	negZero, nan, inf := math.Copysign(0, -1), math.NaN(), math.Inf(1)
	for _, d := range []kernels.DType{kernels.Float16, kernels.Bfloat16, kernels.Float32, kernels.Float64} {
		f := formatOf(d)
		for _, c := range []struct {
			op       kernels.RedOp
			operands []float64
			right    uint64
			wrong    []uint64
		}{
			{kernels.Min, []float64{0, negZero}, f.negative(), []uint64{0}},
			{kernels.Max, []float64{negZero, 0}, 0, []uint64{f.negative()}},
			{kernels.Min, []float64{1, nan}, f.nan(), []uint64{f.encode(1), f.nan() | 1, f.nan() | f.negative()}},
			{kernels.Max, []float64{nan, -inf}, f.nan(), []uint64{f.encode(-inf)}},
			{kernels.Sum, []float64{inf, -inf}, f.nan(), []uint64{f.infinity(), f.nan() | 1}},
			{kernels.Sum, []float64{inf, 1}, f.infinity(), []uint64{f.nan(), f.infinity() - 1}},
			{kernels.Sum, []float64{negZero, negZero}, f.negative(), []uint64{0, 1}},
			{kernels.Sum, []float64{negZero, 0}, 0, []uint64{f.negative(), 1}},
			{kernels.Sum, []float64{1, -1}, 0, []uint64{f.negative()}},
			{kernels.Sum, []float64{f.tiny, f.tiny}, 2, []uint64{0, 1, 3}},
			{kernels.Avg, []float64{2, 4}, f.encode(3), []uint64{f.encode(6)}},
			{kernels.Avg, []float64{negZero, negZero}, f.negative(), []uint64{0}},
			{kernels.Prod, []float64{inf, 0}, f.nan(), []uint64{f.infinity(), 0}},
			{kernels.Prod, []float64{-inf, 2}, f.infinity() | f.negative(), []uint64{f.infinity(), f.nan()}},
			{kernels.Prod, []float64{-1, 0}, f.negative(), []uint64{0}},
			{kernels.Prod, []float64{-1.5, 1.25}, f.encode(-1.875), []uint64{f.encode(1.875), 0}},
		} {
			require.True(t, one(d, c.op, c.operands, c.right), "%v %v %v", d, c.op, c.operands)
			for _, w := range c.wrong {
				require.False(t, one(d, c.op, c.operands, w), "%v %v of %v must not be %#x", d, c.op, c.operands, w)
			}
		}
	}
}

func TestFormatAgreesWithConversions(t *testing.T) {
	for b := range 1 << 16 {
		h, g := kernels.Half(b), kernels.BFloat16(b)
		for _, c := range []struct {
			f    format
			want float64
		}{{formatOf(kernels.Float16), float64(h.Float32())}, {formatOf(kernels.Bfloat16), float64(g.Float32())}} {
			got := c.f.decode(uint64(b))
			if c.want != c.want {
				require.True(t, got != got && c.f.isNaN(uint64(b)))
				continue
			}
			require.Equal(t, math.Float64bits(c.want), math.Float64bits(got), "%#x", b)
			require.EqualValues(t, b, c.f.encode(got))
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200000 {
		v := math.Float64frombits(rng.Uint64())
		if rng.IntN(2) == 0 {
			v = math.Ldexp(rng.Float64()*2-1, rng.IntN(60)-40)
		}
		require.EqualValues(t, kernels.HalfFromFloat64(v), formatOf(kernels.Float16).encode(v), "%g", v)
		require.EqualValues(t, kernels.BFloat16FromFloat64(v), formatOf(kernels.Bfloat16).encode(v), "%g", v)
		if v == v {
			require.EqualValues(t, math.Float32bits(float32(v)), formatOf(kernels.Float32).encode(v), "%g", v)
		}
	}
}

func TestInputsAreFullAndDiffer(t *testing.T) {
	for _, d := range kernels.DTypes() {
		in := Input{DType: d, Ranks: 2}
		var a, b, later [256]uint64
		in.fill(a[:], 0, 0)
		in.fill(b[:], 1, 0)
		in.fill(later[:100], 0, 100)
		require.NotEqual(t, a, b)
		require.Equal(t, a[100:200], later[:100], "an element depends on its index alone")
		var ones, zeros uint64
		for _, x := range a {
			ones |= x
			zeros |= ^x
		}
		low := uint64(1)<<min(8*d.Size()-1, 7) - 1
		if d.IsFloat() {
			low = 1<<formatOf(d).frac - 1
		}
		require.Equal(t, low, ones&low, "%v: all low bits are used", d)
		require.Equal(t, low, zeros&low)
	}
}

func BenchmarkReduced(b *testing.B) {
	for _, d := range []kernels.DType{kernels.Int32, kernels.Float32, kernels.Bfloat16} {
		b.Run(d.String(), func(b *testing.B) {
			in := Input{DType: d, Ranks: 2}
			buf := foldInSomeOrder(in, 1<<20/d.Size(), rand.New(rand.NewPCG(5, 6)))
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				require.Zero(b, in.Reduced(buf, 0).Wrong)
			}
		})
		b.Run(d.String()+"/write", func(b *testing.B) {
			in := Input{DType: d, Ranks: 2}
			buf := make([]byte, 1<<20)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				in.Write(buf, 0, 0)
			}
		})
	}
}
