//go:build !amd64 || purego

package cpu

// accelerated returns the implementations beside the generic one: none.
func accelerated() []Implementation { return nil }
