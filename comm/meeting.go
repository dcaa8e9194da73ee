package comm

import (
	"bytes"
	"slices"
	"sync"

	"github.com/gccl-project/gccl/collective/tune"
)

// meeting is where those ranks of a world that run in this process work out together what follows alike for all from what all told.
// Else many ranks in one process would do it many times over, each with work that grows with their number.
type meeting struct {
	refs   int // guarded by meetings.mu
	told   together[*told]
	heard  together[*told] // with what was opened after that
	models together[models]
}

var meetings struct {
	mu sync.Mutex
	at map[uint64]*meeting // by session
}

// meet returns the meeting of a session, which lasts until as many have left as came.
func meet(session uint64) (m *meeting, leave func()) {
	meetings.mu.Lock()
	defer meetings.mu.Unlock()
	if m = meetings.at[session]; m == nil {
		m = &meeting{}
		if meetings.at == nil {
			meetings.at = map[uint64]*meeting{}
		}
		meetings.at[session] = m
	}
	m.refs++
	return m, func() {
		meetings.mu.Lock()
		defer meetings.mu.Unlock()
		if m.refs--; m.refs == 0 {
			delete(meetings.at, session)
		}
	}
}

// together is work on what all ranks told: the first does it for all others that were told the same, who wait for it.
type together[V any] struct {
	mu    sync.Mutex
	done  bool
	words [][]byte
	value V
	err   error
}

// do returns what work makes of the words, which nobody may change any more.
func (t *together[V]) do(words [][]byte, work func() (V, error)) (V, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done && !slices.EqualFunc(t.words, words, bytes.Equal) {
		return work()
	}
	if !t.done {
		t.words = words
		t.value, t.err = work()
		t.done = true
	}
	return t.value, t.err
}

// told is what all ranks say of themselves, and where they are by that.
type told struct {
	hellos []hello
	places *places
	digest uint64 // of places
	lost   error  // why there are no places
}

// models are what messages cost in a world.
type models struct {
	all    tune.Model
	within *tune.Model // on one host, where the world is on several; nil: all
}
