//go:build linux

package cluster

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	Main(m, Jobs{"fine": fine, "bad": bad, "hang": hang})
}

func fine(r *Rank) {
	r.Case("one", func(c *Case) error {
		c.Same([]byte("equal"))
		c.Fact("rank", int64(r.Rank))
		return nil
	})
	r.Case("environment", func(*Case) error {
		cfg := r.World(1)
		switch {
		case cfg.Rank != r.Rank, cfg.Size != 3, cfg.ID == r.World(0).ID:
			return errors.New("wrong configuration")
		case os.Getenv("EVERY") != "rank", (os.Getenv("ONLY") == "1") != (r.Rank == 1):
			return errors.New("wrong environment")
		case os.Getenv("GCCL_ALGO") != "" || os.Getenv("MASTER_ADDR") != "":
			return errors.New("an outer launcher's environment came through")
		}
		return nil
	})
}

func bad(r *Rank) {
	r.Case("error", func(*Case) error {
		if r.Rank == 1 {
			return errors.New("element 7 is 3, want 4")
		}
		return nil
	})
	r.Case("bits", func(c *Case) error {
		c.Same([]byte{byte(r.Rank / 2)})
		return nil
	})
	r.Case("death", func(*Case) error {
		if r.Rank == 2 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	if r.Rank == 0 {
		os.Exit(3)
	}
	r.Case("after", func(*Case) error { return nil })
}

func hang(r *Rank) {
	r.Case("stuck", func(*Case) error {
		for r.Rank == 1 {
			time.Sleep(time.Hour)
		}
		return nil
	})
}

func TestRun(t *testing.T) {
	t.Setenv("GCCL_ALGO", "ring")
	t.Setenv("MASTER_ADDR", "192.0.2.1")
	res := Run(t, Launch{Job: "fine", Ranks: 3, Worlds: 2, Env: []string{"EVERY=rank"}, Only: func(rank int) []string {
		if rank == 1 {
			return []string{"ONLY=1"}
		}
		return nil
	}})
	require.Equal(t, []string{"one", "environment"}, res.Cases())
	for rank := range 3 {
		n, ok := res.Fact("one", rank, "rank")
		require.True(t, ok)
		require.Equal(t, int64(rank), n)
	}
	_, ok := res.Fact("one", 0, "nothing")
	require.False(t, ok)
}

// launchOf runs a launch and returns what is wrong with it, without failing.
func launchOf(t *testing.T, l Launch) *Result {
	l.ShmDir = shmDir(t)
	ps, err := l.run(serve(t, 1, time.Minute))
	require.NoError(t, err)
	return collect(l, ps)
}

func TestRunFindsFaults(t *testing.T) {
	res := launchOf(t, Launch{Job: "bad", Ranks: 4, Timeout: time.Minute})
	require.Equal(t, []string{"rank 1: element 7 is 3, want 4"}, res.wrong("error"))
	bits := res.wrong("bits")
	require.Len(t, bits, 1)
	require.Regexp(t, `^the ranks have different bits: checksum \w{8} on ranks \[(0 1|2 3)\], \w{8} on ranks \[(0 1|2 3)\]$`, bits[0])
	require.Equal(t, []string{"rank 2 began and did not end: it was ended by signal 9 (killed)"}, res.wrong("death"))
	require.Equal(t, []string{"rank 0 did not get there: it exited with status 3 in case \"death\"",
		"rank 2 did not get there: it was ended by signal 9 (killed) in case \"death\""}, res.wrong("after"))
	require.Equal(t, `exited with status 3 during or after case "death"`, res.wrongExit(0, res.ranks[0]))
	require.Empty(t, res.wrongExit(1, res.ranks[1]), "the case says it")
	require.Equal(t, `was ended by signal 9 (killed) during or after case "death"`, res.wrongExit(2, res.ranks[2]))
	require.Empty(t, res.wrongExit(3, res.ranks[3]))

	res.launch.Dies = map[int]syscall.Signal{2: syscall.SIGKILL, 3: syscall.SIGKILL}
	require.Empty(t, res.wrongExit(2, res.ranks[2]))
	require.Empty(t, res.wrong("death"))
	require.Equal(t, "exited with status 0, want it to be ended by killed", res.wrongExit(3, res.ranks[3]))
}

func TestRunEndsAtTheTimeout(t *testing.T) {
	res := launchOf(t, Launch{Job: "hang", Ranks: 2, Timeout: 5 * time.Second})
	require.Contains(t, res.wrongExit(1, res.ranks[1]), `did not end in 5s and was killed; its last case was "stuck"`)
	require.Empty(t, res.wrongExit(0, res.ranks[0]))
	require.Len(t, res.wrong("stuck"), 1)
}

func TestUnknownJob(t *testing.T) {
	res := launchOf(t, Launch{Job: "nothing", Ranks: 1, Timeout: time.Minute})
	require.Contains(t, res.wrongExit(0, res.ranks[0]), "exited with status 2")
}

func TestBufferKeepsBothEnds(t *testing.T) {
	var b buffer
	for range 10 {
		b.Write([]byte(strings.Repeat("m", keep)))
	}
	b.Write([]byte("the end"))
	s := b.String()
	require.True(t, strings.HasSuffix(s, "the end"))
	require.Contains(t, s, "bytes …")
	require.Less(t, len(s), 4*keep)
	require.Equal(t, "short", func() string { var b buffer; b.Write([]byte("short")); return b.String() }())
}
