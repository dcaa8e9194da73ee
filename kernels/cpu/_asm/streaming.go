package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// copyStreaming writes a copy by stores that go past the caches. What is stored after it is seen after it.
func copyStreaming() {
	const units = 4
	TEXT("copyStreamingAVX2", NOSPLIT, "func(dst, src *byte, n int)")
	Pragma("noescape")
	Doc("copyStreamingAVX2 copies n bytes, a multiple of 128 and not 0, by stores that go past the caches; dst is a multiple of 32.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	Label("again")
	var ys [units]VecVirtual
	for u := range ys {
		ys[u] = load(Mem{Base: src, Disp: u * unit})
	}
	for u, y := range ys {
		VMOVNTDQ(y, Mem{Base: dst, Disp: u * unit})
	}
	ADDQ(Imm(units*unit), src)
	ADDQ(Imm(units*unit), dst)
	SUBQ(Imm(units*unit), n)
	JNZ(LabelRef("again"))
	SFENCE()
	VZEROUPPER()
	RET()
}
