package gpu

import (
	"context"
	"fmt"
	"sync"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Process is where the ranks of one process find each other, to share communicators. Its zero value is ready; one serves any number
// of communicators, and all goroutines.
type Process struct {
	mu        sync.Mutex
	gathering map[uint64]*gathering
}

// gathering is a communicator that some of its ranks have joined.
type gathering struct {
	devices []*cuda.Device // nil: has not joined
	joined  int
	done    chan struct{} // closed when the rest is final
	c       *Communicator
	members int // that have not closed
	err     error
}

// A Member is a rank's hold of a communicator that it shares with other ranks of its process.
type Member struct {
	rank  int
	g     *gathering
	close sync.Once
	p     *Process
}

// Join makes rank, of so many, a member of communicator id, on its device, and waits for the others to join, all in this process.
// When ctx ends first, all who wait get a *MissingError that names those who have not joined, and id can be joined anew. Ranks on one
// GPU give the same *cuda.Device; several devices are connected first.
func (p *Process) Join(ctx context.Context, id uint64, rank, ranks int, d *cuda.Device) (*Member, error) {
	if ranks < 1 || ranks > MaxRanks || rank < 0 || rank >= ranks || d == nil {
		return nil, fmt.Errorf("gpu: rank %d of %d on %v joins communicator %016x: want a device, and up to %d ranks", rank, ranks, d, id, MaxRanks)
	}
	p.mu.Lock()
	g := p.gathering[id]
	if g == nil {
		g = &gathering{devices: make([]*cuda.Device, ranks), done: make(chan struct{})}
		if p.gathering == nil {
			p.gathering = map[uint64]*gathering{}
		}
		p.gathering[id] = g
	}
	if len(g.devices) != ranks || g.devices[rank] != nil {
		defer p.mu.Unlock()
		return nil, fmt.Errorf("gpu: rank %d of %d joins communicator %016x, which has %d ranks and may have this one already", rank, ranks, id, len(g.devices))
	}
	g.devices[rank] = d
	if g.joined++; g.joined == ranks {
		delete(p.gathering, id)
		g.c, g.err = New(g.devices)
		g.members = ranks
		close(g.done)
	}
	p.mu.Unlock()
	select {
	case <-g.done:
	case <-ctx.Done():
		p.mu.Lock()
		if p.gathering[id] == g {
			delete(p.gathering, id)
			e := &MissingError{Call: fmt.Sprintf("communicator %016x", id), Err: ctx.Err()}
			for r, d := range g.devices {
				if d == nil {
					e.Ranks = append(e.Ranks, r)
				}
			}
			g.err = e
			close(g.done)
		}
		p.mu.Unlock()
		<-g.done
	}
	if g.err != nil {
		return nil, g.err
	}
	return &Member{rank: rank, g: g, p: p}, nil
}

// Communicator returns what is shared.
func (m *Member) Communicator() *Communicator { return m.g.c }

// Do is the rank's part of a collective; see Communicator.Do.
func (m *Member) Do(ctx context.Context, call Call) error { return m.g.c.Do(ctx, m.rank, call) }

// Close ends the membership; again does nothing. Other ranks' calls then wait for this one in vain, and get an error that names it.
// The last one frees the communicator.
func (m *Member) Close() (err error) {
	m.close.Do(func() {
		m.p.mu.Lock()
		m.g.members--
		last := m.g.members == 0
		m.p.mu.Unlock()
		if last {
			err = m.g.c.Close()
			return
		}
		m.g.c.leave(fmt.Errorf("rank %d has closed the communicator: %w", m.rank, ErrClosed))
	})
	return err
}
