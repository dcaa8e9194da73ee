package comm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestDeviceLinksMessagesUnlike: a message whose ends are not called alike, or of which one is missing, ends with an error that names the other rank; and
// nothing wrong has come.
func TestDeviceLinksMessagesUnlike(t *testing.T) {
	const ranks, n = 3, 1000
	for name, row := range map[string]struct {
		theirs func(w *deviceWorld) []comm.Call // rank 1's; rank 0 sends to it, and receives of it
		closes bool
		late   int // the one of the two that waits for what never comes
		kind   error
		words  string
	}{
		"count": {theirs: func(w *deviceWorld) []comm.Call {
			return []comm.Call{w.message(1, comm.KindRecv, 0, w.dst[1], n+1), w.message(1, comm.KindSend, 0, w.src[1], n)}
		}, late: 1, kind: comm.ErrMismatch, words: "(message 1 between them)"},
		"type": {theirs: func(w *deviceWorld) []comm.Call {
			send := w.message(1, comm.KindSend, 0, w.src[1], n)
			send.DType++
			return []comm.Call{w.message(1, comm.KindRecv, 0, w.dst[1], n), send}
		}, kind: comm.ErrMismatch, words: "sent 1000"},
		"no send":            {theirs: func(w *deviceWorld) []comm.Call { return []comm.Call{w.message(1, comm.KindRecv, 0, w.dst[1], n)} }, kind: comm.ErrTimeout, words: "send number 1"},
		"nothing, it closes": {theirs: func(*deviceWorld) []comm.Call { return nil }, closes: true, kind: comm.ErrAborted, words: "closed the communicator"},
	} {
		t.Run(name, func(t *testing.T) {
			w := linkedWorld(t, ranks)
			w.fill(n+1, 1)
			each(2, func(r int) {
				calls := []comm.Call{w.message(0, comm.KindSend, 1, w.src[0], n), w.message(0, comm.KindRecv, 1, w.dst[0], n)}
				if r == 1 {
					if calls = row.theirs(w); row.closes {
						w.comms[1].Close()
						return
					}
				}
				err := comm.Group(context.Background(), calls...)
				if err == nil {
					err = w.wait(r)
				}
				if r != row.late {
					return // it may have done what it called before the other one is found to wait
				}
				if !accuses(err, row.kind, 1-r) || !strings.Contains(err.Error(), row.words) {
					t.Errorf("rank %d: %v, want %v of rank %d with %q", r, err, row.kind, 1-r, row.words)
				}
			})
		})
	}
}

// TestDeviceLinksMessagesLeft: all that left are named, once each, whichever way their messages went.
func TestDeviceLinksMessagesLeft(t *testing.T) {
	const ranks, n = 3, 1 << 20 // more than a FIFO takes
	w := linkedWorld(t, ranks)
	v := w.more(16 << 20)
	w.fill(n, 1)
	each(ranks, func(r int) {
		if r > 0 {
			w.comms[r].Close()
			return
		}
		var calls []comm.Call
		for peer := 1; peer < ranks; peer++ {
			calls = append(calls, w.message(0, comm.KindSend, peer, w.src[0], n), w.message(0, comm.KindRecv, peer, []*deviceWorld{w, v}[peer-1].dst[0], n))
		}
		err := comm.Group(context.Background(), calls...)
		if err == nil {
			err = w.wait(0)
		}
		if !accuses(err, comm.ErrAborted, 1, 2) || !strings.Contains(err.Error(), "[1 2] closed") {
			t.Errorf("%v, want ranks 1 and 2 named", err)
		}
	})
}

// TestDeviceLinksMessagesPassed: of a message that waits for room, the part of the GPU that says how far it is may have found some and be through, as the
// receiver tells of what it took in rounds: who does not receive is named all the same.
func TestDeviceLinksMessagesPassed(t *testing.T) {
	const group = 240 // float32 of one line
	w := linkedWorld(t, 2)
	w.fill(group*256*10, 1)
	each(2, func(r int) {
		ctx := context.Background()
		way := func(n int) comm.Call {
			if r == 0 {
				return w.message(0, comm.KindSend, 1, w.src[0], n)
			}
			return w.message(1, comm.KindRecv, 0, w.dst[1], n)
		}
		var err error
		for range 7 {
			err = errors.Join(err, w.comms[r].Do(ctx, way(group*256)))
		}
		if err = errors.Join(err, w.comms[r].Do(ctx, way(group)), w.wait(r)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		if r == 1 {
			return
		}
		if err := errors.Join(w.comms[0].Do(ctx, way(group*256*10)), w.wait(0)); !accuses(err, comm.ErrTimeout, 1) || !strings.Contains(err.Error(), "recv number 9") {
			t.Errorf("%v, want a time-out that names rank 1's ninth receive", err)
		}
	})
}

// TestDeviceLinksMessagesAnyStream: messages of one Group on several streams, among them replays of a graph, while collectives of the communicator wait on another one.
func TestDeviceLinksMessagesAnyStream(t *testing.T) {
	const ranks, n = 2, 300000
	w := linkedWorld(t, ranks)
	v := w.more(16 << 20)
	ctx := context.Background()
	sum := w.fill(n, 1)
	for r := range ranks {
		require.NoError(t, w.on(r).Wait(w.streams[r]))
	}
	require.NoError(t, w.comms[0].Do(ctx, w.call(0, n))) // it waits until rank 1 has got what follows
	message := func(r int, kind comm.Kind, other bool) comm.Call {
		m := w.message(r, kind, 1-r, w.src[r], n)
		if kind == comm.KindRecv {
			m.Dst = v.dst[r]
		}
		if m.Stream = v.streams[r]; other {
			m.Stream = w.streams[r]
		}
		return m
	}
	g, err := w.on(0).Capture(v.streams[0], func() error {
		return comm.Group(ctx, message(0, comm.KindSend, false), message(0, comm.KindRecv, false))
	})
	require.NoError(t, err)
	require.NoError(t, g.Launch(v.streams[0]))
	require.NoError(t, comm.Group(ctx, message(1, comm.KindRecv, true), message(1, comm.KindSend, false)))
	for r := range ranks {
		require.NoError(t, w.on(r).Wait(v.streams[r]))
	}
	require.NoError(t, w.comms[1].Do(ctx, w.call(1, n)))
	w.check(sum)
	for r := range ranks {
		require.Equal(t, w.read(1-r, w.src[1-r], n), w.read(r, v.dst[r], n))
	}
	require.NoError(t, errors.Join(w.comms[0].Err(), w.comms[1].Err(), g.Destroy()))
}

// TestDeviceLinksMessagesInOrder: what a message of a Group writes, another one of it that reads it comes behind.
func TestDeviceLinksMessagesInOrder(t *testing.T) {
	const ranks, n = 3, 5000
	w := linkedWorld(t, ranks)
	w.fill(n, 1)
	first := w.read(0, w.src[0], n)
	sum := make([]float32, n)
	for i := range sum {
		sum[i] = 3 * first[i]
	}
	each(ranks, func(r int) { // a message goes from rank to rank, and then the sum
		var calls []comm.Call
		if r > 0 {
			calls = append(calls, w.message(r, comm.KindRecv, r-1, w.src[r], n))
		}
		if r < ranks-1 {
			calls = append(calls, w.message(r, comm.KindSend, r+1, w.src[r], n))
		}
		ctx := context.Background()
		if err := errors.Join(comm.Group(ctx, calls...), w.comms[r].Do(ctx, w.call(r, n)), w.wait(r)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	require.False(t, t.Failed())
	w.check(sum)
}

// TestDeviceLinksMessagesBehind: a message stands behind the call of its Group that makes what it sends, on any stream, whichever way that goes, and before
// what overwrites it.
func TestDeviceLinksMessagesBehind(t *testing.T) {
	const ranks, n = 2, 1000
	for _, algorithm := range []string{"ring", ""} { // by host memory, over links
		for _, stream := range []bool{false, true} {
			for _, over := range []bool{false, true} {
				if stream && over {
					continue // rank 1's receive is queued behind the call that overwrites
				}
				w := linkedWorld(t, ranks)
				v := w.more(16 << 20)
				sum := w.fill(n, 1)
				for r := range ranks {
					require.NoError(t, w.on(r).Wait(w.streams[r]))
				}
				each(ranks, func(r int) {
					ctx := context.Background()
					made, next := w.call(r, n), w.call(r, n)
					made.Algorithm = algorithm
					if next.Src = v.src[r]; r == 1 {
						next.Dst = v.src[1]
					}
					var err error
					if r == 0 {
						calls := []comm.Call{made, w.message(0, comm.KindSend, 1, w.dst[0], n), next}
						if stream {
							calls[1].Stream = v.streams[0]
						}
						if !over {
							calls = calls[:2]
						}
						err = comm.Group(ctx, calls...)
					} else {
						time.Sleep(50 * time.Millisecond) // rank 0 waits so long
						err = errors.Join(w.comms[1].Do(ctx, made), w.comms[1].Do(ctx, w.message(1, comm.KindRecv, 0, v.dst[1], n)))
						if over {
							err = errors.Join(err, w.comms[1].Do(ctx, next))
						}
					}
					if err = errors.Join(err, w.wait(r)); err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				})
				require.False(t, t.Failed(), "%q, another stream %v, overwritten %v", algorithm, stream, over)
				require.Equal(t, sum, w.read(1, v.dst[1], n), "%q, another stream %v, overwritten %v", algorithm, stream, over)
			}
		}
	}
}

// TestDeviceLinksMessagesOfSeveral: a Group's messages of several communicators, more than fits in FIFOs, named in different orders.
func TestDeviceLinksMessagesOfSeveral(t *testing.T) {
	const ranks, n = 2, 1 << 20
	w := linkedWorld(t, ranks)
	v := w.more(16 << 20)
	split := w.split()
	w.fill(n, 1)
	each(ranks, func(r int) {
		a := w.message(r, [2]comm.Kind{comm.KindSend, comm.KindRecv}[r], 1-r, v.dst[r], n)
		b := w.message(r, [2]comm.Kind{comm.KindRecv, comm.KindSend}[r], 1-r, w.src[r], n)
		b.Comm = split[r]
		calls := []comm.Call{a, b}
		if r == 1 {
			calls = []comm.Call{b, a}
		}
		if err := errors.Join(comm.Group(context.Background(), calls...), w.wait(r), split[r].Err()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	require.Equal(t, w.read(0, w.src[0], n), w.read(1, w.src[1], n))
}

// TestDeviceLinksMessagesRefused: what cannot be queued is said, nothing of its Group is, and the communicator goes on.
func TestDeviceLinksMessagesRefused(t *testing.T) {
	const n = 10
	w := linkedWorld(t, 2)
	v := w.more(1 << 20)
	w.fill(n, 1)
	ctx := context.Background()
	plain := w.message(0, comm.KindSend, 1, w.src[0], n)
	captured, far, none := plain, plain, plain
	captured.Stream, far.Peer, none.Src = v.streams[0], 2, kernels.Mem{}
	g, err := w.on(0).Capture(v.streams[0], func() error {
		err := comm.Group(ctx, plain, captured, captured)
		if got := strings.Count(err.Error(), "captured in a graph"); got != 2 || !errors.Is(err, comm.ErrUnsupported) {
			t.Errorf("%v, want both refused", err)
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, g.Destroy())
	for _, bad := range []comm.Call{far, none} {
		require.ErrorIs(t, comm.Group(ctx, bad, plain), comm.ErrArgument)
	}
	require.NoError(t, w.comms[0].Do(ctx, plain))
	require.NoError(t, w.comms[1].Do(ctx, w.message(1, comm.KindRecv, 0, w.dst[1], n)))
	require.NoError(t, errors.Join(w.wait(0), w.wait(1)))
	require.Equal(t, w.read(0, w.src[0], n), w.read(1, w.dst[1], n))
}
