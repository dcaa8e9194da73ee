//go:build linux

package handover_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap/handover"
)

func offer(t *testing.T, content string) *handover.Offer {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	o, err := handover.New(f)
	require.NoError(t, err)
	t.Cleanup(func() { _ = o.Close() }) // some tests have
	return o
}

// An offer keeps its file, whatever becomes of who made it.
func TestOfferKeepsItsFile(t *testing.T) {
	o := offer(t, "kept")
	for range 3 {
		runtime.GC()
		f, err := handover.Take(t.Context(), o.Ticket())
		require.NoError(t, err)
		require.Equal(t, "kept", content(t, f))
		require.NoError(t, f.Close())
	}
}

func content(t *testing.T, f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1000))
	require.NoError(t, err)
	return string(b)
}

// Another process takes a file that has no name.
func TestTake(t *testing.T) {
	if name := os.Getenv("GCCL_TEST_TICKET"); name != "" {
		ticket := handover.Ticket{Name: name}
		copy(ticket.Secret[:], os.Getenv("GCCL_TEST_SECRET"))
		f, err := handover.Take(t.Context(), ticket)
		require.NoError(t, err)
		require.Equal(t, "what is in it", content(t, f))
		require.NoError(t, f.Close())
		return
	}
	var ticket handover.Ticket
	for { // one that is text
		o := offer(t, "what is in it")
		if ticket = o.Ticket(); !strings.Contains(string(ticket.Secret[:]), "\x00") {
			break
		}
	}
	for range 3 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTake$")
		child.Env = append(os.Environ(), "GCCL_TEST_TICKET="+ticket.Name, "GCCL_TEST_SECRET="+string(ticket.Secret[:]))
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// Strangers get nothing, are not told why, and are in nobody's way.
func TestStrangers(t *testing.T) {
	o := offer(t, "secret")
	for _, says := range []string{"", "x", strings.Repeat("x", 16), strings.Repeat("x", 10000)} {
		c, err := net.Dial("unix", o.Ticket().Name)
		require.NoError(t, err)
		_, err = c.Write([]byte(says))
		require.NoError(t, err)
		if len(says) < 16 {
			defer c.Close() // it stays
			continue
		}
		n, _ := c.Read(make([]byte, 10))
		require.Zero(t, n)
		require.NoError(t, c.Close())
	}
	wrong := o.Ticket()
	wrong.Secret[3]++
	_, err := handover.Take(t.Context(), wrong)
	require.ErrorContains(t, err, "gave none")
	f, err := handover.Take(t.Context(), o.Ticket())
	require.NoError(t, err)
	require.Equal(t, "secret", content(t, f))
	require.NoError(t, f.Close())
}

// Who has gone, or says nothing, is an error soon.
func TestNobodyThere(t *testing.T) {
	o := offer(t, "gone")
	ticket := o.Ticket()
	require.NoError(t, o.Close())
	_, err := handover.Take(t.Context(), ticket)
	require.ErrorContains(t, err, ticket.Name)
	l, err := net.Listen("unix", ticket.Name)
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = handover.Take(ctx, ticket)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
