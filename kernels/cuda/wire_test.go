package cuda

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
)

// The structs here and in wire.h are the same: wire.h has the compiler check its offsets, and this test reads them there.
func TestWireMirrorsC(t *testing.T) {
	text, err := os.ReadFile("wire.h")
	if os.IsNotExist(err) {
		t.Skip("the binary was moved away from its sources")
	}
	require.NoError(t, err)
	var lines ll128Args
	var push pushArgs
	var bulk bulkArgs
	var messages messagesArgs
	here := map[string]uintptr{
		"LL128.mine": unsafe.Offsetof(lines.mine), "LL128.me": unsafe.Offsetof(lines.me), "LL128.call": unsafe.Offsetof(lines.call), "LL128.report": unsafe.Offsetof(lines.report), "LL128.word": unsafe.Offsetof(lines.word), "LL128.stage": unsafe.Offsetof(lines.stage),
		"Push.at": unsafe.Offsetof(push.at), "Push.share": unsafe.Offsetof(push.share), "Push.stripes": unsafe.Offsetof(push.stripes), "Push.me": unsafe.Offsetof(push.me),
		"Push.fifo": unsafe.Offsetof(push.fifo), "Push.dst": unsafe.Offsetof(push.dst),
		"Messages.me": unsafe.Offsetof(messages.me), "Messages.area": unsafe.Offsetof(messages.area), "Messages.direction": unsafe.Offsetof(messages.direction), "Messages.message": unsafe.Offsetof(messages.message),
		"Bulk.me": unsafe.Offsetof(bulk.me), "Bulk.copy": unsafe.Offsetof(bulk.copy), "Bulk.pointer": unsafe.Offsetof(bulk.pointer),
	}
	found := regexp.MustCompile(`AT\((\w+), (\w+), ([\d +*A-Z_]+)\);`).FindAllSubmatch(text, -1)
	require.Len(t, found, len(here))
	for _, m := range found {
		sum := 0
		for _, term := range strings.Split(string(m[3]), " + ") {
			product := 1
			for _, factor := range strings.Split(term, " * ") {
				n, err := strconv.Atoi(factor)
				if err != nil {
					n = map[string]int{"MAX_COPIES": maxCopies}[factor]
				}
				product *= n
			}
			sum += product
		}
		require.EqualValues(t, sum, here[string(m[1])+"."+string(m[2])], "%s.%s", m[1], m[2])
	}
	require.EqualValues(t, 16, unsafe.Sizeof(copyArgs{}))
	require.EqualValues(t, 12, unsafe.Sizeof(directionArgs{}))
	require.EqualValues(t, 24, unsafe.Sizeof(messageArgs{}))
	require.EqualValues(t, 272, unsafe.Sizeof(MessageReport{}))
	for _, size := range []uintptr{unsafe.Sizeof(lines), unsafe.Sizeof(push), unsafe.Sizeof(bulk), unsafe.Sizeof(messages)} {
		require.EqualValues(t, 4096, size)
	}
	for name, value := range map[string]int{
		"MAX_SITES": MaxSites, "MAX_STRIPES": MaxStripes, "LL128_WORDS": ll128Words, "LL128_ROWS": ll128Rows, "MAX_COPY_POINTERS": maxCopyPointers, "MAX_COPIES": maxCopies, "WIRE_THREADS": wireThreads, "PUSH_THREADS": pushThreads,
		"REPORT_OVER": ReportOver, "GROUP_BYTES": groupBytes, "GROUP_PACKS": groupPacks,
		"MAX_MESSAGES": MaxMessages, "MESSAGE_LINES": messageLines, "MESSAGE_DEPTH": messageDepth, "MESSAGES_TOLD": messagesTold,
	} {
		m := regexp.MustCompile(name + ` = (\d+)`).FindSubmatch(text)
		require.NotNil(t, m, name)
		require.Equal(t, strconv.Itoa(value), string(m[1]), name)
	}
	require.Contains(t, string(text), "ROWS_AT = 64 << 10,")
	require.Regexp(t, `RINGS_AT = 64 << 10,`, string(text))
}

// Every kernel that can be asked for is in the PTX.
func TestWireKernelsExist(t *testing.T) {
	text, err := unpack(wire8)
	require.NoError(t, err)
	text9, err := unpack(wire9)
	require.NoError(t, err)
	n := 0
	for k := range WireKernel(numWireKernels) {
		if k < numWireBytes || k.fold().exists() {
			require.Contains(t, string(text), ".entry "+k.name()+"(")
			require.Contains(t, string(text9), ".entry "+k.name()+"(")
			n++
		}
	}
	require.Greater(t, n, 80)
	k, err := wireFold(kernels.Int32, kernels.Avg, true)
	require.NoError(t, err)
	require.Equal(t, "gccl_push_sum_uint32", k.name())
}

func TestRowBytes(t *testing.T) {
	for payload, want := range map[int64]int64{1: 1024, 16: 1024, 960: 1024, 961: 2048, 6 << 20: 6554 * 1024} {
		require.Equal(t, want, RowBytes(payload), "%d", payload)
	}
}
