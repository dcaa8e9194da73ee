package comm

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A directory that takes no records is told of when the job begins, not when it has failed and it is too late.
func TestRecorderThatCannotWriteIsToldAtNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	closed := filepath.Join(t.TempDir(), "closed")
	require.NoError(t, os.Mkdir(closed, 0o500))
	for dir, says := range map[string]string{
		t.TempDir(): "", "": "", "/nonexistent": "no such file", file: "is no directory", "/proc/self": "write to /proc/self", closed: "write to ",
	} {
		if err := unix.Access(dir, unix.W_OK); err == nil && says == "write to " {
			continue // we may do anything
		}
		var log bytes.Buffer
		c, err := New(t.Context(), Config{Size: 1, Recorder: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		if says == "" {
			require.Empty(t, log.String())
			continue
		}
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		require.Contains(t, log.String(), "level=WARN msg=\"there will be no records of failures\" recorder="+dir)
		require.Contains(t, log.String(), says)
	}
}

// A rank alone writes its record at SIGUSR1, too: nobody else catches the signal, and it would end the process.
func TestRecorderOfOneRank(t *testing.T) {
	dir := t.TempDir()
	c, err := New(t.Context(), Config{Size: 1, Recorder: dir, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGUSR1))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "gccl-"+c.name()+"-0.json"))
		return !errors.Is(err, os.ErrNotExist)
	}, time.Minute, time.Millisecond)
	require.NoError(t, c.Close())
}
