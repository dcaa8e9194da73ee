//go:build linux && (amd64 || arm64)

package shm

import "errors"

// errBusy says that all slots hold messages that the peer has not read.
var errBusy = errors.New("no staging slot is free")

const (
	smallestSlot = 4 << 10
	largeSlot    = 1 << 20 // from here on, half as many slots

	turnFrom  = 16 << 10  // bytes of the shortest slots that are more than Config.Slots
	turnBytes = 768 << 10 // of the slots together, what the nearest caches hold; if that is a third of Config.Staging at most
)

// staging is where copied messages of a stream wait to be read: a few slots of
// one size, used in turn. Longer messages bring larger slots, and the old ones
// go when the peer has read what is in them.
type staging struct {
	seg  *segment
	off  int64
	slot int64    // bytes; 0: nothing there
	last []uint64 // per slot, the number of the line after the last one that used it
	next int
	old  []staging
}

// stage returns the offset of a slot of n bytes at least, for the next line. Slots are used in turn: whether one is free is then known of old, without
// a look at how far the reader is, and long messages find one that has left the peer's nearest cache, which takes less time to write. Compares says that
// the message could be lent, and is copied to find out how far the peer is: that is always done in the first slot, since only what the peer has read tells.
func (t *sender) stage(e *Endpoint, n int, compares bool) (int64, error) {
	g := &t.staging
	if int64(n) > g.slot {
		if err := g.grow(e, int64(n), t); err != nil {
			return 0, err
		}
	}
	at := t.seq + t.skew
	if compares || !t.passed(g.last[g.next]) {
		if err := t.refresh(); err != nil {
			return 0, err
		}
		if compares && t.head == at {
			g.next = 0
		}
		if !t.passed(g.last[g.next]) {
			return 0, errBusy
		}
	}
	off := g.off + int64(g.next)*g.slot
	g.last[g.next] = at + 1
	if g.next++; g.next == len(g.last) {
		g.next = 0
	}
	if len(g.old) > 0 {
		g.drain(t)
	}
	return off, nil
}

// passed reports whether the reader is done with the lines before line at.
func (t *sender) passed(at uint64) bool { return int64(t.head-at) >= 0 }

// grow replaces the slots by larger ones. Too little memory gives fewer slots,
// then waits for the old ones to go, then is an error.
func (g *staging) grow(e *Endpoint, n int64, t *sender) error {
	slot := int64(smallestSlot)
	for slot < n {
		slot *= 2
	}
	slot = min(slot, e.seg.round(int64(e.opts.MaxMessage)))
	count := e.config.Slots
	if slot >= largeSlot {
		count = (count + 1) / 2
	}
	if err := t.refresh(); err != nil {
		return err
	}
	g.drain(t)
	most := e.config.Staging
	turn := int(turnBytes / slot)
	switch others := e.seg.staged - g.bytes(); {
	case slot >= turnFrom && turn > count && (most == 0 || others+slot*int64(turn) <= most/3):
		count = turn
	case most > 0 && e.seg.staged+slot*int64(count) > most:
		count = 1
	}
	for {
		off, err := e.seg.take(slot*int64(count), e.seg.page, "messages on their way")
		if err == nil {
			e.seg.staged += slot * int64(count)
			fresh := staging{seg: e.seg, off: off, slot: slot, last: make([]uint64, count), old: g.old}
			for i := range fresh.last {
				fresh.last[i] = t.head
			}
			if g.slot > 0 {
				retired := *g
				retired.old = nil
				fresh.old = append(fresh.old, retired)
			}
			*g = fresh
			g.drain(t)
			return nil
		}
		switch {
		case count > 1:
			count /= 2
		case len(g.old) > 0:
			return errBusy // its memory comes back when the peer has read it
		case g.slot > 0 && !g.drained(t):
			return errBusy
		case g.slot > 0:
			g.free()
		default:
			return err
		}
	}
}

// drained reports whether the peer has read everything in the slots.
func (g *staging) drained(t *sender) bool {
	for _, at := range g.last {
		if !t.passed(at) {
			return false
		}
	}
	return true
}

// drain frees the old slots that the peer has read.
func (g *staging) drain(t *sender) {
	kept := g.old[:0]
	for _, o := range g.old {
		if o.drained(t) {
			o.free()
		} else {
			kept = append(kept, o)
		}
	}
	g.old = kept
}

// bytes is how much memory the slots are, old ones too.
func (g *staging) bytes() int64 {
	n := g.slot * int64(len(g.last))
	for i := range g.old {
		n += g.old[i].bytes()
	}
	return n
}

func (g *staging) free() {
	for i := range g.old {
		g.old[i].free()
	}
	if g.slot > 0 {
		g.seg.staged -= g.slot * int64(len(g.last))
		_ = g.seg.put(g.off, g.slot*int64(len(g.last))) // it goes with Close at the latest
	}
	*g = staging{}
}
