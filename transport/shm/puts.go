//go:build linux && (amd64 || arm64)

package shm

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cpu"
)

// puts is how what a peer reads next is written, into slots or lent memory: by ordinary stores, or by stores that go past the caches. Which is better depends on how far
// the processors are from each other, which on a virtual machine changes within seconds, so it is measured now and then.
//
// Measured with 2 ranks on one host: between distant cores an ordinary store into a line that the peer has read takes 0.3 to 0.4 ns a byte,
// a streaming one 0.03, and the peer reads either at 0.08; between near ones 0.05 to 0.1 and 0.02 to 0.06, but there the peer
// reads at 0.04 what is still in a cache, and at 0.09 what is not. What distant processors cost is seen only in memory that the peer has read before: the
// first comparisons say little, so they follow each other closely.
type puts struct {
	count, due       uint32
	ordinary, stream float64 // ns a byte
	far              bool
	fence            uint32
}

const (
	streamFrom = 1 << 10 // shorter messages stay in the caches
	probeBytes = 2 << 10
	probeEvery = 256 // copies
	probeAgain = 4
	lendFirst  = 16  // messages that are rather lent than copied for a comparison
	readLater  = 0.2 // what a reader is taken to pay for a streamed byte, in ns
)

// copy fills a slot, or a part of it.
func (p *puts) copy(slot, src unsafe.Pointer, n int) {
	if n < streamFrom {
		copyBytes(slot, src, n)
		return
	}
	if p.count++; p.count > p.due && n >= 2*probeBytes {
		p.probe(slot, src)
		if n == 2*probeBytes {
			return // what is behind src may be no memory
		}
		slot, src, n = unsafe.Add(slot, 2*probeBytes), unsafe.Add(src, 2*probeBytes), n-2*probeBytes
	}
	if p.far {
		cpu.CopyStreaming(slot, src, n)
	} else {
		copyBytes(slot, src, n)
	}
}

// wantsFill counts a message that is made in lent memory, and reports whether copy should put it there: the peer is far, or it is time to compare.
func (p *puts) wantsFill() bool {
	p.count++
	return p.far || p.count >= p.due
}

// wantsCopy counts a message that could be lent, and reports whether it is time to compare by copying one.
func (p *puts) wantsCopy() bool {
	p.count++
	return p.count > p.due+lendFirst
}

// probe copies the first bytes, one half in each way, and learns.
func (p *puts) probe(slot, src unsafe.Pointer) {
	atomic.AddUint32(&p.fence, 1) // stores wait in a queue of the processor's: begin and end with an empty one
	start := time.Now()
	cpu.CopyStreaming(slot, src, probeBytes)
	stream := time.Since(start)
	copyBytes(unsafe.Add(slot, probeBytes), unsafe.Add(src, probeBytes), probeBytes)
	atomic.AddUint32(&p.fence, 1)
	ordinary := time.Since(start) - stream
	was := p.far
	learn(&p.stream, stream)
	learn(&p.ordinary, ordinary)
	p.decide()
	p.due = p.count + min(p.count/4, probeEvery) // at first the peer has never read what we write to
	if p.far != was {
		p.due = p.count + probeAgain // an interrupt may have lied
	}
}

func (p *puts) decide() { p.far = p.ordinary > p.stream+readLater }

// learn lets an outlier, an interrupt's for instance, count for little.
func learn(average *float64, took time.Duration) {
	perByte := min(float64(took)/probeBytes, 1)
	*average += (perByte - *average) / 2
}
