package tune

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
)

// A Tuner answers as the pure functions do, whatever it was asked before, and by whom.
func TestTunerAnswersAsChooseDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	models := []Model{mustDefault(t, "shm"), mustDefault(t, "tcp"), tcpAndShm(t)}
	for i := range 12 { // one field changed: a memory that overlooks it answers for another model
		m := tcpAndShm(t)
		near := *m.Near
		m.Near = &near
		fields := [...]*float64{&m.Latency, &m.Gap, &m.Byte, &m.Fanout, &m.Fold, &m.Copy, &near.Latency, &near.Gap, &near.Byte, &near.Fanout}
		if i < len(fields) {
			*fields[i] = 10*(*fields[i]) + 1
		} else {
			m.Shared, near.Shared = i%2 == 0, i%2 == 0
		}
		models = append(models, m)
	}
	type asked struct {
		m           Model
		s           collective.Shape
		count, elem int
		want, with  Choice
	}
	var all []asked
	for _, m := range models {
		for _, k := range collective.Kinds() {
			for _, s := range []collective.Shape{{Kind: k, Ranks: 1}, {Kind: k, Ranks: 12}, {Kind: k, Ranks: 5}, onHosts(t, k, 4, 3), onHosts(t, k, 3, 4)} {
				if k.Rooted() {
					s.Root = r.IntN(s.Ranks)
				}
				a := asked{m: m, s: s, count: 1 << 16, elem: 4}
				a.want = choose(t, a.m, a.s, a.count, a.elem)
				var err error
				a.with, err = With(a.m, a.s, a.count, a.elem, collective.Catalog(k)[0].Name)
				require.NoError(t, err)
				all = append(all, a)
			}
		}
	}
	var tuner Tuner
	var askers sync.WaitGroup
	for range 4 {
		order := r.Perm(len(all))
		askers.Go(func() {
			for _, i := range order {
				a := all[i]
				c, err := tuner.Choose(a.m, a.s, a.count, a.elem)
				assert.NoError(t, err)
				assert.Equal(t, a.want, c, "%+v %+v", a.m, a.s)
				c, err = tuner.With(a.m, a.s, a.count, a.elem, a.with.Algorithm)
				assert.NoError(t, err)
				assert.Equal(t, a.with, c, "%+v %+v", a.m, a.s)
			}
		})
	}
	askers.Wait()
}

// The work is done once for all counts and all communicators whose hosts are as large, and what is remembered is bounded.
func TestTunerRemembers(t *testing.T) {
	var tuner Tuner
	m, s := tcpAndShm(t), onHosts(t, collective.AllReduce, 4, 4)
	ask := func(s collective.Shape, count int) {
		_, err := tuner.Choose(m, s, count, 4)
		require.NoError(t, err)
	}
	ask(s, 1)
	before := testing.AllocsPerRun(1, func() { choose(t, m, s, 1, 4) })
	known := len(tuner.known)
	require.Equal(t, len(suited(s)), known)
	require.Less(t, testing.AllocsPerRun(10, func() { ask(s, 1<<20) }), before/5)
	ask(onHosts(t, collective.AllReduce, 4, 4), 7)
	require.Len(t, tuner.known, known)
	for ranks := range 60 {
		for root := range ranks {
			ask(collective.Shape{Kind: collective.Broadcast, Ranks: ranks, Root: root}, 0)
			require.LessOrEqual(t, tuner.bytes, tunerBytes)
			require.LessOrEqual(t, len(tuner.known)*answerBytes, tuner.bytes)
			if ranks > 30 && tuner.bytes < 10*answerBytes { // it has begun anew
				return
			}
		}
	}
	t.Fatal("it grew without end")
}
