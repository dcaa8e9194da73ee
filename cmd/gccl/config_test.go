package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeConfig(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestConfigPrintsValuesAndSources(t *testing.T) {
	file := writeConfig(t, "gccl.json", "{\"algorithm\": \"ring\",\n\"gpu_direct\": {\"enable\": true},\n\"gid_index\": 3}")
	env := []string{"HOME=" + t.TempDir(), "GCCL_CONFIG=" + file, "GCCL_CALL_TIMEOUT=90s", "NCCL_SOCKET_IFNAME=eth0", "NCCL_NVLS_ENABLE=0"}
	o := command(t, env, "config")
	require.Equal(t, 0, o.code, o.stderr)
	fields := map[string]string{}
	for line := range strings.Lines(o.stdout) {
		require.Equal(t, strings.TrimRight(line, " \n")+"\n", line, "no blanks at the end")
		name, rest, _ := strings.Cut(line, " ")
		fields[name] = strings.Join(strings.Fields(rest), " ")
	}
	require.Equal(t, "ring "+file+":1 GCCL_ALGO", fields["algorithm"])
	require.Equal(t, "true "+file+":2 GCCL_GPU_DIRECT not used in this build, whose network transports don't reach GPU memory", fields["gpu_direct.enable"])
	require.Equal(t, "90s GCCL_CALL_TIMEOUT GCCL_CALL_TIMEOUT", fields["call_timeout"])
	require.Equal(t, "eth0 NCCL_SOCKET_IFNAME GCCL_SOCKET_IFNAME", fields["socket_ifname"])
	require.Equal(t, "auto default GCCL_TRANSPORT", fields["transport"])
	require.Contains(t, o.stdout, "Said to NCCL and ignored:\n  NCCL_NVLS_ENABLE\n")

	o = command(t, env, "config", "--json")
	require.Equal(t, 0, o.code, o.stderr)
	var got struct {
		Settings []struct {
			Name, From string
			Value      any
			Used       bool
		}
		Ignored []string `json:"nccl_ignored"`
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &got))
	found := 0
	for _, s := range got.Settings {
		switch s.Name {
		case "gid_index":
			require.Equal(t, []any{3.0, file + ":3", true}, []any{s.Value, s.From, s.Used})
			found++
		case "gpu_direct.enable":
			require.Equal(t, []any{true, file + ":2", false}, []any{s.Value, s.From, s.Used})
			found++
		case "transport":
			require.Equal(t, []any{nil, "default", true}, []any{s.Value, s.From, s.Used})
			found++
		}
	}
	require.Equal(t, 3, found)
	require.Equal(t, []string{"NCCL_NVLS_ENABLE"}, got.Ignored)
}

func TestConfigMistakes(t *testing.T) {
	file := writeConfig(t, "gccl.toml", "\nalgoritm = \"ring\"\n")
	for _, args := range [][]string{{"config", "--file", file}, {"config", "--json", "--file", file}} {
		o := command(t, nil, args...)
		require.Equal(t, 2, o.code)
		require.Empty(t, o.stdout)
		require.Contains(t, o.stderr, file+`:2: unknown key "algoritm"; did you mean algorithm?`)
	}
	o := command(t, []string{"GCCL_CONFIG=" + file}, "bench", "all_reduce", "--ranks", "1")
	require.Equal(t, 2, o.code, o.stderr)
	require.Contains(t, o.stderr, file+":2")
}

func TestUC62_SystemFileForAnotherMachine(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".nccl.conf")
	require.NoError(t, os.WriteFile(file, []byte("# four GPUs\r\nNCCL_GRAPH_FILE=\"/etc/graph-4gpu.xml\"\r\nNCCL_TOPO_FILE=/etc/topo-4gpu.xml\r\nno sense\r\n"), 0o600))
	o := command(t, []string{"HOME=" + home}, "bench", "all_reduce", "-b", "1K", "-e", "1K", "-n", "2", "--ranks", "2")
	require.Equal(t, 0, o.code, o.stderr)
	require.Contains(t, o.stderr, file+":2: NCCL_GRAPH_FILE=/etc/graph-4gpu.xml")
	require.Contains(t, o.stderr, "topology file is ignored")
	require.Contains(t, o.stderr, ` file=/etc/topo-4gpu.xml "set by"=`+file+":3 ")
	require.Contains(t, o.stderr, file+":4:")
}
