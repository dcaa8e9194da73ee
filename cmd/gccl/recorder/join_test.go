package recorder

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
)

func record(rank int, waits ...int) comm.Record {
	r := comm.Record{Comm: "c", Rank: rank, Size: 4, Place: "host pid 1", Time: time.Unix(int64(rank), 0), Calls: []comm.RecordedCall{{Seq: 6, Call: "barrier", Peer: -1, Done: true}}}
	for i, w := range waits {
		r.Lanes = append(r.Lanes, comm.RecordedLane{LaneState: engine.LaneState{Lane: i, Rounds: 1, Ops: 3, Doing: "view", Waits: w}, Seq: 7, Call: "all_reduce of 5 int32 sum", Peer: -1})
	}
	return r
}

// failed is a record whose failure names a culprit.
func failed(r comm.Record, culprit int) comm.Record {
	r.Failure, r.Culprit = "mismatch", []int{culprit}
	return r
}

func TestJoin(t *testing.T) {
	for _, c := range []struct {
		name    string
		records []comm.Record
		blame   []int
		circle  []int
		missing []int
		says    string
	}{
		{"they disagree", []comm.Record{record(0, 1), failed(record(1, 0), 1), failed(record(2, 1), 1), record(3, 0)}, nil, []int{0, 1}, nil,
			"the failures name ranks [1]: begin there"},
		{"one is late", []comm.Record{record(0, 1), record(1, 2), record(2), record(3, 2, 1)}, []int{2}, nil, nil, "others wait for ranks [2]"},
		{"one left no record", []comm.Record{record(0, 1), record(1, 3), record(2, 3)}, []int{3}, nil, []int{3}, "rank 3: no record"},
		{"a circle", []comm.Record{record(0, 1), record(1, 2), record(2, 1), record(3, 0)}, nil, []int{1, 2}, nil, "wait for each other in a circle"},
		{"nobody waits", []comm.Record{record(0), record(1), record(2), record(3)}, nil, nil, nil, "nobody waits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := Join(c.records)
			require.Len(t, ws, 1)
			require.Equal(t, c.blame, ws[0].Blame)
			require.Equal(t, c.circle, ws[0].Circle)
			require.Equal(t, c.missing, ws[0].Missing)
			var out bytes.Buffer
			ws[0].Print(&out)
			require.Contains(t, out.String(), c.says)
			require.Equal(t, c.missing != nil, strings.Contains(out.String(), "wait for ranks [3], of which there is no record"))
			require.Equal(t, c.name == "one is late", strings.Contains(out.String(), "which wait for nobody"), "that is known of who left a record")
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, bad := range []string{"", "{", "[]", `{"Comm":"x"}`, `{"Comm":"x","Size":2,"Rank":2}`, `{"What":1}`, `{"Size":-1}`} {
		_, err := Decode("f.json", strings.NewReader(bad))
		require.ErrorContains(t, err, "f.json is no record")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Comm":"x","Size":2,"Rank":1,"Lanes":[{"Waits":0,"Lane":3}]}`))
	for _, bad := range []string{"", "{", "[]", `{"Comm":"x","Size":2,"Rank":2}`, `{"What":1}`, `{"Size":-1}`} {
		f.Add([]byte(bad))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		r, err := Decode("f", bytes.NewReader(b))
		if err == nil && r.Size < 100 {
			for _, w := range Join([]comm.Record{r}) {
				w.Print(&bytes.Buffer{})
			}
		}
	})
}
