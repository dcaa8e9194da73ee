// Command _asm writes the AVX2 kernels of package cpu: zavx2_amd64.s and the declarations in zavx2_amd64.go. Package cpu runs
// it by go generate.
//
// Every kernel folds the bytes from…to-1 of all sources into the same bytes of dst; from and to are multiples of 32.
// It holds a block of partial results in registers, runs through the sources in their order, and writes the block: one pass over
// memory, and dst may be any of the sources, since a block is read before it is written. What a kernel computes is
// described by an operand type (how 32 bytes become vectors to compute in, and back) and an operator.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// unit is how many bytes a vector register holds, and of how many from and to are multiples.
const unit = 32

func main() {
	ConstraintExpr("!purego")
	for _, f := range folds() {
		f.reduce()
	}
	for _, t := range []*operand{float32s(), float64s(), halves(), bfloats()} {
		t.preMul()
	}
	copyStreaming()
	Generate()
}

// A fold is a kernel: a type with an operator.
type fold struct {
	*operand
	name   string
	vector func(acc VecVirtual, x Op) // acc = acc ⊕ x
	units  int                        // in a block
}

// scalars are the registers that all kernels have.
type scalars struct{ dst, srcs, nsrc, from, to Register }

func loadScalars() scalars {
	return scalars{Load(Param("dst"), GP64()), Load(Param("srcs"), GP64()), Load(Param("nsrc"), GP64()), Load(Param("from"), GP64()), Load(Param("to"), GP64())}
}

// blocks runs body over [from, to) in blocks of so many units, then in single units.
func (s scalars) blocks(units int, body func(label string, units int)) {
	for i, n := range []int{units, 1} {
		again, done := fmt.Sprintf("blocks%d", n), fmt.Sprintf("end%d", n)
		if i == 1 && units == 1 {
			break
		}
		Label(again)
		next := GP64()
		LEAQ(Mem{Base: s.from, Disp: n * unit}, next)
		CMPQ(next, s.to)
		JGT(LabelRef(done))
		body(again, n)
		MOVQ(next, s.from)
		JMP(LabelRef(again))
		Label(done)
	}
}

// source sets p to where the block of the source at the cursor begins, and moves the cursor on.
func (s scalars) source(cursor, p Register) {
	MOVQ(Mem{Base: cursor}, p)
	ADDQ(s.from, p)
	ADDQ(Imm(8), cursor)
}

func (f fold) reduce() {
	TEXT(f.name, NOSPLIT, "func(dst *byte, srcs **byte, nsrc, from, to int)")
	Pragma("noescape")
	Doc(f.name + " is " + f.does() + ".")
	s := loadScalars()
	f.prepare()
	s.blocks(f.units, func(label string, units int) {
		cursor, p, left := GP64(), GP64(), GP64()
		MOVQ(s.srcs, cursor)
		s.source(cursor, p)
		acc := make([][]VecVirtual, units)
		for u := range acc {
			acc[u] = f.open(Mem{Base: p, Disp: u * unit})
		}
		MOVQ(s.nsrc, left)
		DECQ(left)
		JZ(LabelRef(label + "write"))
		Label(label + "source")
		s.source(cursor, p)
		for u := range acc {
			f.add(acc[u], Mem{Base: p, Disp: u * unit}, f.vector)
		}
		DECQ(left)
		JNZ(LabelRef(label + "source"))
		Label(label + "write")
		f.nans.clean(acc, label)
		ADDQ(s.dst, s.from)
		for u := range acc {
			f.close(acc[u], Mem{Base: s.from, Disp: u * unit})
		}
	})
	VZEROUPPER()
	RET()
}

// preMul writes the sum that multiplies sources by factors[1] when their number is scaled, or scaled is negative, and by
// factors[0], which is 1 and changes nothing, otherwise.
func (t *operand) preMul() {
	name := "preMul" + t.title + "AVX2"
	TEXT(name, NOSPLIT, fmt.Sprintf("func(dst *byte, srcs **byte, nsrc, from, to, scaled int, factors *[2]%s)", t.factor))
	Pragma("noescape")
	Doc(name + " is dst = srcs[0]·f + srcs[1]·f + … , each product rounded; f is factors[1] for the source scaled, or for all when scaled is negative, else factors[0].")
	s := loadScalars()
	scaled, factors, all := Load(Param("scaled"), GP64()), Load(Param("factors"), GP64()), GP64()
	MOVQ(scaled, all)
	SHRQ(Imm(63), all)
	t.prepare()
	s.blocks(t.scaledUnits, func(label string, units int) {
		cursor, p, k, which, f := GP64(), GP64(), GP64(), GP64(), YMM()
		source := func() {
			s.source(cursor, p)
			XORQ(which, which)
			CMPQ(k, scaled)
			SETEQ(which.As8())
			ORQ(all, which)
			t.spread(Mem{Base: factors, Index: which, Scale: uint8(t.factorBytes)}, f)
			INCQ(k)
		}
		MOVQ(s.srcs, cursor)
		XORQ(k, k)
		source()
		acc := make([][]VecVirtual, units)
		for u := range acc {
			acc[u] = t.open(Mem{Base: p, Disp: u * unit})
			t.scale(acc[u], f)
		}
		CMPQ(k, s.nsrc)
		JE(LabelRef(label + "write"))
		Label(label + "source")
		source()
		for u := range acc {
			x := t.open(Mem{Base: p, Disp: u * unit})
			t.scale(x, f)
			for i := range x {
				t.sum(acc[u][i], x[i])
			}
		}
		CMPQ(k, s.nsrc)
		JNE(LabelRef(label + "source"))
		Label(label + "write")
		t.nans.clean(acc, label)
		ADDQ(s.dst, s.from)
		for u := range acc {
			t.close(acc[u], Mem{Base: s.from, Disp: u * unit})
		}
	})
	VZEROUPPER()
	RET()
}
