package shm

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded reads an identity "hostname,boot_id[,pidns,netns,shm_dev]" of the
// recorded table, with words in parentheses left out.
func recorded(s string) Identity {
	s, _, _ = strings.Cut(s, " (")
	f := append(strings.Split(strings.TrimSpace(s), ","), "", "", "", "")
	return Identity{HostName: f[0], BootID: f[1], ShmDevice: f[4]}
}

func TestUC33_HostIdentityTable(t *testing.T) {
	dir := os.Getenv("GCCL_FIXTURES")
	if dir == "" {
		t.Skip("GCCL_FIXTURES does not name the recorded machines")
	}
	f, err := os.Open(filepath.Join(dir, "host", "identity.tsv"))
	require.NoError(t, err)
	defer f.Close()
	rows := 0
	for in := bufio.NewScanner(f); in.Scan(); {
		if strings.HasPrefix(in.Text(), "#") {
			continue
		}
		c := strings.Split(in.Text(), "\t")
		require.Len(t, c, 5)
		rows++
		a, b := recorded(c[1]), recorded(c[2])
		same, why := SameHost(a, b)
		want := c[3] == "yes"
		if strings.HasPrefix(c[4], "only after a shm handshake") {
			want = true // by identity alone the clone is the same; TestUC33_OtherNonce refuses it
		}
		require.Equal(t, want, same, "%s: %s", c[0], why)
		require.Equal(t, same, why == "")
		back, _ := SameHost(b, a)
		require.Equal(t, same, back, c[0])
	}
	require.GreaterOrEqual(t, rows, 6)
}

func TestUC33_SameHost(t *testing.T) {
	for _, c := range []struct {
		a, b Identity
		same bool
		says []string
	}{
		{Identity{BootID: "b1", HostName: "pod-a"}, Identity{BootID: "b1", HostName: "pod-b"}, true, nil},
		{Identity{BootID: "b1", HostName: "localhost"}, Identity{BootID: "b2", HostName: "localhost"}, false, []string{"other host", "b1", "b2"}},
		{Identity{HostName: "vm"}, Identity{HostName: "vm"}, false, []string{"host unknown", "GCCL_HOSTID"}},
		{Identity{BootID: "b1"}, Identity{}, false, []string{"host unknown"}},
		{Identity{HostID: "x", BootID: "b1"}, Identity{HostID: "x", BootID: "b2"}, true, nil},
		{Identity{HostID: "x", BootID: "b1"}, Identity{HostID: "y", BootID: "b1"}, false, []string{`"x"`, `"y"`}},
		{Identity{HostID: "x", BootID: "b1"}, Identity{BootID: "b1"}, false, []string{`"x"`, `""`}},
	} {
		same, why := SameHost(c.a, c.b)
		require.Equal(t, c.same, same, "%v %v", c.a, c.b)
		for _, s := range c.says {
			require.Contains(t, why, s)
		}
	}
}

// TestUC34_NoClash: two names whose 64-bit hash was once equal, and a million
// others, as boot ids and as the user's words for hosts.
func TestUC34_NoClash(t *testing.T) {
	names := []string{"compute00000R", "compute000011"}
	for i := range 1_000_000 {
		names = append(names, fmt.Sprintf("compute%05d", i))
	}
	seen := make(map[Identity]bool, len(names))
	for i, n := range names {
		seen[Identity{HostID: n}] = true
		other := names[(i+1)%len(names)]
		if same, _ := SameHost(Identity{HostID: n}, Identity{HostID: other}); same {
			t.Fatalf("%q and %q are one host", n, other)
		}
		if same, _ := SameHost(Identity{BootID: n, HostName: "h"}, Identity{BootID: other, HostName: "h"}); same {
			t.Fatalf("boot ids %q and %q are one host", n, other)
		}
	}
	require.Len(t, seen, len(names))
}
