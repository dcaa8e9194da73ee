package cpu

import "unsafe"

// Copy copies bytes from src to dst, which may overlap in any way. With bytes ≤ 0 nothing is
// touched.
func Copy(dst, src unsafe.Pointer, bytes int) {
	if bytes > 0 {
		copy(unsafe.Slice((*byte)(dst), bytes), unsafe.Slice((*byte)(src), bytes))
	}
}
