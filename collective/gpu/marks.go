package gpu

import (
	"errors"
	"slices"
	"sync"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// marks tell whose streams have come to the launches across links, and whose have not while kernels on other GPUs wait for them.
type marks struct {
	mu    sync.Mutex // never held while something is queued
	ring  []mark
	next  int    // the one whose turn it is; before it those of launches to which, as far as we know, not all streams have come
	kept  int    // how many those are
	alike int    // how many of the last launches were on the same streams, and so come one after the other
	count uint64 // of launches
}

// A ring has fewMarks from the beginning, and more where the host is further ahead, as no mark is used again before all streams have come to it: a stream that stands
// still does so before the oldest. The driver takes about a thousand launches, and then has the host wait.
const fewMarks, mostMarks = 8, 1024

// A mark is of one launch.
type mark struct {
	number uint64
	come   [cuda.MaxSites]cuda.Event    // of each site, recorded on its leading stream before the launch
	on     [cuda.MaxSites]cuda.StreamID // those streams
	part   uint64                       // the sites whose event is
	meets  [cuda.MaxSites]uint64        // of each site: those that it waits for
}

func (m *marks) open(sites []site) error {
	for range fewMarks {
		if err := m.more(sites); err != nil {
			return err
		}
	}
	return nil
}

// turn is the mark for the next launch, or nil where there can be none.
func (m *marks) turn(sites []site) *mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == len(m.ring) {
		m.drop(sites)
	}
	if m.kept == len(m.ring) && (m.kept >= mostMarks || m.more(sites) != nil) {
		return nil
	}
	return &m.ring[m.next]
}

// drop forgets marks to which all have come. A look takes long, so it is for half of them, if that can be.
func (m *marks) drop(sites []site) {
	if half := m.kept / 2; m.alike >= m.kept {
		if k := m.at(half); k.came(sites) == k.part {
			m.kept -= half + 1
			return
		}
	}
	if k := m.at(0); k.came(sites) == k.part {
		m.kept--
	}
}

// at is one of the kept marks, from the oldest on.
func (m *marks) at(i int) *mark { return &m.ring[(m.next-m.kept+i+len(m.ring))%len(m.ring)] }

// more makes a mark, whose turn it is next.
func (m *marks) more(sites []site) (err error) {
	k := mark{}
	for i := range sites {
		if k.come[i], err = sites[i].device.NewEvent(false); err != nil {
			return errors.Join(err, k.destroy(sites))
		}
	}
	m.ring = slices.Insert(m.ring, m.next, k)
	return nil
}

// queued keeps the mark whose turn it was, for its launch is queued.
func (m *marks) queued() {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &m.ring[m.next]
	m.alike++
	if m.kept > 0 {
		if last := m.at(m.kept - 1); last.part != k.part || last.on != k.on {
			m.alike = 1
		}
	}
	m.count++
	k.number = m.count
	m.next = (m.next + 1) % len(m.ring)
	m.kept++
}

// behind is Communicator.Behind for what crosses links.
func (m *marks) behind(sites []site) (launch uint64, late []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := uint64(0) // the sites that have not come to a launch before: they wait for nobody yet
	for i := range m.kept {
		k, wanted := m.at(i), uint64(0)
		came := k.came(sites)
		for s := range sites {
			if came&^before>>s&1 != 0 {
				wanted |= k.meets[s]
			}
		}
		missing := k.part &^ came
		for s := range sites {
			if missing&wanted>>s&1 != 0 {
				late = append(late, sites[s].ranks[0])
			}
		}
		if late != nil {
			return k.number, late
		}
		before |= missing
	}
	return m.count, nil
}

func (m *marks) close(sites []site) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.ring {
		err = errors.Join(err, m.ring[i].destroy(sites))
	}
	m.ring, m.next, m.kept = nil, 0, 0
	return err
}

// came are the sites that take part and whose streams have come. Of a GPU that does nothing any more they all have: there is nobody to wait for.
func (k *mark) came(sites []site) (all uint64) {
	for s := range sites {
		if k.part>>s&1 == 0 {
			continue
		}
		if done, err := sites[s].device.Happened(k.come[s]); done || err != nil {
			all |= 1 << s
		}
	}
	return all
}

func (k *mark) destroy(sites []site) (err error) {
	for i := range sites {
		if k.come[i] != 0 {
			err = errors.Join(err, sites[i].device.DestroyEvent(k.come[i]))
		}
	}
	return err
}
