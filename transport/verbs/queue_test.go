//go:build linux && cgo

package verbs

import (
	"errors"
	"sync"
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// puppet is a QP without a device.
type puppet struct {
	modify  error // what the device says to every Modify
	post    error // and Post
	destroy error // and Close
	states  []ibv.State
	posted  []ibv.Send
	close   func()
	closed  int
}

func (p *puppet) Modify(a ibv.Attr) error {
	p.states = append(p.states, a.State)
	return p.modify
}

func (p *puppet) Post(b []ibv.Send) (int, error) {
	if p.post != nil {
		return 0, p.post
	}
	p.posted = append(p.posted, b...)
	return len(b), nil
}

func (p *puppet) PostRecv(b []ibv.Recv) (int, error) { return len(b), nil }
func (p *puppet) Query() (ibv.Attr, error)           { return ibv.Attr{}, errors.ErrUnsupported }

func (p *puppet) Close() error {
	if p.closed++; p.close != nil {
		p.close()
	}
	return p.destroy
}

// TestNothingIsTakenOfWhatIsDestroyed: a link that comes to nothing is destroyed in the background, and a completion of any of its QPs,
// for which the driver would use them, does not find one as soon as the first is being destroyed. What may come is counted until all is gone.
func TestNothingIsTakenOfWhatIsDestroyed(t *testing.T) {
	n := &nic{queues: map[uint32]*queue{}}
	l := bare(1)
	taken, destroyed := 0, 0
	for _, q := range l.queues {
		q.nic, q.rq = n, 40
		n.enter(q)
		q.qp = &puppet{close: func() {
			n.mu.Lock() // as poll does
			defer n.mu.Unlock()
			require.Equal(t, destroyed*(64+40), n.stale, "completions may come")
			destroyed++
			for _, q := range n.queues {
				if q != nil {
					taken++
				}
			}
		}}
	}
	l.e.nics = []*nic{n}
	require.Equal(t, 2, l.e.qps())
	require.NoError(t, l.shut())
	require.Equal(t, 2, destroyed)
	require.Zero(t, taken)
	require.Equal(t, 2*(64+40), n.stale)
	require.Zero(t, l.e.qps())
}

// TestDestroyedBesideTheDriver: the race detector sees no QP used that the background destroys.
func TestDestroyedBesideTheDriver(t *testing.T) {
	for range 100 {
		n := &nic{queues: map[uint32]*queue{}}
		l := bare(1)
		for _, q := range l.queues {
			q.nic, q.qp = n, &puppet{}
			n.enter(q)
		}
		var driver sync.WaitGroup
		driver.Go(func() {
			for i := range 40 {
				n.mu.Lock()
				if q := n.queues[uint32(i%2+1)]; q != nil {
					q.take(&ibv.Completion{ID: q.requestID(0) | 1, Imm: immediate(immWord, wordProbe, 0)})
				}
				n.mu.Unlock()
			}
		})
		require.NoError(t, l.shut())
		driver.Wait()
	}
}
