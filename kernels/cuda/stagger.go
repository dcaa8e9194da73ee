package cuda

import (
	"bytes"
	"regexp"
)

// OpenStaggered is Open of a GPU whose kernels dawdle: their warps sleep at random, block by block, when they begin, before they look at
// what other GPUs store, before they store for them and before barriers. What comes out must be the same, and what does not shows a race that
// happens seldom otherwise. It costs much time. Emulated GPUs, whose threads run in random order anyway, don't dawdle.
func OpenStaggered(ordinal int) (*Device, error) { return open(ordinal, stagger) }

// meetings are where the kernels' text has to do with other blocks: the compiler puts each such instruction of ptx.h between lines of its own.
var meetings = regexp.MustCompile(`(?m)^\t// begin inline asm\n.*(?:\.sys\.global|bar\.|griddepcontrol|%ctaid\.y).*\n`)

// dawdle sleeps less than 4 µs in one of 16 cases and less than 64 µs in one of 4096, by the clock and the block. A warp does so as one: lines of LL128
// are stored by 8 threads at once.
const dawdle = `	{ .reg .pred some, few; .reg .b32 t, b;
	mov.u32 t, %clock;
	mov.u32 b, %ctaid.x;
	mad.lo.u32 t, b, 0x9E3779B9, t;
	mul.lo.u32 t, t, 0x85EBCA6B;
	shr.u32 b, t, 15;
	xor.b32 t, t, b;
	mul.lo.u32 t, t, 0xC2B2AE35;
	shr.u32 b, t, 28;
	setp.eq.u32 some, b, 0;
	shr.u32 b, t, 20;
	setp.eq.u32 few, b, 0;
	and.b32 t, t, 4095;
	@few shl.b32 t, t, 4;
	@some nanosleep.u32 t; }
`

func stagger(text []byte) []byte {
	return meetings.ReplaceAllFunc(text, func(meeting []byte) []byte { return append([]byte(dawdle), bytes.Clone(meeting)...) })
}
