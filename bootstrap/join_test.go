package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

func TestWorldOfOneTouchesNoNetwork(t *testing.T) {
	none := bootstrap.Network{
		Dial:   func(context.Context, string) (net.Conn, error) { panic("dials") },
		Listen: func(context.Context, string) (net.Listener, error) { panic("listens") },
	}
	s, err := bootstrap.Join(context.Background(), bootstrap.Config{World: 1, Network: none})
	require.NoError(t, err)
	ctx := within(t, patience)
	require.NoError(t, s.Barrier(ctx))
	require.NoError(t, s.Send(ctx, 0, 7, []byte("to myself")))
	got, err := s.Recv(ctx, 0, 7)
	require.NoError(t, err)
	require.Equal(t, "to myself", string(got))
	sub, err := s.Sub(ctx, []int{0})
	require.NoError(t, err)
	require.NoError(t, sub.Barrier(ctx))
	require.NoError(t, sub.Close())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Barrier(ctx), bootstrap.ErrClosed)
	_, open := <-s.Aborted()
	require.False(t, open)
}

func TestConfigIsChecked(t *testing.T) {
	id, err := bootstrap.DeriveID("192.0.2.1:1", "s")
	require.NoError(t, err)
	for says, c := range map[string]bootstrap.Config{
		"Config.World is 0":                {},
		"Config.World is -1":               {World: -1},
		"Config.Rank is 4; want 0 to 3":    {World: 4, Rank: 4, ID: id},
		"Config.Rank is -1":                {World: 4, Rank: -1, ID: id},
		"Config.ID: unique id is not set":  {World: 2},
		"Config.Timeout is -1s":            {World: 2, ID: id, Timeout: -time.Second},
		"Config.Addr is 0.0.0.0":           {World: 2, ID: id, Addr: netip.IPv4Unspecified()},
		"Config.Roots: root address \"x\"": {World: 2, ID: id, Roots: []string{"x"}},
		"port range 5-4":                   {World: 2, ID: id, Ports: bootstrap.PortRange{Low: 5, High: 4}},
	} {
		_, err := bootstrap.Join(context.Background(), c)
		require.ErrorContains(t, err, says)
	}
}

// Three of four start. With the root in rank 0 or apart, all fail after the time-out and name the fourth.
func TestUC06_MissingRankIsNamed(t *testing.T) {
	for _, apart := range []bool{false, true} {
		for missing := range 4 {
			if missing == 0 && !apart {
				continue // see TestRootNeverThere
			}
			inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
				start := time.Now()
				var root *bootstrap.Root
				if apart {
					var err error
					root, err = bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{
						Address: "192.0.2.99:0", Timeout: 5 * time.Second, Network: n.Host("192.0.2.99")})
					require.NoError(t, err)
					id = root.ID()
				}
				each(4, func(r int) {
					if r == missing {
						return
					}
					c := config(n, id, r, 4)
					c.Timeout = 5 * time.Second
					c.Serve = !apart
					_, err := bootstrap.Join(context.Background(), c)
					assert.ErrorIs(t, err, bootstrap.ErrTimeout)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.ErrorContains(t, err, fmt.Sprintf("3 of 4 joined, missing: %d", missing))
					assert.GreaterOrEqual(t, time.Since(start), 5*time.Second)
					assert.LessOrEqual(t, time.Since(start), 8*time.Second)
				})
				if apart {
					err := root.Wait(context.Background())
					assert.ErrorContains(t, err, fmt.Sprintf("3 of 4 joined, missing: %d", missing))
					assert.NoError(t, root.Close())
				}
				require.Zero(t, n.Conns())
			})
		}
	}
}

func TestRootNeverThere(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		c := config(n, id, 1, 2)
		c.Timeout = 10 * time.Second
		start := time.Now()
		_, err := bootstrap.Join(context.Background(), c)
		var missing *bootstrap.MissingError
		require.ErrorAs(t, err, &missing)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "the last errno")
		require.ErrorContains(t, err, "192.0.2.1:29500 timed out after 10s: the root was not reached")
		require.ErrorContains(t, err, "connection refused")
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestUC22_RankBeforeRoot(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT, syscall.ECONNRESET} {
		inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
			start := time.Now()
			dials := 0 // under the network's lock
			n.Refuse(func(from, _ netip.AddrPort) error {
				if time.Since(start) < 10*time.Second {
					dials++
					return os.NewSyscallError("connect", errno)
				}
				return nil
			})
			each(2, func(r int) {
				if r == 0 {
					time.Sleep(10 * time.Second)
				}
				s, err := bootstrap.Join(context.Background(), config(n, id, r, 2))
				if assert.NoError(t, err) {
					assert.NoError(t, s.Barrier(context.Background()))
					s.Close()
				}
			})
			assert.Less(t, time.Since(start), 12*time.Second)
			assert.Less(t, dials, 40, "pauses grow")
		})
	}
}

// A storm of signals never shows up as an error.
func TestUC22_SignalStorm(t *testing.T) {
	checkLeaks(t)
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				syscall.Kill(os.Getpid(), syscall.SIGURG)
				syscall.Kill(os.Getpid(), syscall.SIGWINCH)
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	for range 10 {
		loopback(t, 4, func(ctx context.Context, s bootstrap.Session) { gatherMany(t, ctx, s, 3) })
	}
	close(stop)
	storm.Wait()
}

func TestUC28_NameThatResolvesLate(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
		id, err := bootstrap.DeriveID("job-0.svc:29500", "s")
		require.NoError(t, err)
		time.AfterFunc(4*time.Second, func() { n.Resolve("job-0.svc", host(0)) })
		each(3, func(r int) {
			s, err := bootstrap.Join(context.Background(), config(n, id, r, 3))
			if assert.NoError(t, err) {
				s.Close()
			}
		})
	})
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
		id, err := bootstrap.DeriveID("nowhere.svc:29500", "s")
		require.NoError(t, err)
		c := config(n, id, 1, 3)
		c.Timeout = 3 * time.Second
		_, err = bootstrap.Join(context.Background(), c)
		require.ErrorIs(t, err, bootstrap.ErrTimeout)
		require.ErrorContains(t, err, "nowhere.svc")
		require.ErrorContains(t, err, "no such host")
	})
}

// A host's own name often means 127.0.1.1 on that host. Others must reach it all the same.
func TestUC13_HostNameThatMeansLoopback(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
		id, err := bootstrap.DeriveID("head:29500", "s")
		require.NoError(t, err)
		n.Resolve("head", host(0))
		each(4, func(r int) {
			c := config(n, id, r, 4)
			if r < 2 { // both live on the head
				c.Network = n.Host(host(0))
				dial := c.Network.Dial
				c.Network.Dial = func(ctx context.Context, to string) (net.Conn, error) {
					return dial(ctx, strings.Replace(to, "head", "127.0.1.1", 1))
				}
			}
			s, err := bootstrap.Join(context.Background(), c)
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, s.Send(context.Background(), (r+2)%4, 1, nil))
			_, err = s.Recv(context.Background(), (r+2)%4, 1)
			assert.NoError(t, err)
			assert.NoError(t, s.Barrier(context.Background()))
			s.Close()
		})
	})
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) { // told to listen at loopback: nobody can help
		each(3, func(r int) {
			c := config(n, id, r, 3)
			if r == 0 {
				c.Addr = netip.MustParseAddr("127.0.0.1")
			}
			_, err := bootstrap.Join(context.Background(), c)
			assert.ErrorIs(t, err, bootstrap.ErrRefused)
			assert.ErrorContains(t, err, "rank 0 listens at 127.0.0.1:")
			assert.ErrorContains(t, err, "on another host cannot reach")
		})
	})
}

func TestUC24_PortIsTaken(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer held.Close()
	id, err := bootstrap.DeriveID(held.Addr().String(), "s")
	require.NoError(t, err)
	_, err = bootstrap.Join(within(t, patience), bootstrap.Config{World: 2, ID: id, Serve: true})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, held.Addr().String())
	if _, serr := os.Stat("/proc/net/tcp"); serr == nil {
		require.ErrorContains(t, err, fmt.Sprintf("pid %d", os.Getpid()))
	}

	// With other ports to go to, the root takes the first that is free and the others find it.
	roots := []string{held.Addr().String()}
	for range 2 {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		free.Close()
		roots = append(roots, free.Addr().String())
	}
	each(3, func(r int) {
		s, err := bootstrap.Join(within(t, patience), bootstrap.Config{Rank: r, World: 3, ID: id, Serve: true, Roots: roots})
		if assert.NoError(t, err) {
			assert.NoError(t, s.Barrier(within(t, patience)))
			s.Close()
		}
	})
}

func TestUC24_TwentyJobsAtOnce(t *testing.T) {
	checkLeaks(t)
	each(20, func(int) {
		loopback(t, 4, func(ctx context.Context, s bootstrap.Session) { gatherMany(t, ctx, s, 2) })
	})
}

func TestUC25_PortRange(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		ports := bootstrap.PortRange{Low: 42000, High: 42003}
		each(5, func(r int) {
			c := config(n, id, r, 5)
			c.Network, c.Ports, c.Timeout = n.Host(host(0)), ports, 5*time.Second
			_, err := bootstrap.Join(context.Background(), c)
			if errors.Is(err, bootstrap.ErrTimeout) {
				return // the one that found no port is missing for the others, unless it is rank 0, who tells them
			}
			assert.ErrorContains(t, err, "the port range has 4 ports, need up to 6")
			assert.ErrorContains(t, err, `all of 42000-42003 at "192.0.2.1" are taken`)
		})
		each(4, func(r int) {
			c := config(n, id, r, 4)
			c.Network, c.Ports = n.Host(host(0)), ports
			s, err := bootstrap.Join(context.Background(), c)
			if assert.NoError(t, err) {
				for _, a := range bootstrap.Addrs(s) {
					assert.True(t, a.Port() >= 42000 && a.Port() <= 42003, "%v", a)
				}
				s.Barrier(context.Background())
				s.Close()
			}
		})
	})
}

// Init that fails and is done again in the same processes at the same root port, over and over.
func TestUC09_JoinAgainAfterTimeout(t *testing.T) {
	checkLeaks(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free.Close()
	id, err := bootstrap.DeriveID(free.Addr().String(), "s")
	require.NoError(t, err)
	var descriptors, goroutines int
	for k := range 50 {
		each(2, func(r int) {
			_, err := bootstrap.Join(context.Background(), bootstrap.Config{Rank: r, World: 3, ID: id, Serve: true, Timeout: 60 * time.Millisecond})
			assert.ErrorIs(t, err, bootstrap.ErrTimeout)
		})
		each(3, func(r int) {
			s, err := bootstrap.Join(within(t, patience), bootstrap.Config{Rank: r, World: 3, ID: id, Serve: true})
			if assert.NoError(t, err) {
				assert.NoError(t, s.Barrier(within(t, patience)))
				s.Close()
			}
		})
		if k == 4 {
			descriptors, goroutines = openDescriptors(t), runtime.NumGoroutine()
		}
	}
	require.InDelta(t, descriptors, openDescriptors(t), 2)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+5)
}

// openDescriptors counts them; on systems where it cannot, it returns 0.
func openDescriptors(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("descriptors are not counted here: %v", err)
	}
	return len(names)
}

func TestUC12_WorldAfterWorld(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		each(4, func(r int) {
			for k := range 100 {
				s, err := bootstrap.Join(context.Background(), config(n, id, r, 4))
				if !assert.NoError(t, err) {
					return
				}
				got, err := s.AllGather(context.Background(), []byte{byte(k)})
				assert.NoError(t, err)
				assert.Equal(t, [][]byte{{byte(k)}, {byte(k)}, {byte(k)}, {byte(k)}}, got)
				time.Sleep(time.Duration(r*k%5) * 10 * time.Millisecond)
				assert.NoError(t, s.Close())
				if r == 0 && k%10 == 0 {
					time.Sleep(time.Second)
				}
			}
		})
		require.Zero(t, n.Conns())
	})
}

// 512 ranks come within a second, one in twenty is refused at first, and all are there soon.
func TestUC21_FiveHundredRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: joins 512 ranks")
	}
	checkLeaks(t)
	const n = 512
	ctx := within(t, 2*patience)
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	var refused atomic.Int32
	start := time.Now()
	var joined, gathered atomic.Int64
	sessions := make([]bootstrap.Session, n)
	each(n, func(r int) {
		time.Sleep(time.Duration(r*7919%1000) * time.Millisecond)
		c := bootstrap.Config{Rank: r, World: n, ID: root.ID()}
		if r%20 == 3 {
			var once sync.Once
			c.Network.Dial = func(ctx context.Context, to string) (conn net.Conn, err error) {
				once.Do(func() { refused.Add(1); err = os.NewSyscallError("connect", syscall.ECONNREFUSED) })
				if err == nil {
					conn, err = new(net.Dialer).DialContext(ctx, "tcp", to)
				}
				return conn, err
			}
		}
		s, err := bootstrap.Join(ctx, c)
		if !assert.NoError(t, err) {
			return
		}
		sessions[r] = s
		joined.Store(max(joined.Load(), int64(time.Since(start))))
		all, err := s.AllGather(ctx, make([]byte, 200))
		assert.NoError(t, err)
		assert.Len(t, all, n)
		gathered.Store(max(gathered.Load(), int64(time.Since(start))))
	})
	t.Logf("512 ranks joined after %v, gathered 200 bytes each after %v; they started within 1s", time.Duration(joined.Load()), time.Duration(gathered.Load()))
	require.EqualValues(t, 26, refused.Load())
	require.NoError(t, root.Wait(ctx))
	if !t.Failed() {
		closeAll(sessions)
	}
	require.NoError(t, root.Close())
	require.Less(t, time.Duration(joined.Load()), time.Minute)
}

func TestCancelledJoin(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		for r := range 2 {
			_, err := bootstrap.Join(ctx, config(n, id, r, 3))
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, bootstrap.ErrTimeout)
			require.ErrorContains(t, err, "was cancelled")
		}
		require.Zero(t, n.Conns())
	})
}
