package auth

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// syncBuffer is a log sink for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// serve runs a gate that echoes one byte to whoever passes, on a loopback port, until the test ends.
func serve(t *testing.T, g *Gate) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- g.Serve(ln, func(c net.Conn) {
			defer c.Close()
			io.CopyN(c, c, 1)
		})
	}()
	t.Cleanup(func() {
		ln.Close()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			t.Error("Serve did not return after its listener was closed")
		}
	})
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// prove goes through the handshake as ranks do, again and again: a gate that was not scheduled for the grace cuts honest peers, too.
func prove(t *testing.T, addr string, key []byte) (net.Conn, error) {
	for end := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		err = Client(c, key, "echo")
		var e *Error
		if !errors.As(err, &e) || e.Kind != Left && e.Kind != Silent || time.Now().After(end) {
			return c, err
		}
		c.Close()
	}
}

func passes(t *testing.T, addr string, key []byte) {
	c, err := prove(t, addr, key)
	require.NoError(t, err)
	_, err = c.Write([]byte{42})
	require.NoError(t, err)
	got := make([]byte, 1)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, byte(42), got[0])
}

func TestUC19_StrangersDoNotDisturb(t *testing.T) {
	key := []byte("secret of the job")
	var log syncBuffer
	addr := serve(t, &Gate{Secret: key, Service: "echo", Pending: 64, Log: slog.New(slog.NewTextHandler(&log, nil))})

	for range 200 {
		dial(t, addr) // stays silent until the test ends
	}
	for _, says := range []string{"x", "12345678", "GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01", string(make([]byte, 1<<20))} {
		c := dial(t, addr)
		io.WriteString(c, says) // may fail: the gate hangs up early
		c.Close()
	}
	rst := dial(t, addr).(*net.TCPConn)
	rst.SetLinger(0)
	rst.Close()

	start := time.Now()
	for range 20 {
		passes(t, addr, key)
	}
	require.Less(t, time.Since(start), 20*time.Second)
	_, err := prove(t, addr, []byte("guess"))
	require.ErrorIs(t, err, ErrSecret)

	require.Eventually(t, func() bool { return strings.Contains(log.String(), "not gccl") }, 20*time.Second, 10*time.Millisecond)
	for _, kind := range []string{`kind="not gccl"`, "kind=left", "kind=silent", `kind="wrong secret"`} {
		require.LessOrEqual(t, strings.Count(log.String(), kind), 4, "lines about %s are rate limited", kind)
	}
}

func TestSilentConnectionsAreClosed(t *testing.T) {
	addr := serve(t, &Gate{Secret: []byte("k"), Service: "echo", Timeout: 50 * time.Millisecond})
	c := dial(t, addr)
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestCloseCutsHandshakesUnderWay(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- (&Gate{Secret: []byte("k"), Service: "echo"}).Serve(ln, func(c net.Conn) { c.Close() })
	}()
	for range 10 {
		c := dial(t, ln.Addr().String())
		_, err := c.Write([]byte(magic))
		require.NoError(t, err)
	}
	ln.Close()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("Serve still waits")
	}
}

// More honest peers at once than places: all of them get in.
func TestBurstOfHonestPeers(t *testing.T) {
	key := []byte("k")
	addr := serve(t, &Gate{Secret: key, Service: "echo", Pending: 4})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := prove(t, addr, key); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
