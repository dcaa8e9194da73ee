package bootstrap_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// refusedWorld lets the ranks join one after the other, and checks what all of them are told.
func refusedWorld(t *testing.T, joiners []bootstrap.Config, code bootstrap.Refusal, says ...string) {
	t.Helper()
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "192.0.2.99:0", Network: n.Host("192.0.2.99")})
		require.NoError(t, err)
		start := time.Now()
		each(len(joiners), func(i int) {
			time.Sleep(time.Duration(i) * time.Second) // in order
			c := joiners[i]
			c.ID, c.Network = root.ID(), n.Host(host(i))
			_, err := bootstrap.Join(context.Background(), c)
			var refused *bootstrap.RefusedError
			if assert.ErrorAs(t, err, &refused) {
				assert.Equal(t, code, refused.Code)
				for _, text := range says {
					assert.Contains(t, err.Error(), text)
				}
			}
		})
		assert.Less(t, time.Since(start), time.Duration(len(joiners)+1)*time.Second, "everybody is told at once")
		assert.ErrorIs(t, root.Wait(context.Background()), bootstrap.ErrRefused)
		require.NoError(t, root.Close())
		require.Zero(t, n.Conns())
	})
}

func ranks(world int, ranks ...int) (all []bootstrap.Config) {
	for _, r := range ranks {
		all = append(all, bootstrap.Config{Rank: r, World: world})
	}
	return all
}

func TestUC29_RankClaimedTwice(t *testing.T) {
	refusedWorld(t, ranks(6, 0, 1, 2, 4, 5, 5), bootstrap.RefusedDuplicate, "rank 5 claimed twice (first by ", "192.0.2.5:", "again by ", "192.0.2.6:")

	// Without the duplicate the gap is what is left.
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		each(6, func(r int) {
			if r != 3 {
				c := config(n, id, r, 6)
				c.Timeout = 5 * time.Second
				_, err := bootstrap.Join(context.Background(), c)
				assert.ErrorIs(t, err, bootstrap.ErrTimeout)
				assert.ErrorContains(t, err, "5 of 6 joined, missing: 3")
			}
		})
	})
}

func TestWorldsThatDisagree(t *testing.T) {
	refusedWorld(t, append(ranks(4, 0, 1), ranks(8, 3)...), bootstrap.RefusedWorld, "rank 3 (", "says that the world has 8 ranks, rank 0 (", "says 4")
	other := ranks(3, 0, 1)
	other[1].Version = "v0.2"
	refusedWorld(t, other, bootstrap.RefusedVersion, `rank 1 (`, `runs release "v0.2", rank 0 (`, `runs ""`)
}

func TestIDIsForOneWorld(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "192.0.2.99:0", Network: n.Host("192.0.2.99")})
		require.NoError(t, err)
		join := func(r int) (bootstrap.Session, error) {
			return bootstrap.Join(context.Background(), bootstrap.Config{Rank: r, World: 2, ID: root.ID(), Network: n.Host(host(r))})
		}
		each(2, func(r int) {
			s, err := join(r)
			if assert.NoError(t, err) {
				defer s.Close()
				assert.NoError(t, s.Barrier(context.Background()))
			}
		})
		require.NoError(t, root.Wait(context.Background()))
		_, err = join(1)
		require.ErrorIs(t, err, bootstrap.ErrRefused)
		require.ErrorContains(t, err, "this id has already made a world of 2 ranks; rank 1")
		require.NoError(t, root.Close())
		require.NoError(t, root.Close())
		require.NoError(t, root.Wait(context.Background()))
	})
}

// TestRootClosedAtTheDeadline: who serves the root gives up a moment before the root would. The other ranks hear who is missing; earlier they
// hear that the root was closed.
func TestRootClosedAtTheDeadline(t *testing.T) {
	for after, want := range map[time.Duration]error{10*time.Second - time.Millisecond: bootstrap.ErrTimeout, 5 * time.Second: bootstrap.ErrRefused} {
		inMemory(t, func(t *testing.T, n *bootstraptest.Net, _ bootstrap.ID) {
			root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "192.0.2.99:0", Network: n.Host("192.0.2.99"), Timeout: 10 * time.Second})
			require.NoError(t, err)
			time.AfterFunc(after, func() { assert.NoError(t, root.Close()) })
			_, err = bootstrap.Join(context.Background(), bootstrap.Config{Rank: 1, World: 3, ID: root.ID(), Network: n.Host(host(1)), Timeout: time.Minute})
			require.ErrorIs(t, err, want)
			var refused *bootstrap.RefusedError
			require.ErrorAs(t, err, &refused)
			if want == bootstrap.ErrTimeout {
				require.Equal(t, []int{0, 2}, refused.Ranks)
			} else {
				require.Equal(t, bootstrap.RefusedClosed, refused.Code)
			}
		})
	}
}

// A rank that dies before the world is whole makes room for its successor, and is not a duplicate of it.
func TestRankThatLeavesMayComeBack(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		each(3, func(r int) {
			if r == 1 {
				c := config(n, id, r, 3)
				c.Timeout = 2 * time.Second
				_, err := bootstrap.Join(context.Background(), c)
				assert.ErrorContains(t, err, "2 of 3 joined, missing: 2")
			}
			if r == 2 {
				time.Sleep(10 * time.Second)
			}
			s, err := bootstrap.Join(context.Background(), config(n, id, r, 3))
			if assert.NoError(t, err) {
				assert.NoError(t, s.Barrier(context.Background()))
				s.Close()
			}
		})
	})
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) { // or it does not come back
		each(2, func(r int) {
			c := config(n, id, r, 3)
			c.Timeout = time.Duration(10-8*r) * time.Second
			_, err := bootstrap.Join(context.Background(), c)
			if r == 0 {
				assert.ErrorContains(t, err, "2 of 3 joined, missing: 2")
				assert.NotContains(t, err.Error(), "left again", "rank 1 waited for rank 2, too")
			}
		})
	})
}

func TestRootOfAnotherJob(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: host(0) + ":29500", ID: id, Network: n.Host(host(0))})
		require.NoError(t, err)
		defer root.Close()
		other, err := bootstrap.DeriveID(host(0)+":29500", "another secret")
		require.NoError(t, err)
		start := time.Now()
		_, err = bootstrap.Join(context.Background(), bootstrap.Config{World: 2, Rank: 1, ID: other, Network: n.Host(host(1))})
		require.ErrorIs(t, err, auth.ErrSecret)
		require.ErrorContains(t, err, "192.0.2.1:29500")
		require.Less(t, time.Since(start), time.Second, "waiting would not help")

		web, err := n.Host(host(0)).Listen(context.Background(), host(0)+":80")
		require.NoError(t, err)
		defer web.Close()
		go func() {
			for c, err := web.Accept(); err == nil; c, err = web.Accept() {
				io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n")
				c.Close()
			}
		}()
		atWeb, err := bootstrap.DeriveID(host(0)+":80", "s")
		require.NoError(t, err)
		_, err = bootstrap.Join(context.Background(), bootstrap.Config{World: 2, Rank: 1, ID: atWeb, Network: n.Host(host(1))})
		require.ErrorIs(t, err, auth.ErrStranger)
		require.ErrorContains(t, err, `it began with "HTTP/1.0"`)
	})
}

// A rank with a wrong secret is told so at once; those that wait for it in vain hear who was turned away.
func TestUC19_WrongSecretsAreNamedToThoseThatWait(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		const world = 12
		other, err := bootstrap.DeriveID(host(0)+":29500", "another secret")
		require.NoError(t, err)
		errs := make([]error, world)
		each(world, func(r int) {
			c := config(n, id, r, world)
			c.Serve, c.Roots = true, []string{host(0) + ":29500"}
			c.Timeout = time.Duration(10+10*r) * time.Second
			if r >= 2 {
				c.ID = other
			}
			tries := 1
			switch r {
			case 0:
			case 5: // is the first one, and comes again
				tries = 3
				time.Sleep(time.Second)
			default:
				time.Sleep(2 * time.Second)
			}
			for range tries {
				_, errs[r] = bootstrap.Join(context.Background(), c)
			}
		})
		for _, err := range errs[:2] {
			require.ErrorIs(t, err, bootstrap.ErrTimeout)
			require.ErrorContains(t, err, "2 of 12 joined, missing: 2-11")
			require.ErrorContains(t, err, "proof of a wrong secret: 3 from 192.0.2.6, 1 from 192.0.2.")
			require.Regexp(t, `, 2 from elsewhere: .*GCCL_SECRET`, err.Error(), "of eight hosts each by name")
		}
		for _, err := range errs[2:] {
			require.ErrorIs(t, err, auth.ErrSecret)
		}
	})
}

// Whoever's time is over first names them, also where that is not the rank that serves the root; and whoever else gives up.
func TestUC19_WrongSecretsAreNamedByWhoeverGivesUp(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		const world, wrong = 5, 3
		other, err := bootstrap.DeriveID(host(0)+":29500", "another secret")
		require.NoError(t, err)
		errs := make([]error, world)
		each(world, func(r int) {
			c := config(n, id, r, world)
			c.Serve, c.Roots = true, []string{host(0) + ":29500"}
			c.Timeout = time.Duration(30-5*r) * time.Second
			if r == wrong {
				c.ID = other
				time.Sleep(time.Second)
			}
			_, errs[r] = bootstrap.Join(context.Background(), c)
		})
		for r, err := range errs {
			if r == wrong {
				require.ErrorIs(t, err, auth.ErrSecret)
				continue
			}
			require.ErrorContains(t, err, "missing: 3", "rank %d", r)
			require.ErrorContains(t, err, "proof of a wrong secret: 1 from 192.0.2.4", "rank %d", r)
		}
	})
}

// logSink collects log text.
type logSink struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *logSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *logSink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestProgressIsLogged(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		var sink logSink
		each(8, func(r int) {
			c := config(n, id, r, 8)
			if r == 0 {
				c.Log = slog.New(slog.NewTextHandler(&sink, nil))
			}
			if r == 3 || r == 4 || r == 5 {
				time.Sleep(10 * time.Second)
			}
			s, err := bootstrap.Join(context.Background(), c)
			if assert.NoError(t, err) {
				s.Close()
			}
		})
		require.Contains(t, sink.String(), "5 of 8 ranks joined, missing: 3-5")
		require.Contains(t, sink.String(), "all ranks joined")
		require.LessOrEqual(t, strings.Count(sink.String(), "ranks joined, missing"), 4)
	})
}

// Strangers at the root's port and at every rank's port, before, while and after the ranks meet.
func TestUC19_StrangersAtEveryPort(t *testing.T) {
	checkLeaks(t)
	ctx := within(t, patience)
	var sink logSink
	log := slog.New(slog.NewTextHandler(&sink, nil))
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0", Log: log})
	require.NoError(t, err)
	var ports sync.Map
	ports.Store(root.Addr().String(), true)
	stop := make(chan struct{})
	var scans atomic.Int32
	var scanners sync.WaitGroup
	scanners.Go(func() {
		var silent []net.Conn
		defer func() {
			for _, c := range silent {
				c.Close()
			}
		}()
		says := []string{"", "x", "\x01\x02\x03\x04\x05\x06\x07\x08", "GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
			strings.Repeat("\x00", 1<<20), "gcclAUT1" + strings.Repeat("a", 64), "gcclAUT1" + strings.Repeat("\xff", 1000)}
		for k := 0; ; k++ {
			select {
			case <-stop:
				return
			default:
			}
			ports.Range(func(port, _ any) bool {
				c, err := net.Dial("tcp", port.(string))
				if err != nil {
					return true
				}
				scans.Add(1)
				switch {
				case k%4 == 0 && len(silent) < 200:
					silent = append(silent, c)
				case k%4 == 1: // reset
					c.(*net.TCPConn).SetLinger(0)
					c.Close()
				default:
					c.SetDeadline(time.Now().Add(time.Second))
					io.WriteString(c, says[k%len(says)])
					c.Close()
				}
				return true
			})
			time.Sleep(time.Millisecond)
		}
	})
	each(4, func(r int) {
		if r == 2 {
			time.Sleep(700 * time.Millisecond)
		}
		s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: r, World: 4, ID: root.ID(), Log: log})
		if !assert.NoError(t, err) {
			return
		}
		defer s.Close()
		for _, a := range bootstrap.Addrs(s) {
			ports.Store(a.String(), true)
		}
		for k := range 20 {
			assert.NoError(t, s.Send(ctx, (r+2)%4, uint64(k), block(r, k)))
			got, err := s.Recv(ctx, (r+2)%4, uint64(k))
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(block((r+2)%4, k), got))
			time.Sleep(10 * time.Millisecond)
		}
		gatherMany(t, ctx, s, 5)
	})
	close(stop)
	scanners.Wait()
	require.NoError(t, root.Close())
	require.Greater(t, scans.Load(), int32(50))
	require.Contains(t, sink.String(), `dropped a stranger`)
	require.LessOrEqual(t, strings.Count(sink.String(), "dropped a stranger"), 5*5*3, "rate limited per port and kind")
	require.NotContains(t, sink.String(), "a rank is dead")
}

func TestFormatRanks(t *testing.T) {
	var odd []int
	for r := 1; r < 100; r += 2 {
		odd = append(odd, r)
	}
	for want, in := range map[string][]int{
		"":             nil,
		"3":            {3},
		"3, 4":         {3, 4},
		"0-3, 7, 9-11": {0, 1, 2, 3, 7, 9, 10, 11},
		"1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 (and 34 more)": odd,
	} {
		require.Equal(t, want, bootstrap.FormatRanks(in), fmt.Sprint(in))
	}
}
