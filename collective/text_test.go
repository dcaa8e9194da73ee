package collective

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// TestGolden shows the schedules of every algorithm for three ranks and for four, and for two hosts with two, in
// testdata. Rewrite the files with -update, and only commit changes that you understand.
func TestGolden(t *testing.T) {
	for _, a := range catalog {
		worlds := map[string][]Schedule{}
		if !a.Hosts {
			worlds["3"], worlds["4"] = schedulesOf(a, 3, btoi(a.Kind.Rooted())), schedulesOf(a, 4, btoi(a.Kind.Rooted()))
		}
		if a.asksForHosts() {
			hosts, err := NewHosts(2, 2)
			require.NoError(t, err)
			worlds["2x2"] = hosted(a, btoi(a.Kind.Rooted()), hosts)
		}
		for name, all := range worlds {
			var text strings.Builder
			for r, s := range all {
				if r > 0 {
					text.WriteString("\n")
				}
				text.WriteString(s.String())
			}
			path := filepath.Join("testdata", fmt.Sprintf("%s_%s.txt", a.title(), name))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), text.String(), "%s; rewrite with -update", path)
		}
	}
}

func TestParseReadsWhatStringPrints(t *testing.T) {
	for _, a := range catalog {
		for _, n := range []int{2, 3, 5, 8, 13} {
			for r, s := range schedulesOf(a, n, btoi(a.Kind.Rooted())) {
				back, err := Parse(strings.NewReader(s.String()))
				require.NoError(t, err, "%s, %d ranks, rank %d", a.title(), n, r)
				require.Equal(t, s.String(), back.String())
				require.Equal(t, len(s.Steps), len(back.Steps))
				for k := range s.Steps {
					require.Len(t, back.Steps[k], len(s.Steps[k]))
					for i := range s.Steps[k] {
						require.Equal(t, s.Steps[k][i], back.Steps[k][i])
					}
				}
			}
		}
	}
}

func TestParseLongLines(t *testing.T) {
	s := directReduce(Shape{Kind: Reduce, Ranks: 60000}, 0)
	back, err := Parse(strings.NewReader(s.String()))
	require.NoError(t, err)
	require.Equal(t, s.Steps, back.Steps)
	_, err = Parse(strings.NewReader(strings.Repeat("x", 3*maxLine)))
	require.ErrorContains(t, err, "token too long")
}

func TestParseIgnoresCommentsAndSpace(t *testing.T) {
	s, err := Parse(strings.NewReader(`
# Two ranks exchange.
  all_reduce   rank=1 ranks=2 temps=0 pieces=1 root=0   # in any order

step
	send 0 in[0]      # first
	recvreduce 0 out[0] = wire + in[0]
step
`))
	require.NoError(t, err)
	require.Equal(t, "all_reduce ranks=2 root=0 rank=1 pieces=1 temps=0\nstep\n  send 0 in[0]\n  recvreduce 0 out[0] = wire + in[0]\nstep\n", s.String())
}

func TestParseNamesTheLine(t *testing.T) {
	const head = "all_reduce ranks=2 root=0 rank=0 pieces=1 temps=1\n"
	for text, want := range map[string]string{
		"":                                           "no text, want a schedule",
		"# nothing\n":                                "no text, want a schedule",
		"\nallreduce ranks=2":                        "line 2: collective: unknown kind \"allreduce\"",
		"all_reduce ranks=2":                         "line 1: a schedule begins with KIND ranks=",
		"all_reduce ranks=2 ranks=2":                 `line 1: "ranks=2", want`,
		"all_reduce size=2":                          `line 1: "size=2", want`,
		"all_reduce ranks":                           `line 1: "ranks" is not a number`,
		"all_reduce ranks=99999999999999999":         "is not a number up to",
		"all_reduce ranks=16777217":                  "is not a number up to",
		head + "  send 1 in[0]\n":                    `line 2: "send" before the first step`,
		head + "step\n  put 1 in[0]\n":               `line 3: "put", want one of [send recv recvreduce fold copy]`,
		head + "step\n  view 1 in[0]\n":              `line 3: "view", want one of`,
		head + "step\n  send x in[0]\n":              `line 3: peer "x" is not a number`,
		head + "step\n  send 4294967297 in[0]":       `line 3: peer "4294967297"`,
		head + "step\n  recv 1\n":                    "line 3: recv without a destination",
		head + "step\n  recv 1 out\n":                `line 3: slot "out", want in[N]`,
		head + "step\n  recv 1 out[0\n":              `line 3: slot "out[0"`,
		head + "step\n  recv 1 view[0]\n":            `line 3: slot "view[0]"`,
		head + "step\n  copy out[0] in[0]\n":         "line 3: copy without =",
		head + "step\n  fold out[0] =\n":             "step 0, fold out[0] = : 0 sources",
		head + "step\n  fold out[0] = in[0] +":       `line 3: "+" between sources`,
		head + "step\n  fold out[0] = in[0] in[0]\n": `line 3: "in[0]" between sources, want +`,
		head + "step\n  fold out[0] = in[0] - in[0]": `line 3: "-" between sources, want +`,
		head + "step\n  send 1 in[7]\n":              "rank 0, step 0, send 1 in[7]: in[7] is outside in",
		head + "step\n  send 0 in[0]\n":              "peer 0, want another rank",
		head + "step\n  recv 1 out[0] = in[0]\n":     "line 3:",
	} {
		_, err := Parse(strings.NewReader(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func FuzzParse(f *testing.F) {
	for _, a := range catalog {
		for _, s := range schedulesOf(a, 3, 0) {
			f.Add(s.String())
		}
	}
	f.Add("all_reduce ranks=2 root=0 rank=1 pieces=16777216 temps=31\nstep\n copy temp[500000000] = temp[400000000]\n")
	f.Add("alltoall ranks=16777216 root=0 rank=0 pieces=32 temps=0\nstep\nsend 1 in[536870911]")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		printed := s.String()
		back, err := Parse(strings.NewReader(printed))
		if err != nil || back.String() != printed {
			t.Fatalf("%q is printed as %q and read back as %q, %v", text, printed, back.String(), err)
		}
		for _, opt := range allOptions {
			p, err := Compile(s, opt)
			if err != nil {
				t.Fatalf("%q passes Check and does not compile: %v", printed, err)
			}
			NewMachine(p)
		}
	})
}
