//go:build !purego

package cpu

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

var canStream = cpuid.CPU.Supports(cpuid.AVX2)

// CanStream reports whether [CopyStreaming] is more than [Copy].
func CanStream() bool { return canStream }

// streamingGrain is how many bytes copyStreamingAVX2 takes at once.
const streamingGrain = 128

// CopyStreaming copies bytes from src to dst, which must not overlap, by stores that go past the caches: for what another processor
// reads next. Where lines of dst lie in that processor's cache, an ordinary store has to fetch them from there first. What is stored after
// the call is seen after the copy. Where a build or processor has no such stores, it is [Copy].
func CopyStreaming(dst, src unsafe.Pointer, bytes int) {
	if bytes < 2*streamingGrain || !canStream {
		Copy(dst, src, bytes)
		return
	}
	head := -int(uintptr(dst)) & (vectorBytes - 1)
	Copy(dst, src, head)
	end := head + (bytes-head)&^(streamingGrain-1)
	for at := head; at < end; {
		n := min(end-at, callBytes/2) // it cannot be preempted
		copyStreamingAVX2((*byte)(unsafe.Add(dst, at)), (*byte)(unsafe.Add(src, at)), n)
		at += n
	}
	if end < bytes { // else a pointer to what is behind the buffers, which may be anything
		Copy(unsafe.Add(dst, end), unsafe.Add(src, end), bytes-end)
	}
}
