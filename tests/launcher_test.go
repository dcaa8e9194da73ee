package tests

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranks started with torchrun's variables, whose store holds MASTER_PORT, meet; so do those with gccl's own and a root to serve.
func TestLaunchersEnvironments(t *testing.T) {
	program := filepath.Join(t.TempDir(), "allreduce")
	build := exec.Command("go", "build", "-o", program, "./examples/allreduce")
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	store, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer store.Close()
	host, port, err := net.SplitHostPort(store.Addr().String())
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	root := free.Addr().String()
	require.NoError(t, free.Close())

	const n = 3
	for name, env := range map[string]func(rank int) []string{
		"torchrun": func(r int) []string {
			return []string{fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_RANK=", r), "MASTER_ADDR=" + host, "MASTER_PORT=" + port, "TORCHELASTIC_RUN_ID=job7", "TORCHELASTIC_RESTART_COUNT=0"}
		},
		"gccl": func(r int) []string {
			return []string{fmt.Sprint("GCCL_RANK=", r), fmt.Sprint("GCCL_WORLD_SIZE=", n), "GCCL_ROOT=" + root, "GCCL_SECRET=geheim"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var outs, errs [n]bytes.Buffer
			var ranks sync.WaitGroup
			for r := range n {
				cmd := exec.Command(program)
				cmd.Env = append(append(os.Environ(), "GCCL_INIT_TIMEOUT=50s"), env(r)...)
				cmd.Stdout, cmd.Stderr = &outs[r], &errs[r]
				ranks.Go(func() {
					if err := cmd.Run(); err != nil {
						t.Errorf("rank %d: %v: %s", r, err, &errs[r])
					}
				})
			}
			ranks.Wait()
			for r := range n {
				require.Equal(t, fmt.Sprintf("rank %d of %d has [3 6 9]", r, n), strings.TrimSpace(outs[r].String()))
			}
			if name == "torchrun" { // which gives no secret
				require.Contains(t, errs[0].String()+errs[1].String()+errs[2].String(), "unauthenticated")
			}
		})
	}
}
