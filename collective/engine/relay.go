package engine

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/transport"
)

// relay is what a fold works with whose result is sent on at once: the result of each block is copied to where peers read it as long as it is
// in the nearest cache.
type relay struct {
	to    []transport.Stager // of the sends behind the fold
	slots []unsafe.Pointer
	final []bool // a slot is where the peer wants the message, and not read soon
	srcs  []unsafe.Pointer
	block []byte
}

// coldFrom is from how many bytes on a call's memory is taken to be more than caches hold: its results go past them. Measured on a host of two
// cores: such stores win from 4 MiB between distant cores, from 16 MiB between near ones.
const coldFrom = 8 << 20

const (
	relayBlock = 8 << 10 // bytes; sources, result and slot fit the nearest cache together
	relayFrom  = 16 << 10
)

// foldOn runs a fold op at pc, and copies its result to where the sends that come next have it, as far as those can be made in slots. They are for sendStaged.
func (l *Lane) foldOn(t *Task, o *collective.Op, dst unsafe.Pointer, size, scaled int) {
	r := &l.relay
	if size < relayFrom {
		fold(t, dst, l.srcs, size, scaled)
		return
	}
	lent := l.stageNext(t, o, size)
	past := l.cold || lent && r.to[0].FillsLent()
	if !past && len(r.slots) == 0 {
		fold(t, dst, l.srcs, size, scaled)
		return
	}
	if r.block == nil {
		r.block = make([]byte, relayBlock)
	}
	r.srcs = append(r.srcs[:0], l.srcs...)
	for at := 0; at < size; at += relayBlock {
		n := min(relayBlock, size-at)
		for i, p := range l.srcs {
			r.srcs[i] = unsafe.Add(p, at)
		}
		to := unsafe.Add(dst, at)
		made := to
		if past {
			made = unsafe.Pointer(unsafe.SliceData(r.block))
		}
		fold(t, made, r.srcs, n, scaled)
		for i, slot := range r.slots {
			if l.cold && r.final[i] {
				cpu.CopyStreaming(unsafe.Add(slot, at), made, n)
			} else {
				r.to[i].Fill(unsafe.Add(slot, at), made, n)
			}
		}
		switch {
		case made == to:
		case l.cold:
			cpu.CopyStreaming(to, made, n)
		default:
			r.to[0].Fill(to, made, n)
		}
	}
	clear(r.srcs)
}

// sendStaged makes the sends whose messages are in slots, and skips their ops. The views that the fold used are released by then: what was taken back
// meanwhile is nobody's result.
func (l *Lane) sendStaged(t *Task, size int) error {
	r := &l.relay
	for i := range r.slots {
		if err := r.to[i].SendStaged(t.Tag, size); err != nil {
			return err
		}
		l.pc++
		l.links[l.ops[l.pc].Peer].sent++
	}
	return nil
}

// stageNext finds the sends of the fold's result that come next, and slots for them; or says that they lend its memory.
func (l *Lane) stageNext(t *Task, o *collective.Op, size int) (lent bool) {
	r := &l.relay
	r.to, r.slots, r.final = r.to[:0], r.slots[:0], r.final[:0]
	for i := l.pc + 1; i < len(l.ops) && l.ops[i].Code == collective.OpSend; i++ {
		src := &t.Plan.Srcs[l.ops[i].Src]
		if src.Block != o.Dst.Block || src.Piece != o.Dst.Piece || src.Space != o.Dst.Space {
			break
		}
		k := &l.links[l.ops[i].Peer]
		s, ok := k.stream.(transport.Stager)
		if !ok {
			break
		}
		var slot unsafe.Pointer
		if k.lander != nil {
			slot = k.lander.Landing(size)
		}
		final := slot != nil
		if !final && t.lends(src) && s.Lends(size) { // and so do the others, but for those that have a place for it
			r.to = append(r.to, s)
			return true
		}
		if !final {
			slot = s.Stage(size)
		}
		if slot == nil {
			break
		}
		r.to, r.slots, r.final = append(r.to, s), append(r.slots, slot), append(r.final, final)
	}
	return false
}

// lends reports whether a send from there may lend the memory.
func (t *Task) lends(src *collective.Ref) bool {
	return src.Flags&collective.Lend != 0 && (src.Space == collective.In && t.InShared || src.Space == collective.Out && t.OutShared)
}

// fold folds size bytes.
func fold(t *Task, dst unsafe.Pointer, srcs []unsafe.Pointer, size, scaled int) {
	if scaled >= 0 {
		t.PreMul(dst, srcs, size/t.Layout.Elem, scaled, t.Factor)
	} else {
		t.Fold(dst, srcs, size/t.Layout.Elem)
	}
}
