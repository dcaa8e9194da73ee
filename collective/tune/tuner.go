package tune

import (
	"sync"

	"github.com/gccl-project/gccl/collective"
)

// Tuner is Choose and With with a memory: the same answers, but what an algorithm costs in a shape, which is nearly all of the work, is
// worked out once for all counts and for all ranks that ask, of whatever communicator. The zero value is ready, and any goroutine may
// use it. It holds at most 1 MiB.
type Tuner struct {
	mu    sync.Mutex
	known map[question]*answer
	bytes int
}

// question is all that a profile depends on.
type question struct {
	far, near  Wire
	fold, copy float64
	kind       collective.Kind
	ranks      int
	root       int
	hosts      string
	algorithm  string
}

// answer is worked out by the first who wants it, for whom the others wait.
type answer struct {
	once sync.Once
	profile
}

const (
	tunerBytes  = 1 << 20
	answerBytes = 512 // of a question with its answer, about, and without the hosts
)

// Choose returns what the function Choose does.
func (t *Tuner) Choose(m Model, s collective.Shape, count, elem int) (Choice, error) {
	return chooseBy(m, s, count, elem, t.profile)
}

// With returns what the function With does.
func (t *Tuner) With(m Model, s collective.Shape, count, elem int, algorithm string) (Choice, error) {
	return withBy(m, s, count, elem, algorithm, t.profile)
}

func (t *Tuner) profile(m Model, s collective.Shape, a collective.Algorithm) profile {
	q := question{m.Wire(), m.near(), m.Fold, m.Copy, s.Kind, s.Ranks, s.Root, "", a.Name}
	if s.Hosts != nil {
		q.hosts = s.Hosts.String()
	}
	size := answerBytes + len(q.hosts)
	if size > tunerBytes {
		return newProfile(m, s, a)
	}
	t.mu.Lock()
	known := t.known[q]
	if known == nil {
		if t.known == nil || t.bytes+size > tunerBytes {
			t.known, t.bytes = map[question]*answer{}, 0
		}
		known = &answer{}
		t.known[q] = known
		t.bytes += size
	}
	t.mu.Unlock()
	known.once.Do(func() { known.profile = newProfile(m, s, a) })
	return known.profile
}
