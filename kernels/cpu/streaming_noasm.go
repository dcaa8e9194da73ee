//go:build !amd64 || purego

package cpu

import "unsafe"

// CanStream reports whether [CopyStreaming] is more than [Copy].
func CanStream() bool { return false }

// CopyStreaming copies bytes from src to dst, which must not overlap, by stores that go past the caches: for what another processor
// reads next. Where lines of dst lie in that processor's cache, an ordinary store has to fetch them from there first. What is stored after
// the call is seen after the copy. Where a build or processor has no such stores, it is [Copy].
func CopyStreaming(dst, src unsafe.Pointer, bytes int) { Copy(dst, src, bytes) }
