//go:build linux

#include "textflag.h"

// func waitNot(word *uint64, idle uint64, polls int32) bool
TEXT ·waitNot(SB), NOSPLIT, $0-25
	MOVD word+0(FP), R0
	MOVD idle+8(FP), R1
	MOVW polls+16(FP), R2

poll:
	LDAR  (R0), R3
	CMP   R3, R1
	BNE   changed
	YIELD
	SUBSW $1, R2, R2
	BGT   poll
	MOVB  ZR, ret+24(FP)
	RET

changed:
	MOVD $1, R4
	MOVB R4, ret+24(FP)
	RET
