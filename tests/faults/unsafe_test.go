//go:build linux

package faults

import "unsafe"

// addressOfBytes is for a system call that has no other way in.
func addressOfBytes(b *[16]byte) uintptr { return uintptr(unsafe.Pointer(b)) }
