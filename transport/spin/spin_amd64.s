#include "textflag.h"

// func WaitNot(word *uint64, idle uint64, polls int32) bool
TEXT ·WaitNot(SB), NOSPLIT, $0-25
	MOVQ word+0(FP), AX
	MOVQ idle+8(FP), BX
	MOVL polls+16(FP), CX

loop:
	MOVQ (AX), DX
	CMPQ DX, BX
	JNE  changed
	PAUSE
	DECL CX
	JG   loop
	MOVB $0, ret+24(FP)
	RET

changed:
	MOVB $1, ret+24(FP)
	RET

// func Pause(n int32)
TEXT ·Pause(SB), NOSPLIT, $0-4
	MOVL n+0(FP), CX

again:
	PAUSE
	DECL CX
	JG   again
	RET

// func Own(p unsafe.Pointer, n int)
TEXT ·Own(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

own:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX)
	ADDQ $64, AX
	DECQ CX
	JG   own
	RET
