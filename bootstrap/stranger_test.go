package bootstrap_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
)

// tape is what a connection said to a server.
type tape struct {
	net.Conn
	address string
	mu      sync.Mutex
	said    bytes.Buffer
}

func (c *tape) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.said.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *tape) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// Whoever recorded the connections of a job, with their proofs and all that follows, and plays them again to the same ports, gets no
// further than any other stranger.
func TestUC19_ReplayedHandshake(t *testing.T) {
	checkLeaks(t)
	ctx := within(t, patience)
	var sink logSink
	log := slog.New(slog.NewTextHandler(&sink, nil))
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0", Log: log})
	require.NoError(t, err)
	defer root.Close()
	var mu sync.Mutex
	var tapes []*tape
	record := bootstrap.Network{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		rec := &tape{Conn: c, address: address}
		mu.Lock()
		tapes = append(tapes, rec)
		mu.Unlock()
		return rec, nil
	}}
	const n = 3
	sessions := make([]bootstrap.Session, n)
	each(n, func(r int) {
		s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: r, World: n, ID: root.ID(), Log: log, Network: record})
		if assert.NoError(t, err) {
			sessions[r] = s
		}
	})
	if t.Failed() {
		return
	}
	played := 0
	for _, rec := range append([]*tape(nil), tapes...) {
		rec.mu.Lock()
		said := bytes.Clone(rec.said.Bytes())
		rec.mu.Unlock()
		require.Greater(t, len(said), 72, "a handshake, and more")
		c, err := net.Dial("tcp", rec.address)
		require.NoError(t, err)
		_, err = c.Write(said)
		require.NoError(t, err)
		c.SetReadDeadline(time.Now().Add(patience / 2))
		answer, err := io.ReadAll(c)
		if err != nil {
			require.ErrorContains(t, err, "reset", "closed, and not open until the deadline")
		}
		require.LessOrEqual(t, len(answer), 72, "nothing but the server's own proof")
		c.Close()
		played++
	}
	require.GreaterOrEqual(t, played, 2*n, "to the root and to every rank")
	require.Contains(t, sink.String(), `kind="wrong secret"`)
	each(n, func(r int) {
		gatherMany(t, ctx, sessions[r], 3)
		assert.Empty(t, fates(sessions[r], 0))
		assert.NoError(t, sessions[r].Barrier(ctx))
	})
	closeAll(sessions)
}

// Two hundred silent connections at each port, and as many that send a megabyte of nothing, cost little memory, and honest ranks get in
// between.
func TestUC19_StrangersCostLittle(t *testing.T) {
	checkLeaks(t)
	ctx := within(t, patience)
	var sink logSink
	log := slog.New(slog.NewTextHandler(&sink, nil))
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0", Log: log})
	require.NoError(t, err)
	defer root.Close()
	ports := []string{root.Addr().String()}
	const n = 3
	sessions := make([]bootstrap.Session, n)
	join := func(r int) {
		s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: r, World: n, ID: root.ID(), Log: log})
		if assert.NoError(t, err) {
			sessions[r] = s
		}
	}
	zeros := make([]byte, 1<<20)
	storm := func() (stop func()) {
		var silent []net.Conn
		for _, port := range ports {
			for range 200 {
				if c, err := net.Dial("tcp", port); err == nil {
					silent = append(silent, c)
				}
			}
		}
		var wg sync.WaitGroup
		for _, port := range ports {
			wg.Go(func() {
				for range 200 {
					c, err := net.Dial("tcp", port)
					if err != nil {
						continue
					}
					c.SetDeadline(time.Now().Add(time.Second))
					c.Write(zeros)
					c.Close()
				}
			})
		}
		return func() {
			wg.Wait()
			for _, c := range silent {
				c.Close()
			}
		}
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := heap()
	stop := storm()
	start := time.Now()
	each(n, join) // while the root is beset
	require.Less(t, time.Since(start), 20*time.Second)
	stop()
	if t.Failed() {
		return
	}
	for _, a := range bootstrap.Addrs(sessions[0]) {
		ports = append(ports, a.String())
	}
	stop = storm()
	require.Less(t, heap()-before, int64(32<<20), "with %d silent connections and as many that shout", 200*len(ports))
	each(n, func(r int) {
		sub, err := sessions[r].Sub(ctx, []int{2, 1, 0}) // through the same doors
		if assert.NoError(t, err) {
			gatherMany(t, ctx, sub, 3)
			sub.Close()
		}
	})
	stop()
	each(n, func(r int) { assert.NoError(t, sessions[r].Barrier(ctx)) })
	closeAll(sessions)
	require.NoError(t, root.Close())
	for _, kind := range []string{`kind="not gccl"`, "kind=silent", "kind=left"} {
		require.LessOrEqual(t, strings.Count(sink.String(), kind), 4*len(ports), "one line for each port, kind and ten seconds")
	}
	require.Contains(t, sink.String(), `kind="not gccl"`)
}
