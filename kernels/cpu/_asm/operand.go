package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// An operand is a data type: how 32 bytes of memory become vectors to compute in, and back.
type operand struct {
	title   string
	prepare func()                        // constants into registers, once per call
	open    func(m Mem) []VecVirtual      // the numbers of 32 bytes
	close   func(acc []VecVirtual, m Mem) // the opposite, for canonical NaNs; it may destroy acc
	nans    nanCare                       // of floating-point types
	direct  bool                          // what open does is a plain load
	sum     func(acc VecVirtual, x Op)    // acc += x

	// For preMul, of floating-point types.
	factor      string // its type in Go
	factorBytes int
	spread      func(m Mem, f VecVirtual)          // one factor into all elements
	scale       func(x []VecVirtual, f VecVirtual) // x *= f, rounded to the type
	scaledUnits int                                // in a block
}

// add is acc ⊕= the 32 bytes at m.
func (t *operand) add(acc []VecVirtual, m Mem, vector func(VecVirtual, Op)) {
	if t.direct {
		vector(acc[0], m)
		return
	}
	for i, x := range t.open(m) {
		vector(acc[i], x)
	}
}

func load(m Mem) VecVirtual {
	y := YMM()
	VMOVDQU(m, y)
	return y
}

// inRegister is for operators that use x more than once.
func inRegister(x Op) VecVirtual {
	if m, is := x.(Mem); is {
		return load(m)
	}
	return x.(VecVirtual)
}

// constant returns a register with a number of 32 or 64 bits in all elements.
func constant(bits uint64, size int) VecVirtual {
	r, y := GP64(), YMM()
	MOVQ(U64(bits), r)
	VMOVQ(r, y.AsX())
	if size == 4 {
		VPBROADCASTD(y.AsX(), y)
	} else {
		VPBROADCASTQ(y.AsX(), y)
	}
	return y
}

func plain(title string) *operand {
	return &operand{
		title:   title,
		prepare: func() {},
		open:    func(m Mem) []VecVirtual { return []VecVirtual{load(m)} },
		close:   func(acc []VecVirtual, m Mem) { VMOVDQU(acc[0], m) },
		direct:  true,
	}
}

// flipped is for unsigned numbers of 64 bits, which AVX2 compares only as signed ones: their top bit is turned.
func flipped(title string) *operand {
	t := plain(title)
	var top VecVirtual
	t.prepare = func() { top = constant(1<<63, 8) }
	t.open = func(m Mem) []VecVirtual {
		y := YMM()
		VPXOR(m, top, y)
		return []VecVirtual{y}
	}
	t.close = func(acc []VecVirtual, m Mem) {
		VPXOR(acc[0], top, acc[0])
		VMOVDQU(acc[0], m)
	}
	t.direct = false
	return t
}

// nanCare is how NaNs of a vector type are found and made canonical.
type nanCare struct {
	unordered func(a, b, mask VecVirtual) // the places where a or b has a NaN
	canonical func(x VecVirtual)
}

// clean makes NaNs of a block canonical. They are rare: two vectors are looked at together, and one jump leaves out the rest.
func (c nanCare) clean(block [][]VecVirtual, label string) {
	if c.unordered == nil {
		return
	}
	var all []VecVirtual
	for _, acc := range block {
		all = append(all, acc...)
	}
	found := YMM()
	for i := 0; i < len(all); i += 2 {
		mask := found
		if i > 0 {
			mask = YMM()
		}
		c.unordered(all[i], all[min(i+1, len(all)-1)], mask)
		if i > 0 {
			VORPS(mask, found, found)
		}
	}
	VPTEST(found, found)
	JZ(LabelRef(label + "clean"))
	for _, x := range all {
		c.canonical(x)
	}
	Label(label + "clean")
}

// care32 is for vectors of float32.
func care32(nan VecVirtual) nanCare {
	return nanCare{
		func(a, b, mask VecVirtual) { VCMPPS(Imm(3), a, b, mask) },
		func(x VecVirtual) {
			mask := YMM()
			VCMPPS(Imm(3), x, x, mask)
			VBLENDVPS(mask, nan, x, x)
		},
	}
}

func float32s() *operand {
	t := plain("Float32")
	t.prepare = func() { t.nans = care32(constant(0x7fc00000, 4)) }
	t.sum = func(acc VecVirtual, x Op) { VADDPS(x, acc, acc) }
	t.factor, t.factorBytes, t.scaledUnits = "float32", 4, 8
	t.spread = func(m Mem, f VecVirtual) { VBROADCASTSS(m, f) }
	t.scale = func(x []VecVirtual, f VecVirtual) { VMULPS(f, x[0], x[0]) }
	return t
}

func float64s() *operand {
	t := plain("Float64")
	t.prepare = func() {
		nan := constant(0x7ff8000000000000, 8)
		t.nans = nanCare{
			func(a, b, mask VecVirtual) { VCMPPD(Imm(3), a, b, mask) },
			func(x VecVirtual) {
				mask := YMM()
				VCMPPD(Imm(3), x, x, mask)
				VBLENDVPD(mask, nan, x, x)
			},
		}
	}
	t.sum = func(acc VecVirtual, x Op) { VADDPD(x, acc, acc) }
	t.factor, t.factorBytes, t.scaledUnits = "float64", 8, 8
	t.spread = func(m Mem, f VecVirtual) { VBROADCASTSD(m, f) }
	t.scale = func(x []VecVirtual, f VecVirtual) { VMULPD(f, x[0], x[0]) }
	return t
}

// halves are computed in two vectors of float32: the lower eight numbers and the upper eight. The canonical NaN of float32 becomes
// that of the format when converted.
func halves() *operand {
	t := float32s()
	t.title, t.direct = "Float16", false
	t.open = func(m Mem) []VecVirtual {
		low, high := YMM(), YMM()
		VCVTPH2PS(m, low)
		VCVTPH2PS(m.Offset(16), high)
		return []VecVirtual{low, high}
	}
	t.close = func(acc []VecVirtual, m Mem) {
		for i, y := range acc {
			VCVTPS2PH(Imm(0), y, m.Offset(16*i))
		}
	}
	t.scale = func(x []VecVirtual, f VecVirtual) {
		for _, y := range x {
			VMULPS(f, y, y)
			VCVTPS2PH(Imm(0), y, y.AsX())
			VCVTPH2PS(y.AsX(), y)
		}
	}
	t.scaledUnits = 4
	return t
}

// bfloats are computed in two vectors of float32: the numbers at even places and those at odd ones, so that nothing
// need be shuffled.
func bfloats() *operand {
	t := float32s()
	t.title, t.direct = "BFloat16", false
	var upper, one, bias VecVirtual
	care := t.prepare
	t.prepare = func() {
		care()
		upper, one, bias = constant(0xffff0000, 4), constant(0x00010001, 4), constant(0x7ffe7ffe, 4)
	}
	t.open = func(m Mem) []VecVirtual {
		even, odd := YMM(), YMM()
		VMOVDQU(m, odd)
		VPSLLD(Imm(16), odd, even)
		VPAND(upper, odd, odd)
		return []VecVirtual{even, odd}
	}
	// pack rounds both vectors into one, for canonical NaNs. It destroys odd and returns even's register.
	pack := func(even, odd VecVirtual) VecVirtual {
		lower, last := YMM(), YMM()
		VPSLLD(Imm(16), odd, lower)
		VPBLENDW(Imm(0x55), even, lower, lower) // what is rounded away
		VPSRLD(Imm(16), even, even)
		VPBLENDW(Imm(0xaa), odd, even, even) // what stays
		VPAND(one, even, last)
		VPOR(bias, last, last)
		VPAVGW(last, lower, lower) // half of what is rounded away + 0x7fff + the last bit: the top bit is the carry
		VPSRLW(Imm(15), lower, lower)
		VPADDW(lower, even, even)
		return even
	}
	t.close = func(acc []VecVirtual, m Mem) { VMOVDQU(pack(acc[0], acc[1]), m) }
	t.scale = func(x []VecVirtual, f VecVirtual) {
		for _, y := range x {
			VMULPS(f, y, y)
			t.nans.canonical(y)
		}
		y := pack(x[0], x[1])
		VPAND(upper, y, x[1])
		VPSLLD(Imm(16), y, x[0])
	}
	t.scaledUnits = 2
	return t
}
