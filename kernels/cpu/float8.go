package cpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A float8 is one of the two 8-bit formats, which are folded in float32 as the 16-bit ones are. Numbers are read from a table.
type float8 struct {
	wide  [256]float32
	isFor kernels.DType
}

var e4m3, e5m2 = newFloat8(kernels.Float8e4m3), newFloat8(kernels.Float8e5m2)

func newFloat8(d kernels.DType) *float8 {
	f := &float8{isFor: d}
	for x := range f.wide {
		if d == kernels.Float8e5m2 {
			f.wide[x] = kernels.Float8E5M2(x).Float32()
		} else {
			f.wide[x] = kernels.Float8E4M3(x).Float32()
		}
	}
	return f
}

// narrow rounds src to d.
func (f *float8) narrow(d []uint8, src []float32) {
	src = src[:len(d)]
	if f.isFor == kernels.Float8e5m2 {
		for i := range d {
			d[i] = uint8(kernels.Float8E5M2FromFloat32(src[i]))
		}
		return
	}
	for i := range d {
		d[i] = uint8(kernels.Float8E4M3FromFloat32(src[i]))
	}
}

// widen converts src to d.
func (f *float8) widen(d []float32, src []uint8) {
	for i, x := range src[:len(d)] {
		d[i] = f.wide[x]
	}
}

// scale is d = d·by, the products rounded to the format; by is a number of it. Such a product is exact in float32.
func (f *float8) scale(d []float32, by float32) {
	var rounded [block8]uint8
	for i := range d {
		d[i] *= by
	}
	f.narrow(rounded[:len(d)], d)
	f.widen(d, rounded[:len(d)])
}

// block8 is how many elements are folded at a time.
const block8 = 64

func (f *float8) reduce(op kernels.RedOp) span {
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
		var partial, next [block8]float32
		for i := from; i < to; i += block8 {
			j := min(i+block8, to)
			p, x := partial[:j-i], next[:j-i]
			f.widen(p, at[uint8](srcs[0], i, j))
			for _, src := range srcs[1:] {
				f.widen(x, at[uint8](src, i, j))
				combine(op, p, p, x)
			}
			f.narrow(at[uint8](dst, i, j), p)
		}
	}
}

func (f *float8) preMul(dst unsafe.Pointer, srcs []unsafe.Pointer, from, to, scaled int, factor float64) {
	by := f.wide[kernels.Float8E4M3FromFloat64(factor)]
	if f.isFor == kernels.Float8e5m2 {
		by = f.wide[kernels.Float8E5M2FromFloat64(factor)]
	}
	var partial, next [block8]float32
	for i := from; i < to; i += block8 {
		j := min(i+block8, to)
		p := partial[:j-i]
		for k, src := range srcs {
			x := next[:j-i]
			if k == 0 {
				x = p
			}
			f.widen(x, at[uint8](src, i, j))
			if k == scaled || scaled == kernels.AllSources {
				f.scale(x, by)
			}
			if k > 0 {
				sum2(p, p, x)
			}
		}
		f.narrow(at[uint8](dst, i, j), p)
	}
}
