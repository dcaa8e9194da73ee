package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// decoders are the functions that make sense of bytes of sockets, of segments that other processes write, and of files: "file function …", by
// package. The seeds of the package's fuzz targets run through nearly all of each, so that a fuzzer begins everywhere.
var decoders = map[string][]string{
	"bootstrap": {
		"agreement.go parseAgree agreeArrived", "epitaph.go heardEpitaph", "fate.go parseClosed parseAbort parseDead", "frame.go readFrame readBody take u8 u16 u32 u64 text ranks",
		"gather.go gatherArrived", "givenup.go parseGivenUp heardGivenUp", "hub.go parseHello", "id.go ParseID IDFromBytes splitRoot", "link.go handle heardNews", "mailbox.go messageArrived",
		"network.go parseAddr", "question.go questionArrived answerArrived", "ring.go parseWelcome", "rootwire.go parseJoin parseProgress parseRefusal parseTable", "vigil.go beat",
	},
	"bootstrap/auth": {"auth.go client server readMagic proves read kindOf"},
	"comm":           {"cause.go parseCause", "diagnose.go diagnose differs lateness", "hello.go agree", "machine.go unpack", "places.go newPlaces", "reach.go parseReach", "state.go find findPair finished"},
	"comm/settings":  {"conf.go parseConf unquote", "file.go parseFile toml json add number lookUp"},
	"transport/tcp": {
		"address.go parseAddress parseRail", "frame.go parse", "hello.go parseHello checkKey agree parseReply", "read_linux.go pump read take advancePiece begin place matches target",
		"receiver_linux.go verify", "sender_linux.go credit",
	},
	"transport/shm": {
		"address.go parseAddress", "conn.go attach refresh", "door.go unpack", "landing.go Landing landed", "layout.go find holds", "name.go parseName", "peer.go readHeader agrees", "process.go parseStart",
		"receiver.go View Recv Release open verify wait other none",
	},
	"transport/verbs":   {"address.go parseAddress", "frame.go parse parseImmediate", "hello.go parseHello checkKey parseReply", "record.go parseRecord"},
	"topology":          {"busid.go ParseBusID", "cpuset.go ParseCPUList ParseCPUMask", "json.go ParseJSON", "matrix.go newMatrix cell affinity", "p2p.go ReadP2P", "table.go readTable splitCells stripEscapes", "xml.go open pci gpu nvlink net link"},
	"topology/doctor":   {"report.go parseReport"},
	"cmd/gccl/recorder": {"join.go Decode Join judge"},
}

// enough is how much of a decoder the seeds run through, in percent of its statements.
const enough = 90

// TestDecoders measures it.
func TestDecoders(t *testing.T) {
	if os.Getenv("GCCL_TEST_FULL") != "1" {
		t.Skip("it builds ten packages with coverage; GCCL_TEST_FULL=1 does")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the transports are for Linux")
	}
	for dir, files := range decoders {
		t.Run(dir, func(t *testing.T) {
			profile := filepath.Join(t.TempDir(), "cover")
			for _, args := range [][]string{{"test", "-run", "^Fuzz", "-coverprofile", profile, "../" + dir}, {"tool", "cover", "-func", profile}} {
				out, err := exec.Command("go", args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				if args[0] == "tool" {
					covered(t, string(out), files)
				}
			}
		})
	}
}

// covered checks what go tool cover says of the functions of some files.
func covered(t *testing.T, says string, files []string) {
	percent := map[string]float64{}
	for line := range strings.Lines(says) {
		if f := strings.Fields(line); len(f) == 3 && strings.HasSuffix(f[2], "%") {
			file, _, _ := strings.Cut(filepath.Base(f[0]), ":")
			p, err := strconv.ParseFloat(strings.TrimSuffix(f[2], "%"), 64)
			require.NoError(t, err)
			if old, twice := percent[file+" "+f[1]]; !twice || p < old { // of methods with one name the least counts
				percent[file+" "+f[1]] = p
			}
		}
	}
	for _, row := range files {
		words := strings.Fields(row)
		for _, function := range words[1:] {
			p, ok := percent[words[0]+" "+function]
			t.Logf("%5.1f %% %s %s", p, words[0], function)
			if !ok {
				t.Errorf("%s has no function %s: say here what decodes instead", words[0], function)
			} else if p < enough {
				t.Errorf("the seeds run through %.1f %% of %s in %s, want %d %%: add seeds, or take out what no input reaches", p, function, words[0], enough)
			}
		}
	}
}
