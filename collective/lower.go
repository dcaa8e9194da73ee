package collective

import "slices"

// renamed returns the step with those sources renamed that have another name.
func renamed(step []Instr, name map[Slot]Slot) []Instr {
	out := slices.Clone(step)
	for i := range out {
		in := &out[i]
		for j, src := range in.Srcs {
			if to, ok := name[src]; ok {
				if &in.Srcs[0] == &step[i].Srcs[0] {
					in.Srcs = slices.Clone(in.Srcs)
				}
				in.Srcs[j] = to
			}
		}
	}
	return out
}

// saveInputs copies to Temp, before everything else, the input chunks that an in-place
// call would overwrite before their last use, and those that must be scaled before
// they are sent; and drops copies onto themselves.
func (c *compiler) saveInputs(steps [][]Instr) [][]Instr {
	type write struct{ step, instr int }
	first := map[cell]write{} // the first write of a cell, after which it no longer holds the input
	kept := make([][]Instr, len(steps))
	for k, step := range steps {
		for _, in := range step {
			if in.Code == Copy && c.slot(in.Dst) == c.slot(in.Srcs[0]) && (in.Srcs[0].Space != In || !c.scale) {
				// An input that was overwritten before comes back from where it was saved.
				if _, ok := first[c.slot(in.Dst)]; !ok || in.Srcs[0].Space != In {
					continue
				}
			}
			kept[k] = append(kept[k], in)
		}
		for i, in := range kept[k] {
			if in.Code == Send {
				continue
			}
			if _, ok := first[c.slot(in.Dst)]; !ok {
				first[c.slot(in.Dst)] = write{k, i}
			}
		}
	}
	save := map[Slot]Slot{}
	var prologue []Instr
	for k, step := range kept {
		for i, in := range step {
			for _, src := range in.Srcs {
				if _, ok := save[src]; ok || src.Space != In {
					continue
				}
				w, ok := first[c.slot(src)]
				late := ok && (k > w.step || k == w.step && in.Code != Send && i != w.instr)
				if late || c.scale && in.Code == Send {
					save[src] = c.newTemp(c.pieceOf(src))
					prologue = append(prologue, copySlot(save[src], src))
				}
			}
		}
	}
	if len(prologue) == 0 {
		return kept
	}
	out := [][]Instr{prologue}
	for _, step := range kept {
		out = append(out, renamed(step, save))
	}
	return out
}

// lower splits RecvReduce, turns receives into views where that is right, and leaves
// sends, receives, views, folds and copies.
func (c *compiler) lower(steps [][]Instr) [][]Instr {
	viewable := c.viewable(steps)
	shown := map[Slot]Slot{} // chunks of Temp that are read where the transport shows them
	read := map[cell]bool{}  // what a step reads
	due := map[int32]int{}   // receives of a step from each peer that are still to come
	out := make([][]Instr, len(steps))
	for k, step := range steps {
		if len(shown) > 0 {
			step = renamed(step, shown)
		}
		clear(read)
		for _, in := range step {
			if in.Code == Recv || in.Code == RecvReduce {
				due[in.Peer]++
			}
			for _, src := range in.Srcs {
				if src.Space != Wire {
					read[c.slot(src)] = true
				}
			}
		}
		for _, in := range step {
			if in.Code == Recv || in.Code == RecvReduce {
				due[in.Peer]--
			}
			// take receives a message where a fold can read it: a view, of which one of a
			// peer may be out, or else Temp.
			take := func() Slot {
				to, code := Slot{}, Recv
				if due[in.Peer] > 0 {
					to = c.newTemp(c.pieceOf(in.Dst))
				} else {
					c.views = append(c.views, in)
					to, code = Slot{view, int32(len(c.views) - 1)}, viewOp
				}
				out[k] = append(out[k], Instr{Code: code, Peer: in.Peer, Dst: to})
				return to
			}
			switch {
			case in.Code == RecvReduce:
				f := Instr{Code: Fold, Dst: in.Dst, Srcs: slices.Clone(in.Srcs)}
				f.Srcs[slices.Index(f.Srcs, Slot{Space: Wire})] = take()
				out[k] = append(out[k], f)
			case in.Code == Recv && viewable[in.Dst]:
				shown[in.Dst] = take()
			case in.Code == Recv && read[c.slot(in.Dst)]:
				v := take()
				out[k] = append(out[k], copySlot(in.Dst, v))
			default:
				out[k] = append(out[k], in)
			}
		}
	}
	return out
}

// viewable returns the Temp chunks that are received once and then, in the next step, only
// folded or copied, with nothing else coming from the same peer meanwhile.
func (c *compiler) viewable(steps [][]Instr) map[Slot]bool {
	type use struct {
		peer     int32
		at, last int // steps of the receive and the last read
		bad      bool
	}
	uses := map[Slot]*use{}
	get := func(sl Slot) *use {
		if uses[sl] == nil {
			uses[sl] = &use{at: -1, last: -1}
		}
		return uses[sl]
	}
	type arrival struct {
		peer int32
		step int
	}
	arrivals := map[arrival]int{}
	for k, step := range steps {
		for _, in := range step {
			if in.Code == Recv || in.Code == RecvReduce {
				arrivals[arrival{in.Peer, k}]++
			}
			for _, src := range in.Srcs {
				if src.Space == Temp {
					u := get(src)
					u.last = k
					u.bad = u.bad || in.Code == Send || u.at < 0 || k != u.at+1
				}
			}
		}
		for _, in := range step {
			if in.Code != Send && in.Dst.Space == Temp {
				u := get(in.Dst)
				u.bad = u.bad || in.Code != Recv || u.at >= 0
				u.peer, u.at = in.Peer, k
			}
		}
	}
	ok := map[Slot]bool{}
	for sl, u := range uses {
		ok[sl] = !u.bad && u.last > u.at && arrivals[arrival{u.peer, u.at}] == 1 && arrivals[arrival{u.peer, u.at + 1}] == 0
	}
	return ok
}
