package gpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A block copy from a rank's memory to others', which one site does.
type blockCopy struct {
	site, from int // of the source, and the rank
	src        unsafe.Pointer
	bytes      int64
	dsts       []unsafe.Pointer
	far        uint64 // the sites of dsts
}

// copies are those of a call, for direct stores or the copy engines.
type copies struct {
	list []blockCopy
	meet [cuda.MaxSites]uint8 // of each site: those it copies to or gets from
}

// copiesOf lists what a call copies from rank to rank.
func copiesOf(calls []Call, add func(from, to int, dst, src unsafe.Pointer, bytes int64)) {
	block := int64(calls[0].Count) * int64(calls[0].DType.Size())
	switch calls[0].Kind {
	case collective.AllGather:
		for r := range calls {
			for q := range calls {
				add(r, q, unsafe.Add(calls[q].Dst, int64(r)*block), calls[r].Src, block)
			}
		}
	case collective.Broadcast:
		for q := range calls {
			add(calls[0].Root, q, calls[q].Dst, calls[calls[0].Root].Src, block)
		}
	case collective.AllToAll:
		for r := range calls {
			for q := range calls {
				add(r, q, unsafe.Add(calls[q].Dst, int64(r)*block), unsafe.Add(calls[r].Src, int64(q)*block), block)
			}
		}
	}
}

// Blocks of a bulk launch: for what goes to other GPUs, and for what stays, which would slow the former down in the same threads.
const (
	farBlocks  = 64
	nearBlocks = 32
)

// writeCopies collects copies and makes the launches that they stand in or between.
func (l *links) writeCopies(how crossing, each func(add func(from, to int, dst, src unsafe.Pointer, bytes int64))) bool {
	c := &l.copy
	used := 0
	clear(c.meet[:])
	each(func(from, to int, dst, src unsafe.Pointer, bytes int64) {
		if dst == src || bytes == 0 {
			return
		}
		a, b := l.siteOf[from], l.siteOf[to]
		if a != b {
			c.meet[a] |= 1 << b
			c.meet[b] |= 1 << a
		}
		if used > 0 { // to several places at once
			if last := &c.list[used-1]; last.src == src && last.from == from && last.bytes == bytes && (last.far == 0) == (a == b) {
				last.dsts = append(last.dsts, dst)
				last.far |= uint64(bit(a != b)) << b
				return
			}
		}
		if used == len(c.list) {
			c.list = append(c.list, blockCopy{})
		}
		d := &c.list[used]
		*d = blockCopy{site: a, from: from, src: src, bytes: bytes, dsts: append(d.dsts[:0], dst), far: uint64(bit(a != b)) << b}
		used++
	})
	c.list = c.list[:used]
	blocks := 1
	for i := range l.sites {
		p := &l.bulk[i]
		p.Reset(i, l.at, l.abort(), c.meet[i])
		if how == byBulk && !l.writeBulk(i, p) {
			return false
		}
		blocks = max(blocks, p.Blocks())
	}
	for i := range l.sites {
		l.bulk[i].Pad(blocks)
	}
	return true
}

// writeBulk shares a site's blocks among its copies, by their bytes.
func (l *links) writeBulk(site int, p *cuda.Bulk) bool {
	var all [2]int64 // near, far
	for _, d := range l.copy.list {
		if d.site == site {
			all[bit(d.far != 0)] += d.bytes * int64(len(d.dsts))
		}
	}
	for _, d := range l.copy.list {
		if d.site != site {
			continue
		}
		share := int64(max(1, min(nearBlocks/l.crowd, l.blocks)))
		if d.far != 0 {
			share = int64(max(1, min(farBlocks/l.crowd, l.blocks)))
		}
		if !p.Add(d.dsts, d.src, d.bytes, int(max(1, share*d.bytes*int64(len(d.dsts))/all[bit(d.far != 0)]))) {
			return false
		}
	}
	return p.Blocks() <= 2*l.blocks // as many fit on a multiprocessor
}

// launchCopies queues a site's copies between two barriers: far ones by the copy engine, near ones by kernels on a stream beside.
func (l *links) launchCopies(site int, waits cuda.Waits) (id cuda.StreamID, captured bool, err error) {
	s := &l.sites[site]
	d, side, barrier := s.device, l.side[site], &l.bulk[site]
	if err := s.launch(nil); err != nil { // the ranks' streams meet
		return 0, false, err
	}
	if _, _, err := d.LaunchWire(barrier, s.lead, nil, nil, waits, l.done[site]); err != nil {
		return 0, false, err
	}
	near := false
	for _, c := range l.copy.list {
		if c.site != site || c.far != 0 {
			continue
		}
		if !near {
			if err := d.Record(l.fork[site], s.lead); err != nil {
				return 0, false, err
			}
			if err := d.WaitEvent(side, l.fork[site]); err != nil {
				return 0, false, err
			}
			near = true
		}
		if err := d.Copy(side, c.dsts, c.src, c.bytes); err != nil {
			return 0, false, err
		}
	}
	for _, c := range l.copy.list {
		if c.site != site || c.far == 0 {
			continue
		}
		for _, dst := range c.dsts {
			if err := d.CopyAny(s.lead, dst, c.src, c.bytes); err != nil {
				return 0, false, err
			}
		}
	}
	if near {
		if err := d.Record(l.fork[site], side); err != nil {
			return 0, false, err
		}
		if err := d.WaitEvent(s.lead, l.fork[site]); err != nil {
			return 0, false, err
		}
	}
	others, join := s.between()
	return d.LaunchWire(barrier, s.lead, others, join, cuda.Waits{}, l.done[site])
}
