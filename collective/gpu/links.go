package gpu

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// links is what a communicator over several GPUs, all linked to each other, has for traffic between them. Its programs keep their
// memory from call to call.
type links struct {
	sites      []site
	siteOf     []int // of each rank
	stages     []stage
	at         []unsafe.Pointer // the stages' addresses
	side       []cuda.Stream    // of each site, for copies beside others
	words      cuda.Pinned      // the word that ends all waiting, and a report: the host and the GPUs know them without the driver
	again      []*cuda.Replays  // of each site: launches wires
	fork       []cuda.Event     // of each site
	done       []cuda.Event     // of each site: its last launch that no graph holds
	next       []cuda.Event     // of each site: for its next one; here the same
	last       []cuda.StreamID  // of each site: the stream of that launch, 0 before the first
	half       int64            // bytes of rows of one parity
	crowd      int              // of sites on one GPU, which has several only in tests
	apart      bool             // the other sites' launches are other processes' affair
	lineBlocks int              // of an exchange at most
	blocks     int              // with a multiprocessor to themselves, that every site can run at once

	lines []cuda.LL128 // of each site
	push  []cuda.Push
	bulk  []cuda.Bulk
	plan  exchange
	copy  copies

	marks marks // unless the sites are apart
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
	crowd, blocks := 0, sites[0].device.Info().Multiprocessors
	for _, n := range here {
		crowd = max(crowd, n)
	}
	for i := range sites {
		blocks = min(blocks, sites[i].device.Info().Multiprocessors)
	}
	l := makeLinks(sites, ranks, crowd, blocks)
	for i := range sites {
		for _, r := range sites[i].ranks {
			l.siteOf[r] = i
		}
		if err := l.open(i, stageLines, stageBytes); err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.next[i] = l.done[i]
	}
	if err := l.marks.open(sites); err != nil {
		return nil, errors.Join(err, l.close())
	}
	for i := range sites {
		if err := sites[i].device.Wait(l.side[i]); err != nil { // the stages are zero
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// makeLinks makes links of which nothing is open. On a GPU there are up to crowd sites; blocks is the fewest multiprocessors of one.
func makeLinks(sites []site, ranks, crowd, blocks int) *links {
	n := len(sites)
	return &links{sites: sites, siteOf: make([]int, ranks), crowd: crowd, lineBlocks: 128, blocks: max(1, blocks/crowd),
		stages: make([]stage, n), at: make([]unsafe.Pointer, n), side: make([]cuda.Stream, n),
		again: make([]*cuda.Replays, n), fork: make([]cuda.Event, n), done: make([]cuda.Event, n), next: make([]cuda.Event, n),
		last:  make([]cuda.StreamID, n),
		lines: make([]cuda.LL128, n), push: make([]cuda.Push, n), bulk: make([]cuda.Bulk, n)}
}

// open makes what a site needs, with rows of so many bytes of one parity, and a stage of so many, which are more for messages. It does not wait until the stage is zero.
func (l *links) open(i int, half, bytes int64) (err error) {
	d := l.sites[i].device
	l.half = half
	if l.side[i], err = d.NewStream(); err != nil {
		return err
	}
	if l.stages[i], err = newStage(d, l.side[i], bytes, cuda.StageRows+2*half); err != nil {
		return err
	}
	l.at[i] = l.stages[i].mem.Ptr
	if l.again[i], err = d.NewWireReplays(wireReplays); err != nil {
		return err
	}
	if l.words.Host == nil {
		// … up to where the report behind the last would be
		if l.words, err = d.AllocPinned(postReportAt + cuda.ReportOfMessages(cuda.MaxSites, true)); err != nil {
			return err
		}
		clear(unsafe.Slice((*byte)(l.words.Host), l.words.Bytes))
	}
	for _, e := range []*cuda.Event{&l.fork[i], &l.done[i]} {
		if *e, err = d.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// close waits for all that is queued on the GPUs, for others' kernels store in the stages. Where it cannot, everything stays, for kernels may be at work there.
func (l *links) close() (err error) {
	if l == nil {
		return nil
	}
	forget(l)
	for i := range l.sites {
		if !l.sites[i].elsewhere {
			err = errors.Join(err, l.sites[i].device.Synchronize())
		}
	}
	if err != nil {
		return fmt.Errorf("gpu: memory for traffic between GPUs is not freed, for what is queued there cannot be waited for (while a stream is captured nothing can): %w", err)
	}
	err = l.marks.close(l.sites)
	for i := range l.sites {
		err = errors.Join(err, l.stages[i].free())
		if l.sites[i].elsewhere {
			continue
		}
		d := l.sites[i].device
		err = errors.Join(err, l.again[i].Close())
		for _, e := range []cuda.Event{l.fork[i], l.done[i]} {
			if e != 0 {
				err = errors.Join(err, d.DestroyEvent(e))
			}
		}
		if l.side[i] != 0 {
			err = errors.Join(err, d.DestroyStream(l.side[i]))
		}
		if l.words.Host != nil {
			err = errors.Join(err, d.FreePinned(l.words))
			l.words = cuda.Pinned{}
		}
	}
	return err
}

// end has all kernels that wait end at once, and those behind them. What they were to write is undefined, but nobody else gets it: lines that they
// store are none that others take.
func (l *links) end() {
	if l != nil && l.words.Host != nil {
		(*atomic.Uint32)(l.words.Host).Store(1)
	}
}

// abort is the word for kernels.
func (l *links) abort() unsafe.Pointer { return l.words.Device }

// reportAt is where in the words the report is.
const reportAt = 128

// linesShare is the bytes of rows for what a site stores for another, of one parity.
func (l *links) linesShare() int64 { return l.half / int64(len(l.sites)-1) &^ 1023 }
