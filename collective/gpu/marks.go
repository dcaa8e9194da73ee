package gpu

import (
	"errors"
	"sync"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// marks tell whose streams have come to the last launches across links, and whose have not while kernels on other GPUs wait for them.
type marks struct {
	mu      sync.Mutex // never held while something is queued
	ring    []mark     // one, or where somebody watches, up to watchedLaunches
	next    int        // the one whose turn it is
	count   uint64     // launches
	watched bool
}

// A mark is of one launch.
type mark struct {
	number uint64
	come   [cuda.MaxSites]cuda.Event // of each site, recorded on its leading stream before the launch
	part   uint64                    // the sites whose event is
	meets  [cuda.MaxSites]uint64     // of each site: those that it waits for
}

// turn is the number in the ring of the mark for the next launch.
func (m *marks) turn(sites []site) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ring) == 0 || m.next == len(m.ring) && m.watched && len(m.ring) < watchedLaunches {
		k := mark{}
		for i := range sites {
			var err error
			if k.come[i], err = sites[i].device.NewEvent(false); err != nil {
				return 0, errors.Join(err, k.destroy(sites))
			}
		}
		m.ring = append(m.ring, k)
	}
	if m.next >= len(m.ring) {
		m.next = 0
	}
	m.ring[m.next].part = 0 // until it is queued
	m.next++
	m.count++
	return m.next - 1, nil
}

// event is a site's of a mark.
func (m *marks) event(turn, site int) cuda.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ring[turn].come[site]
}

// queued notes that a launch is, whose sites wait for each other so.
func (m *marks) queued(turn int, part uint64, meets func(site int) uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &m.ring[turn]
	k.number, k.part = m.count, part
	for i := range k.meets {
		if part>>i&1 != 0 {
			k.meets[i] = meets(i) & part
		}
	}
}

// behind is Communicator.Behind for what crosses links.
func (m *marks) behind(sites []site) (launch uint64, late []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = true
	for i := range m.ring { // from the oldest on
		k := &m.ring[(m.next+i)%len(m.ring)]
		came, wanted := uint64(0), uint64(0)
		for s := range sites {
			if k.part>>s&1 == 0 {
				continue
			}
			done, err := sites[s].device.Happened(k.come[s])
			if err != nil { // the GPU does nothing any more
				return m.count, nil
			}
			if done {
				came |= 1 << s
				wanted |= k.meets[s]
			}
		}
		for s := range sites {
			if k.part&wanted&^came>>s&1 != 0 {
				late = append(late, sites[s].ranks[0])
			}
		}
		if late != nil {
			return k.number, late
		}
	}
	return m.count, nil
}

func (m *marks) close(sites []site) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.ring {
		err = errors.Join(err, m.ring[i].destroy(sites))
	}
	m.ring = nil
	return err
}

func (k *mark) destroy(sites []site) (err error) {
	for i := range sites {
		if k.come[i] != 0 {
			err = errors.Join(err, sites[i].device.DestroyEvent(k.come[i]))
		}
	}
	return err
}
