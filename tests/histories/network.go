package histories

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// network is the bootstrap network as the rank sees it: with latency, so that what ranks do there takes time.
func (r *rank) network() bootstrap.Network {
	n := r.job.net.Host(host(r.number))
	if r.job.NetDelay == 0 {
		return n
	}
	wrap := func(c net.Conn, err error) (net.Conn, error) {
		if err != nil {
			return nil, err
		}
		return &slowConn{Conn: c, most: r.job.NetDelay, rng: rand.New(rand.NewPCG(r.job.Seed, uint64(r.number)<<32))}, nil
	}
	return bootstrap.Network{
		Dial: func(ctx context.Context, to string) (net.Conn, error) { return wrap(n.Dial(ctx, to)) },
		Listen: func(ctx context.Context, at string) (net.Listener, error) {
			l, err := n.Listen(ctx, at)
			if err != nil {
				return nil, err
			}
			return &slowListener{l, wrap}, nil
		},
	}
}

type slowListener struct {
	net.Listener
	wrap func(net.Conn, error) (net.Conn, error)
}

func (l *slowListener) Accept() (net.Conn, error) { return l.wrap(l.Listener.Accept()) }

// slowConn takes a while for each write.
type slowConn struct {
	net.Conn
	most time.Duration
	mu   sync.Mutex
	rng  *rand.Rand
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	d := time.Duration(c.rng.Int64N(int64(c.most)))
	c.mu.Unlock()
	time.Sleep(d)
	return c.Conn.Write(b)
}

func (c *slowConn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }
