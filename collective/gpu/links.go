package gpu

import (
	"errors"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// links is what a communicator over several GPUs, all linked to each other, has for traffic between them. Its programs keep their
// memory from call to call.
type links struct {
	sites   []site
	siteOf  []int // of each rank
	stages  []stage
	at      []unsafe.Pointer // the stages' addresses
	side    []cuda.Stream    // of each site, for copies beside others
	aborter []cuda.Stream    // of each site, for the abort word
	again   []*cuda.Replays  // of each site: launches wires
	fork    []cuda.Event     // of each site
	done    []cuda.Event     // of each site: its last launch that no graph holds
	last    []cuda.Stream    // of each site: the stream of that launch, 0 before the first
	used    []bool           // of each site: there was one
	crowd   int              // of sites on one GPU, which has several only in tests
	blocks  int              // with a multiprocessor to themselves, that every site can run at once

	lines []cuda.LL128 // of each site
	push  []cuda.Push
	bulk  []cuda.Bulk
	plan  exchange
	copy  copies
}

// newLinks returns nil if the sites are not linked, or too many.
func newLinks(sites []site, ranks int) (*links, error) {
	if len(sites) < 2 || len(sites) > cuda.MaxSites {
		return nil, nil
	}
	here := map[int]int{}
	for i := range sites {
		here[sites[i].device.Info().Ordinal]++
		for k := range sites {
			if i != k && !sites[i].device.Linked(sites[k].device) {
				return nil, nil
			}
		}
	}
	l := &links{sites: sites, siteOf: make([]int, ranks)}
	for _, n := range here {
		l.crowd = max(l.crowd, n)
	}
	l.blocks = sites[0].device.Info().Multiprocessors
	for i := range sites {
		l.blocks = min(l.blocks, sites[i].device.Info().Multiprocessors)
	}
	l.blocks = max(1, l.blocks/l.crowd)
	n := len(sites)
	l.last, l.used = make([]cuda.Stream, n), make([]bool, n)
	l.lines, l.push, l.bulk = make([]cuda.LL128, n), make([]cuda.Push, n), make([]cuda.Bulk, n)
	for i := range sites {
		for _, r := range sites[i].ranks {
			l.siteOf[r] = i
		}
		if err := l.open(sites[i].device); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	for i := range sites {
		if err := sites[i].device.Wait(0); err != nil { // the stages are zero
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func (l *links) open(d *cuda.Device) error {
	s, err := newStage(d)
	l.stages, l.at = append(l.stages, s), append(l.at, s.mem.Ptr)
	if err != nil {
		return err
	}
	side, err := d.NewStream()
	l.side = append(l.side, side)
	if err != nil {
		return err
	}
	again, err := d.NewWireReplays(wireReplays)
	l.again = append(l.again, again)
	if err != nil {
		return err
	}
	aborter, err := d.NewPriorityStream()
	l.aborter = append(l.aborter, aborter)
	if err != nil {
		return err
	}
	for _, list := range []*[]cuda.Event{&l.fork, &l.done} {
		e, err := d.NewEvent(false)
		*list = append(*list, e)
		if err != nil {
			return err
		}
	}
	return nil
}

// close waits for all that is queued on the GPUs, for others' kernels store in the stages.
func (l *links) close() (err error) {
	if l == nil {
		return nil
	}
	forget(l)
	for i := range l.stages {
		err = errors.Join(err, l.stages[i].d.Synchronize())
	}
	for i := range l.stages {
		d := l.stages[i].d
		if i < len(l.again) {
			err = errors.Join(err, l.again[i].Close())
		}
		for _, list := range [][]cuda.Event{l.fork, l.done} {
			if i < len(list) && list[i] != 0 {
				err = errors.Join(err, d.DestroyEvent(list[i]))
			}
		}
		for _, list := range [][]cuda.Stream{l.side, l.aborter} {
			if i < len(list) && list[i] != 0 {
				err = errors.Join(err, d.DestroyStream(list[i]))
			}
		}
		err = errors.Join(err, l.stages[i].free())
	}
	return err
}

// end has all kernels that wait end at once. What they were to write is not written.
func (l *links) end() (err error) {
	if l == nil {
		return nil
	}
	for i := range l.stages {
		err = errors.Join(err, l.stages[i].d.Store(l.aborter[i], l.stages[i].abort(), 1))
	}
	return err
}

// linesShare is the bytes of rows for what a site stores for another, of one parity.
func (l *links) linesShare() int64 { return int64(stageLines) / int64(len(l.sites)-1) &^ 1023 }
