#include "textflag.h"

// func WaitNot(word *uint64, idle uint64, polls int32) bool
TEXT ·WaitNot(SB), NOSPLIT, $0-25
	MOVD  word+0(FP), R0
	MOVD  idle+8(FP), R1
	MOVWU polls+16(FP), R2

loop:
	LDAR (R0), R3
	CMP  R1, R3
	BNE  changed
	YIELD
	SUBSW $1, R2
	BGT  loop
	MOVB ZR, ret+24(FP)
	RET

changed:
	MOVD $1, R4
	MOVB R4, ret+24(FP)
	RET

// func Pause(n int32)
TEXT ·Pause(SB), NOSPLIT, $0-4
	MOVWU n+0(FP), R2

again:
	YIELD
	SUBSW $1, R2
	BGT  again
	RET

// func Own(p unsafe.Pointer, n int)
TEXT ·Own(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1

own:
	PRFM (R0), PSTL1KEEP
	ADD  $64, R0
	SUBS $1, R1
	BGT  own
	RET
