//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLimits: ulimits make segments smaller, and too small ones are an error that
// names the limit, in a process that they would kill otherwise.
func TestLimits(t *testing.T) {
	c := start(t, "limits", 0, dirEnv+"="+segmentDir(t))
	require.Equal(t, "done", c.line(t))
}

func limits() error {
	config := Config{Dir: os.Getenv(dirEnv)}
	set := func(resource int, bytes uint64) error {
		var r unix.Rlimit
		if err := unix.Getrlimit(resource, &r); err != nil {
			return err
		}
		r.Cur = min(bytes, r.Max)
		return unix.Setrlimit(resource, &r)
	}
	use := func(atMost int64) error {
		a, err := Open(config, testOptions())
		if err != nil {
			return err
		}
		defer a.Close()
		b, err := Open(config, testOptions())
		if err != nil {
			return err
		}
		defer b.Close()
		if a.seg.size > atMost || a.seg.size < leastSize {
			return fmt.Errorf("segment of %d bytes, want %d to %d", a.seg.size, leastSize, atMost)
		}
		if ok, err := one(a, b, 1, 1<<20); err != nil || !ok {
			return fmt.Errorf("exchange: %v %w", ok, err)
		}
		_, err = a.Alloc(atMost)
		if !errors.Is(err, transport.ErrSpace) || !strings.Contains(err.Error(), "address space") {
			return fmt.Errorf("Alloc of a whole segment: %w", err)
		}
		return nil
	}
	if err := set(unix.RLIMIT_FSIZE, 33<<20); err != nil {
		return err
	}
	if err := use(32 << 20); err != nil {
		return fmt.Errorf("ulimit -f: %w", err)
	}
	if err := set(unix.RLIMIT_FSIZE, 1<<20); err != nil {
		return err
	}
	if _, err := Open(config, testOptions()); err == nil || !strings.Contains(err.Error(), "ulimit -f") {
		return fmt.Errorf("files of 1 MiB: %v", err)
	}
	if err := set(unix.RLIMIT_FSIZE, unix.RLIM_INFINITY); err != nil {
		return err
	}
	if err := set(unix.RLIMIT_AS, 16<<30); err != nil {
		return err
	}
	if err := use(256 << 20); err != nil {
		return fmt.Errorf("ulimit -v: %w", err)
	}
	fmt.Println("done")
	return nil
}
