package bootstrap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// env makes a getenv of "A=1 B=2".
func env(text string) func(string) string {
	vars := map[string]string{}
	for _, f := range strings.Fields(text) {
		k, v, _ := strings.Cut(f, "=")
		vars[k] = v
	}
	return func(name string) string { return vars[name] }
}

func TestEnvironment(t *testing.T) {
	id, err := NewID(addr("192.0.2.1:29500"))
	require.NoError(t, err)
	tests := []struct {
		name, vars string
		want       Env // without ID
	}{
		{"nothing", "", Env{LocalRank: -1}},
		{"nothing of a rank", "MASTER_ADDR=head MASTER_PORT=1", Env{LocalRank: -1}},
		{"alone", "GCCL_RANK=0 GCCL_WORLD_SIZE=1", Env{World: 1, LocalRank: -1, Launcher: "gccl"}},
		{"alone under torchrun", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=h MASTER_PORT=5", Env{World: 1, Launcher: "torchrun"}},
		{"root", "GCCL_RANK=1 GCCL_WORLD_SIZE=4 GCCL_LOCAL_RANK=1 GCCL_ROOT=head:80",
			Env{Rank: 1, World: 4, LocalRank: 1, Launcher: "gccl", Roots: []string{"head:80"}, Serve: true, Unproven: true}},
		{"root and secret", "GCCL_RANK=1 GCCL_WORLD_SIZE=4 GCCL_ROOT=[2001:db8::1]:80 GCCL_SECRET=x",
			Env{Rank: 1, World: 4, LocalRank: -1, Launcher: "gccl", Roots: []string{"[2001:db8::1]:80"}, Serve: true}},
		{"id", "GCCL_RANK=3 GCCL_WORLD_SIZE=4 GCCL_UNIQUE_ID=" + id.String(), Env{Rank: 3, World: 4, LocalRank: -1, Launcher: "gccl"}},
		{"root wins over torchrun's", "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=h MASTER_PORT=5 GCCL_ROOT=head:80 GCCL_SECRET=x",
			Env{Rank: 2, World: 4, Launcher: "torchrun", Roots: []string{"head:80"}, Serve: true}},
		{"gccl's rank wins", "RANK=2 WORLD_SIZE=4 GCCL_RANK=5 GCCL_WORLD_SIZE=8 GCCL_ROOT=head:80 GCCL_SECRET=x",
			Env{Rank: 5, World: 8, LocalRank: -1, Launcher: "gccl", Roots: []string{"head:80"}, Serve: true}},
		{"torchrun near the last port", "RANK=2 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=2001:db8::1 MASTER_PORT=65533",
			Env{Rank: 2, World: 4, LocalRank: 1, Launcher: "torchrun", Roots: []string{"[2001:db8::1]:65534", "[2001:db8::1]:65535"}, Serve: true, Unproven: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Environment(env(tt.vars))
			require.NoError(t, err)
			if tt.want.World > 1 {
				require.NoError(t, got.ID.check())
				c := got.Config()
				require.NoError(t, c.validate())
			}
			got.ID = ID{}
			require.Equal(t, tt.want, got)
		})
	}
	got, err := Environment(env("RANK=0 WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=29500"))
	require.NoError(t, err)
	require.Len(t, got.Roots, 16)
	require.Equal(t, "head:29501", got.Roots[0])
	require.Equal(t, "head:29516", got.Roots[15])
}

// All ranks of a job make the same id; another job, restart or world makes another secret.
func TestEnvironmentKeepsJobsApart(t *testing.T) {
	const torch = "LOCAL_RANK=0 MASTER_ADDR=head MASTER_PORT=29500 "
	secret := func(vars string) string {
		e, err := Environment(env(vars))
		require.NoError(t, err)
		return string(e.ID.Secret())
	}
	base := secret(torch + "RANK=0 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=0")
	require.Equal(t, base, secret(torch+"RANK=3 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=0"))
	for _, other := range []string{
		"RANK=0 WORLD_SIZE=5 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=0",
		"RANK=0 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=b TORCHELASTIC_RESTART_COUNT=0",
		"RANK=0 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=1",
		"RANK=0 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=0 GCCL_SECRET=s",
	} {
		require.NotEqual(t, base, secret(torch+other), other)
	}
	const own = "GCCL_RANK=0 GCCL_WORLD_SIZE=4 GCCL_ROOT=head:1 "
	require.NotEqual(t, secret(own+"GCCL_JOB_ID=1"), secret(own+"GCCL_JOB_ID=2"))
	require.NotEqual(t, secret(own+"GCCL_SECRET=1"), secret(own+"GCCL_JOB_ID=1"))

	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("1\n"), 0o600))
	require.Equal(t, secret(own+"GCCL_SECRET=1"), secret(own+"GCCL_SECRET_FILE="+file))
}

func TestEnvironmentNamesWhatIsWrong(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte(" \n"), 0o600))
	const own = "GCCL_RANK=0 GCCL_WORLD_SIZE=4 "
	for vars, says := range map[string][]string{
		"GCCL_RANK=0":                               {`GCCL_RANK="0" is set and GCCL_WORLD_SIZE is not`},
		"GCCL_WORLD_SIZE=4":                         {`GCCL_WORLD_SIZE="4" is set and GCCL_RANK is not`},
		"RANK=1":                                    {`RANK="1" is set and WORLD_SIZE is not`},
		"GCCL_RANK=4 GCCL_WORLD_SIZE=4":             {`GCCL_RANK="4"`, "0 to 3", "GCCL_WORLD_SIZE=4"},
		"GCCL_RANK=-1 GCCL_WORLD_SIZE=4":            {`GCCL_RANK="-1"`, "0 to 3"},
		"GCCL_RANK=x GCCL_WORLD_SIZE=4":             {`GCCL_RANK="x"`},
		"GCCL_RANK=0 GCCL_WORLD_SIZE=0":             {`GCCL_WORLD_SIZE="0"`, "a number from 1"},
		"GCCL_RANK=0 GCCL_WORLD_SIZE=-4":            {`GCCL_WORLD_SIZE="-4"`},
		"GCCL_RANK=0 GCCL_WORLD_SIZE=4x":            {`GCCL_WORLD_SIZE="4x"`},
		"RANK=0 WORLD_SIZE=99999999999":             {`WORLD_SIZE="99999999999"`},
		own:                                         {"no place to meet", "GCCL_ROOT", "MASTER_ADDR"},
		own + "GCCL_LOCAL_RANK=4":                   {`GCCL_LOCAL_RANK="4"`},
		own + "GCCL_ROOT=head":                      {`GCCL_ROOT: root address "head"`},
		own + "GCCL_ROOT=head:0":                    {`"head:0"`},
		own + "GCCL_UNIQUE_ID=abc":                  {"GCCL_UNIQUE_ID: unique id of 3 characters"},
		own + "GCCL_UNIQUE_ID=abc GCCL_ROOT=head:1": {"GCCL_UNIQUE_ID and GCCL_ROOT", "both set"},
		own + "GCCL_ROOT=head:1 GCCL_SECRET=a GCCL_SECRET_FILE=b": {"GCCL_SECRET and GCCL_SECRET_FILE", "both set"},
		own + "GCCL_ROOT=head:1 GCCL_SECRET_FILE=/nosuch":         {"GCCL_SECRET_FILE", "/nosuch"},
		own + "GCCL_ROOT=head:1 GCCL_SECRET_FILE=" + empty:        {"GCCL_SECRET_FILE", "the file is empty"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h":                       {`MASTER_ADDR="h" is set and MASTER_PORT is not`},
		"RANK=0 WORLD_SIZE=4 MASTER_PORT=5":                       {`MASTER_PORT="5" is set and MASTER_ADDR is not`},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=0":         {`MASTER_PORT="0"`},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=65535":     {"MASTER_PORT=65535 leaves no port above it"},
		"GCCL_ROOT=head:1":          {"GCCL_ROOT=head:1 is set, but neither GCCL_RANK"},
		"GCCL_UNIQUE_ID=verysecret": {"GCCL_UNIQUE_ID=… is set, but neither"},
	} {
		got, err := Environment(env(vars))
		for _, text := range says {
			require.ErrorContains(t, err, text, vars)
		}
		require.Zero(t, got)
		require.NotContains(t, fmt.Sprint(err), "verysecret")
	}
}

func TestUC93_PromisedWorld(t *testing.T) {
	for vars, want := range map[string]struct {
		size int
		name string
	}{
		"":                                      {0, ""},
		"OMPI_COMM_WORLD_SIZE=4":                {4, "OMPI_COMM_WORLD_SIZE"},
		"SLURM_NTASKS=8":                        {8, "SLURM_NTASKS"},
		"PMI_SIZE=2":                            {2, "PMI_SIZE"},
		"MV2_COMM_WORLD_SIZE=3":                 {3, "MV2_COMM_WORLD_SIZE"},
		"SLURM_NTASKS=1 OMPI_COMM_WORLD_SIZE=4": {4, "OMPI_COMM_WORLD_SIZE"},
	} {
		size, name, err := PromisedWorld(env(vars))
		require.NoError(t, err)
		require.Equal(t, want.size, size, vars)
		require.Equal(t, want.name, name, vars)
	}
	_, _, err := PromisedWorld(env("PMI_SIZE=many"))
	require.ErrorContains(t, err, `PMI_SIZE="many"`)
}
