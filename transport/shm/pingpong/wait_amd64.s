//go:build linux

#include "textflag.h"

// func waitNot(word *uint64, idle uint64, polls int32) bool
TEXT ·waitNot(SB), NOSPLIT, $0-25
	MOVQ word+0(FP), AX
	MOVQ idle+8(FP), BX
	MOVL polls+16(FP), CX

poll:
	MOVQ  (AX), DX
	CMPQ  DX, BX
	JNE   changed
	PAUSE
	DECL  CX
	JGT   poll
	MOVB  $0, ret+24(FP)
	RET

changed:
	MOVB $1, ret+24(FP)
	RET
