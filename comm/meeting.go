package comm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport/verbs"
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

// hear reads the hellos of all ranks.
func hear(blobs [][]byte) (*told, error) {
	t := &told{hellos: make([]hello, len(blobs))}
	for r, b := range blobs {
		if err := json.Unmarshal(b, &t.hellos[r]); err != nil {
			return nil, fmt.Errorf("comm: rank %d says %q: %w", r, b, err)
		}
	}
	if t.places, t.lost = newPlaces(t.hellos); t.lost == nil {
		t.digest = t.places.digest()
	}
	return t, nil
}

// models are those of messages between any two ranks, as all must come to the same. There are many pairs and few kinds of them.
func (t *told) models(proven func(a, b int) bool) (models, error) {
	all := t.hellos
	between, within := map[string]bool{}, map[string]bool{} // transports used between hosts, and on them
	kinds, has := kindsOf(all)
	type pairKind struct {
		a, b         int
		proven, near bool
	}
	known, last := map[pairKind]bool{}, pairKind{}
	for a := range all {
		for b := range a {
			k := pairKind{kinds[a], kinds[b], proven(a, b), all[a].Boot == all[b].Boot}
			if !has[verbs.Name] && len(known) > 0 && (k == last || known[k]) { // with verbs it depends on the places
				continue
			}
			known[k], last = true, k
			name, reason := choose(&all[a], &all[b], k.proven, func() topology.Reason { return topology.NoRDMA(t.places.of[a], t.places.of[b]) })
			switch {
			case name == "":
				return models{}, fmt.Errorf("comm: ranks %d (%s) and %d (%s) have no transport in common: %s", a, all[a].place(), b, all[b].place(), reason)
			case k.near:
				within[name] = true
			default:
				between[name] = true
			}
		}
	}
	combined := func(used map[string]bool) (tune.Model, error) {
		var of []tune.Model
		for r := range all {
			for name := range used {
				if m, ok := all[r].Model[name]; ok {
					of = append(of, m)
				}
			}
		}
		m, err := tune.Combine(of)
		return m.Crowded(crowds(all)), err
	}
	if len(between) == 0 {
		m, err := combined(within)
		return models{all: m}, err
	}
	m, err := combined(between)
	if err != nil || len(within) == 0 {
		return models{all: m}, err
	}
	near, err := combined(within)
	return models{m.With(near), &near}, err
}
