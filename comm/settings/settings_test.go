package settings_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm/settings"
)

var rows = []settings.Setting{
	{Name: "algorithm", Env: "GCCL_ALGO", Words: []string{"ring", "tree", "direct"}, NCCL: "NCCL_ALGO"},
	{Name: "interface", Env: "GCCL_SOCKET_IFNAME", NCCL: "NCCL_SOCKET_IFNAME", Check: func(text string) error {
		if strings.Contains(text, "^^") {
			return errors.New("two hats")
		}
		return nil
	}},
	{Name: "gid_index", Env: "GCCL_GID_INDEX", Kind: settings.Whole, Low: 0, High: 255, NCCL: "NCCL_IB_GID_INDEX", Unused: "which has no RDMA", FromNCCL: func(text string) (string, error) {
		if text == "-1" {
			return "", nil
		}
		return text, nil
	}},
	{Name: "memory.hugepage", Env: "GCCL_HUGEPAGE", Kind: settings.Switch},
	{Name: "memory.pool_size_gb", Env: "GCCL_POOL_SIZE_GB", Kind: settings.Whole, Low: 1, High: 100},
	{Name: "faults", Env: "GCCL_FAULTS", EnvOnly: true},
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func resolve(t *testing.T, from settings.Sources) *settings.Set {
	t.Helper()
	set, err := settings.Resolve(rows, []string{"GCCL_RANK"}, map[string]string{"NCCL_PROTO": "by size"}, from)
	require.NoError(t, err)
	return set
}

const (
	inTOML = `# the host's
algorithm = "ring"
gid_index = 3

[memory]
hugepage = true
pool_size_gb = 8
`
	inJSON = `{
 "algorithm": "ring",
 "gid_index": 3, "memory":
 {
  "hugepage": true,
  "pool_size_gb": 8}
}
`
)

func TestBothFormats(t *testing.T) {
	lines := map[string][]string{"gccl.toml": {":2", ":3", ":6", ":7"}, "gccl.json": {":2", ":3", ":5", ":6"}}
	for name, text := range map[string]string{"gccl.toml": inTOML, "gccl.json": inJSON} {
		file := write(t, name, text)
		set := resolve(t, settings.Sources{Environ: []string{"GCCL_CONFIG=" + file}})
		for i, want := range []struct{ name, text string }{{"algorithm", "ring"}, {"gid_index", "3"}, {"memory.hugepage", "true"}, {"memory.pool_size_gb", "8"}} {
			v := set.Of(want.name)
			require.Equal(t, want.text, v.Text, name)
			require.Equal(t, file+lines[name][i], v.Source)
		}
		require.Empty(t, set.Of("interface").Source)
		require.Equal(t, []string{"not used in this build, which has no RDMA: gid_index (" + file + ":3)"}, set.Warnings)
	}
}

func TestOtherSpellingsOfTOML(t *testing.T) {
	for _, text := range []string{"memory.hugepage = true", "memory = { hugepage = true }", "[memory]\nhugepage=true\r\n", "\"memory\".'hugepage' = true # so"} {
		require.Equal(t, "true", resolve(t, settings.Sources{File: write(t, "f", text)}).Of("memory.hugepage").Text, text)
	}
	require.Equal(t, "31", resolve(t, settings.Sources{File: write(t, "f", "gid_index = 0x1f")}).Of("gid_index").Text)
	for _, empty := range []string{"", "\n", "# nothing\n", "{}", " {\n}\n", "[memory]\n"} {
		for _, v := range resolve(t, settings.Sources{File: write(t, "f", empty)}).Values {
			require.Empty(t, v.Source)
		}
	}
}

func TestNearerSourcesWin(t *testing.T) {
	file := write(t, "gccl.toml", `algorithm = "ring"`)
	user := write(t, "nccl.conf", "NCCL_ALGO=tree\nNCCL_SOCKET_IFNAME=eth1\n")
	system := write(t, "nccl.conf", "NCCL_SOCKET_IFNAME=eth0\nNCCL_IB_GID_INDEX=5\n")
	env := []string{"GCCL_ALGO=direct", "GCCL_CONFIG=" + file, "NCCL_ALGO=tree", "NCCL_CONF_FILE=" + user}
	check := func(algorithm, source string) {
		t.Helper()
		set := resolve(t, settings.Sources{Environ: env, System: system})
		require.Equal(t, algorithm, set.Of("algorithm").Text)
		require.Equal(t, source, set.Of("algorithm").Source)
		require.Equal(t, source[:4] == "NCCL" || source == user+":1", set.Of("algorithm").Foreign)
		require.Equal(t, user+":2", set.Of("interface").Source)
		require.Equal(t, system+":2", set.Of("gid_index").Source)
		require.Contains(t, set.Honoured, system+":1: NCCL_SOCKET_IFNAME=eth0 gives way to "+user+":2")
	}
	check("direct", "GCCL_ALGO")
	env = env[1:]
	check("ring", file+":1")
	env = env[1:]
	check("tree", "NCCL_ALGO")
	env = env[1:]
	check("tree", user+":1")
}

// What says nothing, or nothing that makes sense, is nevertheless said, and hides what stands farther away, as in NCCL: it reads its files into
// an environment that it does not overwrite.
func TestNearerSourcesThatAskForTheDefault(t *testing.T) {
	system := write(t, "nccl.conf", "NCCL_IB_GID_INDEX=5\nNCCL_SOCKET_IFNAME=eth0\nNCCL_ALGO=tree\nNCCL_PROTO=\n")
	said := map[string]string{"NCCL_IB_GID_INDEX": "gid_index", "NCCL_SOCKET_IFNAME": "interface", "NCCL_ALGO": "algorithm"}
	for _, v := range []string{"NCCL_IB_GID_INDEX=-1", "NCCL_IB_GID_INDEX=", "NCCL_SOCKET_IFNAME=", "NCCL_SOCKET_IFNAME=^^", "NCCL_ALGO=", "NCCL_ALGO=NVLS"} {
		name := v[:strings.Index(v, "=")]
		user := write(t, "nccl.conf", v+"\n")
		for source, environ := range map[string][]string{name: {v}, user + ":1": {"NCCL_CONF_FILE=" + user}} {
			set := resolve(t, settings.Sources{Environ: environ, System: system})
			require.Empty(t, set.Of(said[name]).Text, v)
			require.Empty(t, set.Of(said[name]).Source, v)
			require.Contains(t, strings.Join(set.Honoured, "\n"), " gives way to "+source, v)
			for other, setting := range said {
				require.Equal(t, other != name, set.Of(setting).Text != "", "%s: %s", v, other)
			}
			require.NotContains(t, strings.Join(append(set.Ignored, set.Warnings...), "\n"), "NCCL_PROTO", "an empty one asks for nothing")
		}
	}
	set := resolve(t, settings.Sources{Environ: []string{"GCCL_GID_INDEX=3", "NCCL_IB_GID_INDEX=-1", "GCCL_SOCKET_IFNAME="}, System: system})
	require.Equal(t, "3", set.Of("gid_index").Text)
	require.Equal(t, "eth0", set.Of("interface").Text, "an empty variable of gccl's is none")
	require.Contains(t, set.Honoured, "NCCL_IB_GID_INDEX=-1 gives way to GCCL_GID_INDEX")
	set = resolve(t, settings.Sources{Environ: []string{"NCCL_IB_GID_INDEX=-1"}})
	require.Equal(t, []string{"NCCL_IB_GID_INDEX=-1 leaves gid_index at its default"}, set.Honoured)
}

func TestTheCallersFileGoesBeforeTheVariables(t *testing.T) {
	set := resolve(t, settings.Sources{File: write(t, "mine", `algorithm = "tree"`), Environ: []string{"GCCL_CONFIG=" + write(t, "other", `algorithm = "ring"`)}})
	require.Equal(t, "tree", set.Of("algorithm").Text)
}

func TestMistakesInFiles(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"algoritm = \"ring\"", `:1: unknown key "algoritm"; did you mean algorithm?`},
		{"\n\nhugepage = true", `:3: unknown key "hugepage"; did you mean memory.hugepage?`},
		{"[memory]\nhuge_page = true", `:2: unknown key "memory.huge_page"; did you mean memory.hugepage?`},
		{"[memroy]", `:1: unknown key "memroy"; want one of algorithm, interface, gid_index, memory.hugepage, memory.pool_size_gb`},
		{"faults = \"x\"", `:1: unknown key "faults"; want one of algorithm`},
		{"algorithm = 7", `:1: algorithm: is the number 7; want a text, one of ring, tree, direct`},
		{"algorithm = \"rnig\"", `:1: algorithm: "rnig"; did you mean ring?`},
		{"algorithm = \"nvls\"", `:1: algorithm: "nvls"; want one of ring, tree, direct`},
		{"gid_index = \"3\"", `:1: gid_index: is the text "3"; want a whole number from 0 to 255`},
		{"gid_index = 3.0", `:1: gid_index: is the number 3; want a whole number`},
		{"gid_index = 256", `:1: gid_index: 256; want 0 to 255`},
		{"gid_index = -1", `:1: gid_index: -1; want 0 to 255`},
		{"gid_index = [3]", `:1: gid_index: is a list; want`},
		{"gid_index = 2020-01-01", `:1: gid_index: is a date or time; want`},
		{"gid_index = {a = 1}", `:1: gid_index: is a table; want`},
		{"[[gid_index]]\na = 1", `:1: gid_index: is a list; want`},
		{"gid_index = 99999999999999999999", `:1: `},
		{"memory = true", `:1: memory is the truth value true; want a table with hugepage, pool_size_gb`},
		{"[[memory]]", `:1: memory is a list; want a table with hugepage`},
		{"[memory]\nhugepage = 1", `:2: memory.hugepage: is the number 1; want true or false`},
		{"interface = \"^^a\"", `:1: interface: two hats`},
		{"algorithm = \"ring\"\nalgorithm = \"tree\"", `:2: `},
		{"memory.hugepage = true\n\"memory.hugepage\" = false", `:2: key memory.hugepage stands in line 1 already`},
		{"algorithm = ring", `:1: `},
		{"ok\n", `:1: `},
		{"\n\n[memory", `:3: `},
		{`{"algoritm": "ring"}`, `:1: unknown key "algoritm"; did you mean algorithm?`},
		{"{\n\"gid_index\": null}", `:2: gid_index: is null; want a whole number`},
		{"{\n\"gid_index\": [[1], {\"a\": 2}]\n}", `:2: gid_index: is a list; want`},
		{"{\n\"gid_index\": 1e3}", `:2: gid_index: is the number 1000; want a whole number`},
		{"{\n\"algorithm\": \"ring\",\n\"algorithm\": \"tree\"}", `:3: key algorithm is there twice`},
		{"{\"memory\": {\"hugepage\": true},\n\"memory.hugepage\": false}", `:2: key memory.hugepage`},
		{"{\"algorithm\": \"ring\",\n\n", `:3: the file ends in the middle`},
		{"{} x", `:1: `},
		{"{}{}", `:1: something stands after the closing brace`},
		{"{\n\"algorithm\" \"ring\"}", `:2: `},
		{strings.Repeat(`{"a":`, 100000/8), `:1: tables stand more than 8 deep`},
	} {
		file := write(t, "gccl", c.text)
		set, err := settings.Resolve(rows, nil, nil, settings.Sources{File: file})
		require.Nil(t, set)
		require.ErrorContains(t, err, file+c.want, c.text)
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	file := write(t, "gccl", "gid_index = 256\n[memory]\nhugepage = 1\npool = 3\n")
	_, err := settings.Resolve(rows, nil, nil, settings.Sources{File: file, Environ: []string{"GCCL_GID_INDEX=many"}})
	require.EqualError(t, err, `GCCL_GID_INDEX=many: "many" is not a whole number; want 0 to 255
`+file+`:1: gid_index: 256; want 0 to 255
`+file+`:3: memory.hugepage: is the number 1; want true or false
`+file+`:4: unknown key "memory.pool"; want one of algorithm, interface, gid_index, memory.hugepage, memory.pool_size_gb`)
}

func TestFilesThatAreNone(t *testing.T) {
	folder := t.TempDir()
	_, err := settings.Resolve(rows, nil, nil, settings.Sources{File: filepath.Join(folder, "absent.toml")})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "absent.toml")
	_, err = settings.Resolve(rows, nil, nil, settings.Sources{File: folder})
	require.ErrorContains(t, err, "not a regular file")
	pipe := filepath.Join(folder, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err = settings.Resolve(rows, nil, nil, settings.Sources{File: pipe}) // without hanging
	require.ErrorContains(t, err, "not a regular file")
	_, err = settings.Resolve(rows, nil, nil, settings.Sources{File: write(t, "long", strings.Repeat("#\n", 1<<16))})
	require.ErrorContains(t, err, "longer than 65536 bytes")

	set := resolve(t, settings.Sources{System: pipe, Environ: []string{"NCCL_CONF_FILE=" + filepath.Join(folder, "absent")}})
	require.Len(t, set.Warnings, 1) // NCCL's files stop nothing
	require.Contains(t, set.Warnings[0], "not a regular file")
}

func TestVariables(t *testing.T) {
	set := resolve(t, settings.Sources{Environ: []string{"GCCL_HUGEPAGE=1", "GCCL_GID_INDEX=0x10", "GCCL_ALGO= Ring ", "GCCL_POOL_SIZE_GB=", "GCCL_POOL_SIZE_GB", "GCCL_HUGEPAGE=False"}})
	require.Equal(t, "false", set.Of("memory.hugepage").Text)
	require.Equal(t, "16", set.Of("gid_index").Text)
	require.Equal(t, "ring", set.Of("algorithm").Text)
	require.Empty(t, set.Of("memory.pool_size_gb").Source)

	set = resolve(t, settings.Sources{Environ: []string{"GCCL_AGLO=ring", "GCCL_RANK=0", "GCCL_RNAK=0", "GCCL_SOMETHING_ELSE=1"}})
	require.Equal(t, []string{"GCCL_AGLO is no variable of gccl's and is ignored; did you mean GCCL_ALGO?", "GCCL_RNAK is no variable of gccl's and is ignored; did you mean GCCL_RANK?"}, set.Warnings)
}

func TestWhatIsSaidToNCCLStopsNothing(t *testing.T) {
	set := resolve(t, settings.Sources{Environ: []string{"NCCL_ALGO=NVLS", "NCCL_IB_GID_INDEX=900", "NCCL_PROTO=LL", "NCCL_VERSION=2.27", "NCCL_NVLS_ENABLE=0", "NCCL_SOCKET_IFNAME=^docker", "TORCH_NCCL_X=1"}})
	require.Equal(t, []string{"NCCL_SOCKET_IFNAME=^docker sets interface to ^docker"}, set.Honoured)
	require.Equal(t, []string{"NCCL_NVLS_ENABLE", "NCCL_PROTO (by size)"}, set.Ignored)
	require.Equal(t, []string{`NCCL_ALGO=NVLS is ignored: "NVLS"; want one of ring, tree, direct`, "NCCL_IB_GID_INDEX=900 is ignored: 900; want 0 to 255"}, set.Warnings)
}

func TestUC62_OddConfFiles(t *testing.T) {
	file := write(t, "nccl.conf", "# site defaults\r\n"+
		"NCCL_GRAPH_FILE=/etc/graph4gpus.xml\r\n"+
		"\r\n"+
		"NCCL_SOCKET_IFNAME=\"eth0,eth1\"\r\n"+
		"  NCCL_IB_GID_INDEX = 3   # RoCE v2\r\n"+
		"what is this\r\n"+
		"MY_KEY=1\r\n"+
		"NCCL_ALGO='tree' \r\n"+
		"NCCL_ALGO=\"ring\n"+
		"=3\n"+
		"NCCL_DEBUG=#nothing")
	set := resolve(t, settings.Sources{System: file})
	require.Equal(t, "eth0,eth1", set.Of("interface").Text)
	require.Equal(t, file+":4", set.Of("interface").Source)
	require.Equal(t, "3", set.Of("gid_index").Text)
	require.Equal(t, "tree", set.Of("algorithm").Text)
	require.ElementsMatch(t, []string{
		file + ":2: NCCL_GRAPH_FILE=/etc/graph4gpus.xml is ignored",
		file + `:6: "what is this" is not NAME=value; the line is ignored`,
		file + ":7: MY_KEY is no variable of NCCL's and is ignored",
		file + ":9: the value of NCCL_ALGO has an opening quote and no closing one; the line is ignored",
		file + `:10: "=3" is not NAME=value; the line is ignored`,
		"not used in this build, which has no RDMA: gid_index (" + file + ":5)",
	}, set.Warnings)
	require.Empty(t, set.Ignored)
}

func FuzzFile(f *testing.F) {
	f.Add(inTOML)
	f.Add(inJSON)
	f.Add("[[memory]]\nhugepage=1979-05-27T07:32:00Z")
	f.Add("{\"memory\":{\"memory\":[{\"a\":1e999}]}}")
	f.Add("a.b.c.d.e.f.g.h.i={j={k={l=1}}}")
	f.Add("memory={memory={a=1,b={c=2}}}\n")
	f.Add(strings.Repeat("#", 64<<10+1))
	for _, bad := range []string{"a=", "a=1\na=2", "= 1", "[a\n", "a=\"\\q\"", "{", "{}", "{} x", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":1,", "{\"a\":1,\"a\":2}", "{a:1}", "{\"a\":{\"b\"", "{\"a\":[1,", "{\"a\":[1}",
		"{\"a\":{\"b\":2}}", "{\"a\":2.5}", "{\"a\":9223372036854775808}", "{\"a\":null}", "{\"a\":1" + strings.Repeat(" ", 9), strings.Repeat("{\"a\":", 9) + "1" + strings.Repeat("}", 9), "{\"a\":{}", "{\"a\":{\"b\":1e999}}"} {
		f.Add(bad)
	}
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(folder, "gccl")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		set, err := settings.Resolve(rows, nil, nil, settings.Sources{File: file})
		if err != nil {
			if len(text) <= 64<<10 {
				for line := range strings.Lines(err.Error()) {
					require.Contains(t, line, ":") // of the file, or of a message of more lines
				}
				require.True(t, strings.HasPrefix(err.Error(), file+":"), "%v", err)
			}
			return
		}
		for _, v := range set.Values { // each value is one that a variable could have given
			if v.Source != "" {
				again, err := settings.Resolve(rows, nil, nil, settings.Sources{Environ: []string{v.Setting.Env + "=" + v.Text}})
				require.NoError(t, err)
				require.Equal(t, v.Text, again.Of(v.Setting.Name).Text)
			}
		}
	})
}

func FuzzConf(f *testing.F) {
	f.Add("NCCL_ALGO=ring\r\n# x\nNCCL_SOCKET_IFNAME=\"a b\" # c\n")
	f.Add("export NCCL_IB_GID_INDEX = '3'\n=\n\xff=\xfe")
	f.Add("NCCL_ALGO=ring # c\nNCCL_ALGO=#c\nNCCL_ALGO=a#b\nNCCL_ALGO=a\t#b\n")
	f.Add("NCCL_ALGO=\"ring\nNCCL_ALGO='ring' x\nNCCL_ALGO='\nMY_KEY=1\nNCCL_ALGO=\"\"\nNCCL_ALGO=\"a\\\"b\"\nno equals sign\n")
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(folder, "nccl.conf")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := settings.Resolve(rows, nil, nil, settings.Sources{System: file})
		require.NoError(t, err)
	})
}
