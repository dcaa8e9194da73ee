package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// folds lists the kernels. Sums and products of integers are the same bits for signed and unsigned ones.
func folds() []fold {
	int8s, int32s, int64s := plain("Int8"), plain("Int32"), plain("Int64")
	uint8s, uint32s, uint64s := plain("Uint8"), plain("Uint32"), flipped("Uint64")
	list := []fold{
		of("sum", int8s, 8, func(acc VecVirtual, x Op) { VPADDB(x, acc, acc) }),
		of("sum", int32s, 8, func(acc VecVirtual, x Op) { VPADDD(x, acc, acc) }),
		of("sum", int64s, 8, func(acc VecVirtual, x Op) { VPADDQ(x, acc, acc) }),
		of("prod", withEvenBytes(int8s), 4, multiplyBytes),
		of("prod", int32s, 8, func(acc VecVirtual, x Op) { VPMULLD(x, acc, acc) }),
		of("prod", int64s, 8, multiplyQuads),
		of("max", int8s, 8, func(acc VecVirtual, x Op) { VPMAXSB(x, acc, acc) }),
		of("max", uint8s, 8, func(acc VecVirtual, x Op) { VPMAXUB(x, acc, acc) }),
		of("max", int32s, 8, func(acc VecVirtual, x Op) { VPMAXSD(x, acc, acc) }),
		of("max", uint32s, 8, func(acc VecVirtual, x Op) { VPMAXUD(x, acc, acc) }),
		of("max", int64s, 8, maxQuads),
		of("max", uint64s, 8, maxQuads),
		of("min", int8s, 8, func(acc VecVirtual, x Op) { VPMINSB(x, acc, acc) }),
		of("min", uint8s, 8, func(acc VecVirtual, x Op) { VPMINUB(x, acc, acc) }),
		of("min", int32s, 8, func(acc VecVirtual, x Op) { VPMINSD(x, acc, acc) }),
		of("min", uint32s, 8, func(acc VecVirtual, x Op) { VPMINUD(x, acc, acc) }),
		of("min", int64s, 8, minQuads),
		of("min", uint64s, 8, minQuads),
		of("sum", float64s(), 8, float64s().sum),
		of("prod", float64s(), 8, func(acc VecVirtual, x Op) { VMULPD(x, acc, acc) }),
		of("max", float64s(), 8, maxDoubles),
		of("min", float64s(), 8, minDoubles),
	}
	for _, t := range []*operand{float32s(), halves(), bfloats()} {
		units, many := 8, 8
		if !t.direct {
			units, many = 4, 2 // registers are few
		}
		list = append(list,
			of("sum", t, units, t.sum),
			of("prod", t, units, func(acc VecVirtual, x Op) { VMULPS(x, acc, acc) }),
			of("max", t, many, maxFloats),
			of("min", t, many, minFloats))
	}
	return list
}

func of(op string, t *operand, units int, vector func(VecVirtual, Op)) fold {
	return fold{operand: t, name: op + t.title + "AVX2", vector: vector, units: units}
}

func (f fold) does() string {
	return map[string]string{"sum": "the sum", "pro": "the product", "max": "the maximum", "min": "the minimum"}[f.name[:3]] + " of all sources, in their order"
}

// evenBytes is the constant of multiplyBytes.
var evenBytes VecVirtual

func withEvenBytes(t *operand) *operand {
	t.prepare = func() { evenBytes = constant(0x00ff00ff, 4) }
	return t
}

// multiplyBytes makes do with products of 16 bits: the lower byte of one depends on lower bytes alone.
func multiplyBytes(acc VecVirtual, x Op) {
	y, even, odd := inRegister(x), YMM(), YMM()
	VPMULLW(y, acc, even)
	VPAND(evenBytes, even, even)
	VPSRLW(Imm(8), acc, odd)
	VPSRLW(Imm(8), y, y)
	VPMULLW(y, odd, odd)
	VPSLLW(Imm(8), odd, odd)
	VPOR(even, odd, acc)
}

// multiplyQuads is low·low + (low·high + high·low)·2³².
func multiplyQuads(acc VecVirtual, x Op) {
	y, cross, low := inRegister(x), YMM(), YMM()
	VPSHUFD(Imm(0xb1), y, cross)
	VPMULLD(cross, acc, cross)
	VPSRLQ(Imm(32), cross, low)
	VPADDD(low, cross, cross)
	VPSLLQ(Imm(32), cross, cross)
	VPMULUDQ(y, acc, low)
	VPADDQ(low, cross, acc)
}

func maxQuads(acc VecVirtual, x Op) {
	y, greater := inRegister(x), YMM()
	VPCMPGTQ(y, acc, greater)
	VBLENDVPD(greater, acc, y, acc)
}

func minQuads(acc VecVirtual, x Op) {
	y, greater := inRegister(x), YMM()
	VPCMPGTQ(y, acc, greater)
	VBLENDVPD(greater, y, acc, acc)
}

// The processor's maximum of two zeros or with a NaN is its second operand. Taken in both orders, zeros of two signs
// give +0 by AND (the minimum -0 by OR), and equal numbers themselves. NaNs are set apart: all bits, which is a NaN and stays one.

func maxFloats(acc VecVirtual, x Op) {
	y, other, unordered := inRegister(x), YMM(), YMM()
	VCMPPS(Imm(3), y, acc, unordered)
	VMAXPS(acc, y, other)
	VMAXPS(y, acc, acc)
	VANDPS(other, acc, acc)
	VORPS(unordered, acc, acc)
}

func minFloats(acc VecVirtual, x Op) {
	y, other, unordered := inRegister(x), YMM(), YMM()
	VCMPPS(Imm(3), y, acc, unordered)
	VMINPS(acc, y, other)
	VMINPS(y, acc, acc)
	VORPS(other, acc, acc)
	VORPS(unordered, acc, acc)
}

func maxDoubles(acc VecVirtual, x Op) {
	y, other, unordered := inRegister(x), YMM(), YMM()
	VCMPPD(Imm(3), y, acc, unordered)
	VMAXPD(acc, y, other)
	VMAXPD(y, acc, acc)
	VANDPD(other, acc, acc)
	VORPD(unordered, acc, acc)
}

func minDoubles(acc VecVirtual, x Op) {
	y, other, unordered := inRegister(x), YMM(), YMM()
	VCMPPD(Imm(3), y, acc, unordered)
	VMINPD(acc, y, other)
	VMINPD(y, acc, acc)
	VORPD(other, acc, acc)
	VORPD(unordered, acc, acc)
}
