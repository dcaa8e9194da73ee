//go:build linux

package faults

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
)

// fence makes the kernel drop whatever comes to the sockets at which this process listens, as a firewall does that says nothing:
// who connects hears neither yes nor no.
func fence() (fenced int, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || is == 0 {
			continue
		}
		if err := drop(fd); err != nil {
			return fenced, fmt.Errorf("SO_ATTACH_FILTER: %w", err)
		}
		fenced++
	}
	return fenced, nil
}

// drop makes a socket receive nothing.
func drop(fd int) error {
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
}

// saysFirewall checks that an error came in time, and names an address and what may be wrong.
func saysFirewall(err error, timeout time.Duration, took time.Duration) error {
	switch {
	case err == nil:
		return errors.New("succeeded behind a firewall")
	case !regexp.MustCompile(`127\.0\.0\.1:\d+`).MatchString(err.Error()) || !strings.Contains(err.Error(), "firewall"):
		return fmt.Errorf("does not name the address and the firewall: %w", err)
	case took > timeout+patience/4:
		return fmt.Errorf("took %v, with a timeout of %v: %w", took, timeout, err)
	}
	return nil
}

// fenced is the job of a rank that hears of no new connection: first once the ranks have met, then at the root.
func fenced(r *cluster.Rank) {
	const timeout = 4 * time.Second
	c := join(r, func(cfg *comm.Config) { cfg.InitTimeout = timeout })
	r.Case("data", func(*cluster.Case) error {
		if n, err := fence(); err != nil || n == 0 {
			return fmt.Errorf("%d sockets fenced: %w", n, err)
		}
		ctx, cancel := within()
		defer cancel()
		if _, err := c.Split(ctx, comm.NoColor, 0); err != nil { // all are fenced; this needs no new connection
			return err
		}
		start := time.Now()
		err := c.Barrier(ctx)
		var e *comm.Error
		if !errors.Is(err, comm.ErrAborted) || !errors.As(err, &e) || len(e.Ranks) == 0 {
			return fmt.Errorf("not a communicator's failure with a culprit: %w", err)
		}
		return saysFirewall(err, timeout, time.Since(start))
	})
	c.Close()
	r.Case("root", func(*cluster.Case) error {
		root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "127.0.0.1:0"})
		if err != nil {
			return err
		}
		defer root.Close()
		if n, err := fence(); err != nil || n == 0 {
			return fmt.Errorf("%d sockets fenced: %w", n, err)
		}
		start := time.Now()
		_, err = comm.New(background, comm.Config{Rank: 0, Size: 2, ID: root.ID(), InitTimeout: timeout, Logger: quiet})
		if !errors.Is(err, comm.ErrTimeout) {
			return fmt.Errorf("not a timeout: %w", err)
		}
		return saysFirewall(err, timeout, time.Since(start))
	})
}

// TestUC25_DroppedSYN: behind a firewall that drops what comes, a rank that connects for data, or to the root, gets a time-out that names host and
// port, and the firewall.
func TestUC25_DroppedSYN(t *testing.T) {
	t.Parallel() // it waits more than it works
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	if err := drop(fd); errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		t.Skip("this kernel lets only root filter what a socket receives")
	}
	cluster.Run(t, cluster.Launch{Job: "fenced", Ranks: 2,
		Env: []string{"GCCL_TRANSPORT=tcp", "GCCL_SOCKET_IFNAME=lo", "GODEBUG=multipathtcp=0"}}) // the kernel filters plain TCP alone
}
