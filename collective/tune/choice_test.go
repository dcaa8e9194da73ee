package tune

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
)

func choose(t testing.TB, m Model, s collective.Shape, count, elem int) Choice {
	t.Helper()
	c, err := Choose(m, s, count, elem)
	require.NoError(t, err, "%+v %+v count %d elem %d", m, s, count, elem)
	return c
}

func TestExpectedWinners(t *testing.T) {
	for _, c := range []struct {
		transport string
		kind      collective.Kind
		ranks     []int
		bytes     []int
		want      string // any of
	}{
		// Small: latency counts.
		{"shm", collective.AllReduce, []int{2}, []int{8, 64, 1 << 10, 4 << 10}, "oneshot"},
		{"shm", collective.AllReduce, []int{4, 8, 16}, []int{8, 64, 1 << 10}, "oneshot doubling"},
		{"tcp", collective.AllReduce, []int{2}, []int{8, 1 << 10, 16 << 10}, "oneshot"},
		{"tcp", collective.AllReduce, []int{4, 8, 16}, []int{8, 64, 1 << 10, 8 << 10}, "oneshot doubling"},
		{"shm", collective.AllReduce, []int{3, 4}, []int{8}, "oneshot"},
		{"shm", collective.AllReduce, []int{64}, []int{8}, "doubling"},
		// Medium: the sum's work is shared out.
		{"shm", collective.AllReduce, []int{2, 4, 8}, []int{64 << 10, 1 << 20}, "twoshot"},
		{"tcp", collective.AllReduce, []int{4, 8}, []int{512 << 10}, "twoshot"},
		// Large: the fewest bytes; over a network, without everybody sending to the same rank.
		{"shm", collective.AllReduce, []int{2, 4, 8}, []int{4 << 20, 64 << 20, 1 << 30}, "twoshot"},
		{"tcp", collective.AllReduce, []int{2}, []int{4 << 20, 64 << 20}, "twoshot"},
		{"tcp", collective.AllReduce, []int{4, 8}, []int{16 << 20, 64 << 20, 1 << 30}, "ring"},

		{"shm", collective.AllGather, []int{4, 8}, []int{8, 1 << 20}, "direct"},
		{"tcp", collective.AllGather, []int{4, 8}, []int{8, 1 << 10}, "direct"},
		{"tcp", collective.AllGather, []int{4, 8}, []int{4 << 20}, "ring"},
		{"shm", collective.ReduceScatter, []int{2, 4, 8}, []int{8, 1 << 20}, "direct"},
		{"tcp", collective.ReduceScatter, []int{4, 8}, []int{16 << 20}, "ring"},
		{"shm", collective.Broadcast, []int{8}, []int{8, 1 << 10}, "tree"},
		{"tcp", collective.Broadcast, []int{8}, []int{8, 16 << 10}, "tree"},
		{"shm", collective.Broadcast, []int{4, 8}, []int{4 << 20, 64 << 20}, "chain"},
		{"tcp", collective.Broadcast, []int{4, 8, 64}, []int{64 << 20}, "chain"},
		{"shm", collective.Reduce, []int{8, 64}, []int{8, 1 << 10}, "tree"},
		{"shm", collective.Reduce, []int{8}, []int{16 << 20}, "chain"},
		{"tcp", collective.AllToAll, []int{4, 8}, []int{8, 1 << 10}, "direct"},
		{"tcp", collective.AllToAll, []int{4, 8}, []int{4 << 20}, "pairwise"},
		{"shm", collective.Barrier, []int{2, 3, 4}, []int{0}, "direct"},
		{"tcp", collective.Barrier, []int{2, 3, 4}, []int{0}, "direct"},
		{"shm", collective.Barrier, []int{8, 16, 64}, []int{0}, "doubling"},
		{"tcp", collective.Barrier, []int{8, 16, 64}, []int{0}, "doubling"},
	} {
		for _, n := range c.ranks {
			for _, bytes := range c.bytes {
				got := choose(t, mustDefault(t, c.transport), collective.Shape{Kind: c.kind, Ranks: n}, bytes/4, 4)
				require.Contains(t, strings.Fields(c.want), got.Algorithm, "%s %v n=%d, %d bytes: %v", c.transport, c.kind, n, bytes, got)
			}
		}
	}
}

// onHosts is a shape with so many ranks on each of so many hosts.
func onHosts(t testing.TB, k collective.Kind, ranks, hosts int) collective.Shape {
	h, err := collective.NewHosts(slices.Repeat([]int{ranks}, hosts)...)
	require.NoError(t, err)
	return collective.Shape{Kind: k, Ranks: ranks * hosts, Hosts: h}
}

// tcpAndShm is the model of ranks that meet over tcp between hosts, and in shared memory on them.
func tcpAndShm(t testing.TB) Model { return mustDefault(t, "tcp").With(mustDefault(t, "shm")) }

// Between hosts what counts is how little crosses, and how many ranks share it.
func TestExpectedWinnersOnHosts(t *testing.T) {
	for _, c := range []struct {
		kind  collective.Kind
		hosts [][2]int // ranks on each, hosts
		bytes []int
		want  string // any of
	}{
		{collective.AllReduce, [][2]int{{2, 2}, {4, 2}, {8, 16}, {8, 128}}, []int{8, 256}, "doubling"},
		{collective.AllReduce, [][2]int{{2, 2}, {4, 2}, {2, 4}, {8, 16}, {8, 128}}, []int{8 << 10}, "hierarchical_doubling"},
		{collective.AllReduce, [][2]int{{2, 2}, {4, 2}, {2, 4}, {8, 16}}, []int{256 << 10, 8 << 20, 256 << 20}, "hierarchical hierarchical_ring hierarchical_doubling"},
		{collective.AllReduce, [][2]int{{8, 128}}, []int{256 << 20}, "hierarchical_ring"},
		{collective.AllReduce, [][2]int{{1, 8}}, []int{8, 8 << 10, 256 << 10, 8 << 20}, "doubling twoshot ring"},
		{collective.Broadcast, [][2]int{{2, 4}, {1, 8}, {8, 16}, {8, 128}}, []int{256 << 10}, "doubletree"},
		{collective.Broadcast, [][2]int{{8, 16}, {8, 128}}, []int{8 << 20}, "doubletree"},
		{collective.Broadcast, [][2]int{{2, 2}, {8, 128}}, []int{256 << 20}, "chain"},
		{collective.Broadcast, [][2]int{{2, 2}, {8, 16}, {8, 128}}, []int{8, 8 << 10}, "tree"},
		{collective.Reduce, [][2]int{{2, 4}, {1, 8}, {8, 16}, {8, 128}}, []int{256 << 10}, "doubletree"},
		{collective.Barrier, [][2]int{{2, 2}, {8, 16}}, []int{0}, "doubling"},
	} {
		for _, h := range c.hosts {
			for _, bytes := range c.bytes {
				got := choose(t, tcpAndShm(t), onHosts(t, c.kind, h[0], h[1]), bytes/4, 4)
				require.Contains(t, strings.Fields(c.want), got.Algorithm, "%v, %d hosts of %d, %d bytes: %v", c.kind, h[1], h[0], bytes, got)
			}
		}
	}
	// What is near costs what is near: all on one host is as in shared memory, and nobody near as over the network.
	for _, bytes := range []int{8, 64 << 10} { // in one round: between rounds the slowest wait counts
		one := choose(t, tcpAndShm(t), onHosts(t, collective.AllReduce, 8, 1), bytes/4, 4)
		shm := mustDefault(t, "shm")
		shm.Piece = tcpAndShm(t).Piece
		require.Equal(t, choose(t, shm, collective.Shape{Ranks: 8}, bytes/4, 4).Cost, one.Cost)
		each := choose(t, tcpAndShm(t), onHosts(t, collective.AllReduce, 1, 8), bytes/4, 4)
		tcp := mustDefault(t, "tcp")
		tcp.MaxMessage = tcpAndShm(t).MaxMessage
		require.Equal(t, choose(t, tcp, collective.Shape{Ranks: 8}, bytes/4, 4).Cost, each.Cost)
	}
}

// Where processes take turns on processors a step costs more than bytes do, and messages more than they would: what was measured of 3, 4
// and 8 processes on 2 processors, as one host and as two.
func TestExpectedWinnersInACrowd(t *testing.T) {
	shm, both := mustDefault(t, "shm"), tcpAndShm(t)
	for _, c := range []struct {
		m     Model
		hosts [2]int // ranks on each, hosts
		bytes []int
		want  string // any of
	}{
		{shm.Crowded(1.5), [2]int{3, 1}, []int{8, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10}, "oneshot"},
		{shm.Crowded(1.5), [2]int{3, 1}, []int{256 << 10, 4 << 20}, "twoshot"},
		{shm.Crowded(2), [2]int{4, 1}, []int{8, 256, 1 << 10}, "oneshot"},
		{shm.Crowded(2), [2]int{4, 1}, []int{256 << 10, 4 << 20}, "twoshot"},
		{shm.Crowded(4), [2]int{8, 1}, []int{8, 256, 1 << 10, 4 << 10, 16 << 10}, "oneshot doubling"},
		{shm.Crowded(4), [2]int{8, 1}, []int{64 << 10, 256 << 10, 4 << 20}, "twoshot"},
		{both.Crowded(2), [2]int{2, 2}, []int{8, 1 << 10, 4 << 10, 8 << 10, 16 << 10}, "doubling"},
		{both.Crowded(2), [2]int{2, 2}, []int{64 << 10, 256 << 10}, "hierarchical_doubling"},
		{both.Crowded(4), [2]int{4, 2}, []int{8, 1 << 10, 4 << 10, 8 << 10}, "doubling"},
		{both.Crowded(4), [2]int{4, 2}, []int{32 << 10, 64 << 10, 256 << 10}, "hierarchical_doubling"},
		{both.Crowded(4), [2]int{2, 4}, []int{8, 1 << 10, 4 << 10, 8 << 10}, "doubling"},
		{both.Crowded(4), [2]int{2, 4}, []int{32 << 10, 64 << 10}, "hierarchical_doubling"},
	} {
		s := onHosts(t, collective.AllReduce, c.hosts[0], c.hosts[1])
		for _, bytes := range c.bytes {
			got := choose(t, c.m, s, bytes/4, 4)
			require.Contains(t, strings.Fields(c.want), got.Algorithm, "%d hosts of %d, %d bytes: %v", c.hosts[1], c.hosts[0], bytes, got)
		}
	}
}

// Small messages take one round on one lane; large ones rounds of pieces of the length
// that suits the transport, several in flight.
func TestRoundsSuitTheTransport(t *testing.T) {
	for transport, piece := range map[string][2]int{"shm": {64 << 10, 128 << 10}, "tcp": {256 << 10, 1 << 20}} {
		m := mustDefault(t, transport)
		for _, n := range []int{2, 4, 8} {
			s := collective.Shape{Kind: collective.AllReduce, Ranks: n}
			for _, bytes := range []int{0, 4, 1 << 10, 16 << 10} {
				c := choose(t, m, s, bytes/4, 4)
				require.Equal(t, 1, c.Lanes)
				require.Equal(t, max(1, bytes/4), c.Round)
			}
			c := choose(t, m, s, 16<<20, 4)
			got := layout(s, c, 16<<20, 4).PieceMax(c.Round) * 4
			require.GreaterOrEqual(t, got, piece[0], "%s n=%d: %v", transport, n, c)
			require.LessOrEqual(t, got, piece[1], "%s n=%d: %v", transport, n, c)
			require.Greater(t, c.Lanes, 1)
		}
	}
}

// layout is how a choice would be run.
func layout(s collective.Shape, c Choice, count, elem int) collective.Layout {
	sch, err := collective.Build(s, s.Root, c.Algorithm)
	if err != nil {
		panic(err)
	}
	return collective.Layout{Count: count, Elem: elem, Round: c.Round, Pieces: sch.Pieces}
}

// suited are the algorithms that a shape's choice is among.
func suited(s collective.Shape) []collective.Algorithm {
	return slices.DeleteFunc(collective.Catalog(s.Kind), func(a collective.Algorithm) bool { return !a.Suits(s) })
}

// requireSound holds a choice to what it promises.
func requireSound(t testing.TB, m Model, s collective.Shape, count, elem int, c Choice) {
	t.Helper()
	l := layout(s, c, count, elem)
	require.NoError(t, l.Check(max(s.Kind.Blocks(s.Ranks))))
	require.LessOrEqual(t, c.Round, max(1, count))
	require.True(t, 1 <= c.Lanes && c.Lanes <= min(m.Lanes, l.Rounds()), "%d lanes, %d rounds", c.Lanes, l.Rounds())
	if s.Ranks > 1 {
		for _, j := range []int{0, l.Rounds() - 1} {
			_, n := l.Range(j)
			require.LessOrEqual(t, l.PieceMax(n)*elem, min(m.Piece, m.MaxMessage))
		}
	}
	if grain := c.Round * elem % collective.Align; l.Rounds() > 1 && elem == 4 {
		require.Zero(t, grain, "rounds begin on cache lines")
	}
	chosen := 0
	list := suited(s)
	require.Len(t, c.Considered, len(list))
	for i, k := range c.Considered {
		require.Equal(t, list[i].Name, k.Algorithm)
		switch {
		case k.WhyNot == "":
			chosen++
			require.Equal(t, c.Algorithm, k.Algorithm)
			require.Equal(t, c.Cost, k.Cost)
		case !strings.Contains(k.WhyNot, "too many"):
			require.LessOrEqual(t, c.Cost, k.Cost)
		}
		forced, err := With(m, s, count, elem, k.Algorithm)
		require.NoError(t, err)
		require.Equal(t, k.Cost, forced.Cost)
		if k.WhyNot == "" {
			require.Equal(t, []int{c.Round, c.Lanes}, []int{forced.Round, forced.Lanes})
		}
	}
	require.Equal(t, 1, chosen)
}

func TestChoiceIsSound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	elems := []int{1, 2, 3, 4, 7, 8, 16}
	for range 3000 {
		s := collective.Shape{Kind: collective.Kinds()[r.IntN(len(collective.Kinds()))], Ranks: 1 + r.IntN(20)}
		if s.Kind.Rooted() {
			s.Root = r.IntN(s.Ranks)
		}
		if h := 1 + r.IntN(4); r.IntN(2) == 0 {
			root := s.Root
			s = onHosts(t, s.Kind, 1+s.Ranks/h, h)
			s.Root = root
		}
		m, elem := randomModel(r), elems[r.IntN(len(elems))]
		if r.IntN(2) == 0 {
			m = m.With(randomModel(r))
		}
		count := r.IntN(1 << r.IntN(40))
		requireSound(t, m, s, count, elem, choose(t, m, s, count, elem))
	}
}

// What ranks must agree on depends on nothing that differs between them, also when
// they got the models of others by JSON and list them in another order.
func TestAllRanksChooseTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		n := 2 + r.IntN(12)
		models := make([]Model, n)
		for i := range models {
			models[i] = randomModel(r)
		}
		s := collective.Shape{Kind: collective.Kinds()[r.IntN(len(collective.Kinds()))], Ranks: n}
		count := r.IntN(1 << 24)
		var first Choice
		for rank := range n {
			mine, err := Combine(models)
			require.NoError(t, err)
			c := choose(t, mine, s, count, 4)
			if rank == 0 {
				first = c
			}
			require.Equal(t, first, c)
			r.Shuffle(n, func(i, j int) { models[i], models[j] = models[j], models[i] })
			b, err := json.Marshal(models)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(b, &models))
		}
	}
}

// More elements never take less time, for the chosen algorithm and for each.
func TestCostGrowsWithCount(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	models := []Model{mustDefault(t, "shm"), mustDefault(t, "tcp")}
	for range 10 {
		models = append(models, randomModel(r))
	}
	counts := []int{0, 1}
	for e := 1; e < 34; e++ {
		counts = append(counts, 1<<e-1, 1<<e, 1<<e+1, 1<<e+1<<e/3)
	}
	for range 100 {
		c := r.IntN(1 << r.IntN(34))
		counts = append(counts, c, c+1)
	}
	slices.Sort(counts)
	for i, m := range models {
		for _, k := range collective.Kinds() {
			for _, n := range []int{1, 2, 3, 8, 13, 70} {
				if n > 8 && i > 3 {
					continue
				}
				s := collective.Shape{Kind: k, Ranks: n}
				if i == 2 && n > 3 && n%2 == 0 {
					s, m = onHosts(t, k, n/2, 2), tcpAndShm(t)
				}
				before := choose(t, m, s, 0, 4)
				for _, count := range counts {
					c := choose(t, m, s, count, 4)
					require.GreaterOrEqual(t, c.Cost, before.Cost, "%+v %+v count %d: %v; before: %v", m, s, count, c, before)
					for j := range c.Considered {
						require.GreaterOrEqual(t, c.Considered[j].Cost, before.Considered[j].Cost)
					}
					before = c
				}
			}
		}
	}
}

func TestManyRanksDoNotAllMeetOverLongMessages(t *testing.T) {
	m := mustDefault(t, "shm")
	for _, k := range collective.Kinds() {
		s := collective.Shape{Kind: k, Ranks: 200}
		for _, bytes := range []int{0, 64 << 10, 4 << 20, 1 << 30} {
			c := choose(t, m, s, bytes/4, 4)
			requireSound(t, m, s, bytes/4, 4, c)
			for i, x := range c.Considered {
				fan := 0
				for r := range 2 {
					sch := suited(s)[i].Build(s, r)
					cost := sch.Cost()
					fan = max(fan, cost.MaxFanout, cost.MaxFanin)
				}
				if fan > manyRanks && bytes > m.Piece {
					require.Contains(t, x.WhyNot, "199 messages at once are too many", "%v of %d bytes: %+v", k, bytes, x)
				} else {
					require.NotContains(t, x.WhyNot, "too many", "%v of %d bytes: %+v", k, bytes, x)
				}
			}
		}
	}
}

func TestOneRankCopies(t *testing.T) {
	for _, k := range collective.Kinds() {
		c := choose(t, mustDefault(t, "tcp"), collective.Shape{Kind: k, Ranks: 1}, 1<<30, 4)
		require.Equal(t, 1<<30, c.Round, "%v", k)
		require.Equal(t, 1, c.Lanes)
	}
}

func TestBadInput(t *testing.T) {
	m := mustDefault(t, "tcp")
	m.MaxMessage = 64
	broken := m
	broken.Lanes = 0
	ok := collective.Shape{Kind: collective.AllReduce, Ranks: 4}
	for _, c := range []struct {
		m           Model
		s           collective.Shape
		count, elem int
		want        string
	}{
		{broken, ok, 1, 4, "Lanes is 0"},
		{m, collective.Shape{Kind: collective.AllReduce}, 1, 4, "0 ranks"},
		{m, collective.Shape{Kind: 99, Ranks: 2}, 1, 4, "kind(99)"},
		{m, collective.Shape{Kind: collective.Broadcast, Ranks: 4, Root: 4}, 1, 4, "root 4"},
		{m, collective.Shape{Kind: collective.AllGather, Ranks: 4, Root: 1}, 1, 4, "root 1"},
		{m, ok, -1, 4, "-1 elements"},
		{m, ok, 1, 0, "0 bytes"},
		{m, ok, 1, -4, "-4 bytes"},
		{m, ok, 1, 65, "an element has 65 bytes, want at most 64"},
		{m, ok, math.MaxInt, 4, "are more than"},
		{m, ok, 1<<60 + 1, 4, "are more than"},
		{m, collective.Shape{Kind: collective.AllToAll, Ranks: 4}, 1<<58 + 1, 4, "are more than"},
	} {
		_, err := Choose(c.m, c.s, c.count, c.elem)
		require.ErrorContains(t, err, c.want)
		_, err = With(c.m, c.s, c.count, c.elem, "ring")
		require.ErrorContains(t, err, c.want)
	}
}

// The largest messages that can be addressed have a finite cost and legal rounds, however
// short messages must be.
func TestLargestCounts(t *testing.T) {
	for _, most := range []int{64, 1 << 20} {
		for _, k := range collective.Kinds() {
			for _, n := range []int{1, 2, 3, 70} {
				for _, elem := range []int{1, 3, 4, 64} {
					m := mustDefault(t, "tcp")
					m.MaxMessage = most
					s := collective.Shape{Kind: k, Ranks: n}
					count := 1 << 62 / elem / max(k.Blocks(n))
					requireSound(t, m, s, count, elem, choose(t, m, s, count, elem))
				}
			}
		}
	}
	m := mustDefault(t, "shm")
	m.Byte = 1e12
	c := choose(t, m, collective.Shape{Kind: collective.Reduce, Ranks: 2}, 1<<62, 1)
	require.EqualValues(t, math.MaxInt64, c.Cost)
}

func TestWithUnknownAlgorithm(t *testing.T) {
	_, err := With(mustDefault(t, "shm"), collective.Shape{Kind: collective.AllGather, Ranks: 4}, 1, 4, "oneshot")
	require.ErrorContains(t, err, `no algorithm "oneshot" for all_gather; have ring, direct`)
}

func TestChoiceExplainsItself(t *testing.T) {
	c := choose(t, mustDefault(t, "tcp"), collective.Shape{Kind: collective.Broadcast, Ranks: 2}, 1, 4)
	require.Contains(t, c.String(), "tree, rounds of 1 elements, 1 lanes: 10.002µs; not ")
	require.Contains(t, c.String(), "; not direct: as fast, but after tree in the catalog")
	c = choose(t, mustDefault(t, "tcp"), collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 1, 4)
	require.Contains(t, c.String(), "oneshot, ")
	require.Contains(t, c.String(), "not doubling: as fast, but sums do not follow the order of the ranks")
	require.Contains(t, c.String(), "not ring: 2.00 times as long")
}

func FuzzChoose(f *testing.F) {
	f.Add(uint64(0), uint8(0), uint8(8), uint8(0), 1<<20, 4)
	f.Add(uint64(1), uint8(3), uint8(70), uint8(69), 1<<62, 1)
	f.Add(uint64(2), uint8(2), uint8(3), uint8(0), 1000, 24)
	f.Fuzz(func(t *testing.T, seed uint64, kind, ranks, root uint8, count, elem int) {
		m := randomModel(rand.New(rand.NewPCG(seed, 0)))
		s := collective.Shape{Kind: collective.Kind(kind), Ranks: int(ranks), Root: int(root)}
		c, err := Choose(m, s, count, elem)
		if err != nil {
			require.Zero(t, c)
			return
		}
		requireSound(t, m, s, count, elem, c)
	})
}

func ExampleChoose() {
	m, err := Default("tcp")
	if err != nil {
		panic(err)
	}
	s := collective.Shape{Kind: collective.AllReduce, Ranks: 8}
	for _, count := range []int{2, 16 << 20} { // of float32
		c, err := Choose(m, s, count, 4)
		if err != nil {
			panic(err)
		}
		fmt.Println(c.Algorithm, c.Round, c.Lanes)
	}
	// Output:
	// doubling 2 1
	// ring 2097152 2
}
