//go:build amd64 || arm64

package spin

// WaitNot polls word until it differs from idle, at most polls times, and reports whether it does. What another processor
// stored before it stored the word is then seen.
//
//go:noescape
func WaitNot(word *uint64, idle uint64, polls int32) bool

// Pause lets n PAUSE instructions pass.
func Pause(n int32)

// Own asks for n ≥ 1 cache lines of 64 bytes from p on, as stores to them would, and returns at once: stores that come when the lines have need not
// wait. It changes nothing, and where no memory is it does nothing.
//
//go:noescape
func Own(p *uint64, n int)
