// Package spin waits for a word of memory to change, in a few instructions of assembly with PAUSE, which makes the
// exchange of a line between two processors not only kinder to a sibling thread but faster than a loop of loads.
//
// The Go runtime cannot stop a goroutine inside assembly, and a garbage collection would wait for as long as a spin lasts:
// 64 polls are about 2 µs. A loop of spins must call Preemptible in between.
//
//	for !spin.WaitNot(word, idle, 64) {
//		spin.Preemptible()
//	}
//
// Own is for the other end: who stores a word that is waited for.
package spin

// Preemptible is a call with a stack frame, which assembly cannot be: here the runtime can stop the goroutine.
//
//go:noinline
func Preemptible() {
	var frame [16]byte
	use(&frame)
}

//go:noinline
func use(*[16]byte) {}
