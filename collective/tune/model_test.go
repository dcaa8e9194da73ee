package tune

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// mustDefault returns the constants of a transport that has some.
func mustDefault(t testing.TB, transport string) Model {
	t.Helper()
	m, err := Default(transport)
	require.NoError(t, err)
	return m
}

// randomModel is any valid model, with constants over many magnitudes, some of them 0.
func randomModel(r *rand.Rand) Model {
	ns := func(lo, hi float64) float64 {
		if r.IntN(8) == 0 {
			return 0
		}
		return math.Pow(10, lo+r.Float64()*(hi-lo))
	}
	bytes := func() int { return 64<<r.IntN(16) + r.IntN(100) }
	return Model{
		Latency: ns(1, 6), Gap: ns(1, 5), Byte: ns(-3, 1), Fanout: ns(-4, 0), Fold: ns(-3, 0), Copy: ns(-3, 0),
		Shared: r.IntN(2) == 0, Lanes: 1 + r.IntN(16), Piece: bytes(), MaxMessage: bytes(),
	}
}

func TestDefault(t *testing.T) {
	for _, name := range []string{"mem", "shm", "verbs", "tcp"} {
		require.NoError(t, mustDefault(t, name).Validate(), name)
	}
	require.Equal(t, mustDefault(t, "shm"), mustDefault(t, "mem"))
	require.True(t, mustDefault(t, "shm").Shared)
	require.False(t, mustDefault(t, "tcp").Shared)
	_, err := Default("ucx")
	require.ErrorContains(t, err, `"ucx"; have mem, shm, verbs, tcp`)
}

func TestModelValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*Model)
		want   string
	}{
		{func(m *Model) { m.Latency = -1 }, "Latency is -1"},
		{func(m *Model) { m.Latency = math.NaN() }, "Latency is NaN"},
		{func(m *Model) { m.Gap = math.Inf(1) }, "Gap is +Inf"},
		{func(m *Model) { m.Byte = math.Inf(-1) }, "Byte is -Inf"},
		{func(m *Model) { m.Fanout = 1e13 }, "Fanout is 1e+13"},
		{func(m *Model) { m.Fold = -1e-300 }, "Fold is -1e-300"},
		{func(m *Model) { m.Copy = math.MaxFloat64 }, "Copy is 1.7976931348623157e+308"},
		{func(m *Model) { m.Lanes = 0 }, "Lanes is 0, want at least 1"},
		{func(m *Model) { m.Piece = 63 }, "Piece is 63, want at least 64"},
		{func(m *Model) { m.MaxMessage = -1 }, "MaxMessage is -1, want at least 64"},
	} {
		m := mustDefault(t, "shm")
		c.change(&m)
		require.ErrorContains(t, m.Validate(), c.want)
		_, err := Combine([]Model{mustDefault(t, "shm"), m})
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "model 1 of 2")
	}
}

func TestCrowded(t *testing.T) {
	m := tcpAndShm(t)
	near := *m.Near
	for _, alone := range []float64{-1, 0, 0.5, 1, math.NaN()} {
		require.Equal(t, m, m.Crowded(alone))
	}
	c := m.Crowded(3)
	require.Equal(t, near, *m.Near, "the model that it comes from stays as it is")
	require.Equal(t, Wire{m.Latency + switchLatency, 3 * (m.Gap + switchGap), 3 * m.Byte, 3 * m.Fanout, false}, c.Wire())
	require.Equal(t, Wire{near.Latency + switchLatency, 3 * (near.Gap + switchGap), 3 * near.Byte, 3 * near.Fanout, true}, *c.Near)
	require.Equal(t, []float64{3 * m.Fold, 3 * m.Copy}, []float64{c.Fold, c.Copy})
	require.Equal(t, []int{m.Lanes, m.Piece, m.MaxMessage}, []int{c.Lanes, c.Piece, c.MaxMessage})
	require.NoError(t, c.Validate())
	require.Nil(t, mustDefault(t, "shm").Crowded(2).Near)
}

func TestCombineSlowestWins(t *testing.T) {
	a := Model{Latency: 1, Gap: 20, Byte: 3, Fanout: 40, Fold: 5, Copy: 60, Shared: true, Lanes: 7, Piece: 800, MaxMessage: 900}
	b := Model{Latency: 10, Gap: 2, Byte: 30, Fanout: 4, Fold: 50, Copy: 6, Shared: false, Lanes: 70, Piece: 80, MaxMessage: 90}
	all, err := Combine([]Model{a, b})
	require.NoError(t, err)
	require.Equal(t, Model{Latency: 10, Gap: 20, Byte: 30, Fanout: 40, Fold: 50, Copy: 60, Shared: false, Lanes: 7, Piece: 800, MaxMessage: 90}, all)
	a.Near, b.Near = &Wire{1, 20, 3, 40, true}, &Wire{10, 2, 30, 4, false}
	for _, models := range [][]Model{{a, b}, {b, a}, {a, b, a}} {
		all, err = Combine(models)
		require.NoError(t, err)
		require.Equal(t, &Wire{10, 20, 30, 40, false}, all.Near)
	}
	a.Near = nil
	all, err = Combine([]Model{a, b})
	require.NoError(t, err)
	require.Equal(t, b.Near, all.Near)
	b.Near.Gap = -1
	require.ErrorContains(t, b.Validate(), "Near.Gap is -1")
	_, err = Combine(nil)
	require.ErrorContains(t, err, "no models")
}

// Ranks may list the models in any order, and combine those of a host first.
func TestCombineIsAMeet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	combine := func(ms ...Model) Model {
		m, err := Combine(ms)
		require.NoError(t, err)
		return m
	}
	for range 200 {
		a, b, c := randomModel(r), randomModel(r), randomModel(r)
		all := combine(a, b, c)
		require.Equal(t, all, combine(c, a, b))
		require.Equal(t, all, combine(b, combine(a, c)))
		require.Equal(t, a, combine(a, a))
		require.NoError(t, all.Validate())
	}
}

func TestModelKeepsItsBitsInJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := randomModel(r)
		b, err := json.Marshal(m)
		require.NoError(t, err)
		var back Model
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, m, back)
	}
}
