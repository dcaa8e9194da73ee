package cpu

import (
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// A format is one of the two 16-bit floating-point formats. Its methods are loops as long as their
// first argument. NaNs are made canonical when they are written in the format, not when read.
type format bool

const (
	half     format = false
	bfloat16 format = true
)

// wide is BFloat16.Float32 without its care for NaN.
func wide(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }

// widen converts src to d.
func (form format) widen(d []float32, src []uint16) {
	src = src[:len(d)]
	if form == bfloat16 {
		for i := range d {
			d[i] = wide(src[i])
		}
		return
	}
	for i := range d {
		d[i] = kernels.Half(src[i]).Float32()
	}
}

// narrow rounds src to d.
func (form format) narrow(d []uint16, src []float32) {
	src = src[:len(d)]
	if form == bfloat16 {
		for i := range d {
			d[i] = uint16(kernels.BFloat16FromFloat32(src[i]))
		}
		return
	}
	for i := range d {
		d[i] = uint16(kernels.HalfFromFloat32(src[i]))
	}
}

// add is d += src.
func (form format) add(d []float32, src []uint16) {
	src = src[:len(d)]
	if form == bfloat16 {
		for i := range d {
			d[i] += wide(src[i])
		}
		return
	}
	for i := range d {
		d[i] += kernels.Half(src[i]).Float32()
	}
}

// sum2 is d = a + b. d may be one of them.
func (form format) sum2(d, a, b []uint16) {
	a, b = a[:len(d)], b[:len(d)]
	if form == bfloat16 {
		for i := range d {
			d[i] = uint16(kernels.BFloat16FromFloat32(wide(a[i]) + wide(b[i])))
		}
		return
	}
	for i := range d {
		d[i] = uint16(kernels.HalfFromFloat32(kernels.Half(a[i]).Float32() + kernels.Half(b[i]).Float32()))
	}
}

// scale is d = d·f, the product rounded to the format; f is a number of the format. A float32 holds
// such a product exactly unless it is too small for that, and what is lost then lies below half of
// the format's smallest number: it cannot turn the second rounding.
func (form format) scale(d []float32, f float32) {
	if form == bfloat16 {
		for i := range d {
			d[i] = wide(uint16(kernels.BFloat16FromFloat32(d[i] * f)))
		}
		return
	}
	for i := range d {
		d[i] = kernels.HalfFromFloat32(d[i] * f).Float32()
	}
}
