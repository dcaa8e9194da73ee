//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
	"github.com/gccl-project/gccl/tests/pairwise"
)

// worlds are the numbers of ranks that everything is tried with.
var worlds = []int{1, 2, 3, 4, 5, 7, 8}

// way is how the ranks of a launch reach each other.
type way struct {
	name      string
	transport string
	worlds    []int // numbers of ranks
	memories  []memory
	host      func(rank int) string // stands for the host's identity; nil: all are on one
	far       string                // the transport between hosts
}

var ways = []way{
	{name: "shm", transport: "shm", worlds: worlds, memories: []memory{sliceMemory, allocMemory, mixedMemory}},
	{name: "tcp", transport: "tcp", worlds: worlds, memories: []memory{sliceMemory}},
	{name: "hosts", transport: "auto", worlds: []int{3, 5, 8}, memories: []memory{mixedMemory}, host: twoHosts, far: "tcp"},
}

func twoHosts(rank int) string { return fmt.Sprint("host", rank%2) }

// rdma is the ways over RDMA devices, which few machines have: they have a cover of their own. Four ranks use two ports where there are two,
// and several QPs on each. Between hosts, which auto chooses it for,
// allocations are shared memory that is registered, too.
var rdma = []way{
	{name: "verbs", transport: "verbs", worlds: []int{2, 4}, memories: []memory{mixedMemory}},
	{name: "verbs between hosts", transport: "auto", worlds: []int{3}, memories: []memory{mixedMemory}, host: twoHosts, far: "verbs"},
}

// nearest is the number of ranks, of those that the way is tried with, that stands for n.
func (w way) nearest(n int) int {
	for _, m := range w.worlds {
		if m >= n {
			return m
		}
	}
	return w.worlds[len(w.worlds)-1]
}

func full() bool { return os.Getenv("GCCL_TEST_FULL") != "" }

// deed is a kind with an algorithm and, if it reduces, a redop: what depends on one another.
type deed struct {
	kind      comm.Kind
	algorithm string
	redop     kernels.RedOp
}

// deeds lists all combinations, with the tuner's own choice as one more algorithm of every kind.
func deeds(redops []kernels.RedOp) (all []deed) {
	for _, k := range collective.Kinds() {
		names := []string{""}
		for _, a := range collective.Catalog(k) {
			names = append(names, a.Name)
		}
		for _, name := range names {
			if !k.Reduces() || k == collective.Barrier {
				all = append(all, deed{comm.Kind(k), name, kernels.Sum})
				continue
			}
			for _, op := range redops {
				all = append(all, deed{comm.Kind(k), name, op})
			}
		}
	}
	return append(all, deed{kind: comm.KindSend})
}

// counts are what the length of a block is chosen from, for n ranks.
func counts(n int) []int { return []int{0, 1, n - 1, n, n + 1, 1000} }

// big is the long message, of many rounds. Where buffers hold a block for each rank it is about their whole length.
func big(k comm.Kind, n int) int {
	if in, out := collective.Kind(k).Blocks(n); k < comm.KindSend && max(in, out) > 1 {
		return 1000003 / n
	}
	return 1000003
}

// roots are the classes of roots.
func roots(n int) []int { return []int{0, n - 1, n / 2} }

// spec makes a call of a deed. Barriers move nothing.
func (d deed) spec(dtype kernels.DType, count int, seed uint64) spec {
	s := spec{kind: d.kind, algorithm: d.algorithm, redop: d.redop, dtype: dtype, count: count, seed: seed}
	if d.kind == comm.KindBarrier {
		s.count = 0
	}
	return s
}

// cases is the table that every rank of a launch makes.
func cases(w way, n int) (all []spec) {
	names := map[string]bool{}
	add := func(s spec) {
		if !collective.Kind(s.kind).Rooted() || s.kind >= comm.KindSend {
			s.root = 0
		}
		if !names[s.String()] {
			names[s.String()] = true
			all = append(all, s)
		}
	}
	grid(w, n, add)
	if full() {
		product(w, n, add)
	} else {
		cover(w, n, add)
	}
	return all
}

// grid is every algorithm of every kind on each sort of memory: short, of many rounds, and with values that are no numbers.
func grid(w way, n int, add func(spec)) {
	for i, d := range deeds([]kernels.RedOp{kernels.Sum}) {
		for _, m := range w.memories {
			s := d.spec(kernels.Float32, 1000, uint64(i))
			s.memory = m
			add(s)
			s = d.spec(kernels.Bfloat16, 257, uint64(i))
			s.memory, s.place, s.special, s.redop, s.root = m, inPlace, true, kernels.Avg, n-1
			add(s)
			s = d.spec(kernels.Int64, 50_001, uint64(i))
			if m == mixedMemory {
				s.place = oddInPlace
			}
			s.memory, s.redop, s.root, s.shift = m, kernels.Max, n/2, 1
			add(s)
		}
		if n > 1 && d.kind == comm.KindAllReduce && slices.Contains(w.memories, allocMemory) { // into whole pages, which peers write
			s := d.spec(kernels.Float32, big(d.kind, n), uint64(i))
			s.memory = allocMemory
			add(s)
		}
		// The long ones are spread over sizes, memories and types.
		if n > 1 && (i+n)%3 == 0 {
			s := d.spec(kernels.DTypes()[(i+n)%len(kernels.DTypes())], big(d.kind, n), uint64(i))
			s.memory, s.redop, s.place = w.memories[i%len(w.memories)], kernels.RedOps()[(i/3+n)%5], place(i%int(places))
			add(s)
		}
	}
}

// covers are the pairwise covers of everything, by number: deed, type, count, place, way and memory, ranks, root, special, shift.
var (
	rows     = sync.OnceValue(func() [][]int { return rowsOf(ways) })
	rdmaRows = sync.OnceValue(func() [][]int { return rowsOf(rdma) })
)

func rowsOf(ways []way) [][]int {
	return pairwise.Cover([]int{len(deeds(kernels.RedOps())), len(kernels.DTypes()), len(counts(2)), int(places), len(grounds(ways)), len(worlds), len(roots(2)), 2, 4}, 20)
}

// grounds are the ways, one for each sort of memory.
func grounds(ways []way) (all []way) {
	for _, w := range ways {
		for _, m := range w.memories {
			all = append(all, way{name: w.name, worlds: w.worlds, memories: []memory{m}})
		}
	}
	return all
}

// cover is the rows that are for this launch.
func cover(w way, n int, add func(spec)) {
	ds, all, among := deeds(kernels.RedOps()), rows, ways
	if strings.HasPrefix(w.name, rdma[0].name) {
		all, among = rdmaRows, rdma
	}
	for i, r := range all() {
		if g := grounds(among)[r[4]]; g.name == w.name && g.nearest(worlds[r[5]]) == n {
			s := ds[r[0]].spec(kernels.DTypes()[r[1]], counts(n)[r[2]], uint64(i))
			s.place, s.memory, s.root, s.special, s.shift = place(r[3]), g.memories[0], roots(n)[r[6]], r[7] == 1, r[8]
			add(s)
		}
	}
}

// product is everything with everything.
func product(w way, n int, add func(spec)) {
	for i, d := range deeds(kernels.RedOps()) {
		for k, t := range kernels.DTypes() {
			for j, count := range append(counts(n), big(d.kind, n)) {
				for p := range places {
					for _, m := range w.memories {
						if count > 100_000 && (i+k+int(p))%4 != 0 {
							continue
						}
						s := d.spec(t, count, uint64(i))
						s.place, s.memory, s.root, s.special, s.shift = p, m, roots(n)[(i+j)%3], (j+k)%2 == 1, (j+int(p))%4
						add(s)
					}
				}
			}
		}
	}
}

const wayVar = "GCCL_E2E_WAY"

// matrix is the job of a rank: the whole table on one communicator.
func matrix(r *cluster.Rank) {
	var w way
	for _, other := range slices.Concat(ways, rdma) {
		if other.name == os.Getenv(wayVar) {
			w = other
		}
	}
	specs := cases(w, r.Size)
	var c *comm.Comm
	var g *ground
	r.Case("new", func(*cluster.Case) (err error) {
		if c, err = comm.New(context.Background(), r.Config()); err == nil {
			g, err = newGround(c, specs)
		}
		if err != nil {
			return err
		}
		return w.reached(c)
	})
	if c == nil || g == nil {
		return
	}
	for _, s := range specs {
		r.Case(s.String(), func(report *cluster.Case) error { return s.run(c, g, report) })
	}
	r.Case("close", func(*cluster.Case) error { return c.Close() })
}

// reached checks that the launch tests what it says.
func (w way) reached(c *comm.Comm) error {
	for _, p := range c.Paths() {
		want := w.transport
		if w.host != nil {
			want = "shm"
			if w.host(p.Rank) != w.host(c.Rank()) {
				want = w.far
			}
		}
		if p.Transport != want {
			return fmt.Errorf("rank %d is reached by %s (%s), want %s", p.Rank, p.Transport, p.Reason, want)
		}
	}
	return nil
}

// TestMatrix runs every kind by every algorithm over every transport with 1 to 8 ranks in full, and pairs of everything else;
// with GCCL_TEST_FULL=1 all of it.
func TestMatrix(t *testing.T) {
	total := 0
	for _, w := range ways {
		total += w.matrix(t, nil)
	}
	t.Logf("%d cases", total)
}

// TestMatrixOverRDMA is the same over RDMA devices.
func TestMatrixOverRDMA(t *testing.T) {
	devices, err := os.ReadDir("/sys/class/infiniband")
	if len(devices) == 0 {
		cluster.Lacking(t, "verbs", "no RDMA devices here (%v); make test-rdma has some", err)
	}
	total := 0
	for _, w := range rdma {
		total += w.matrix(t, func(n int) (env []string) {
			inVM := os.Getenv("GCCL_RDMA_VM") != ""
			switch {
			case w.host != nil && inVM:
				env = append(env, "GCCL_RDMA_DEVICE==rxe0") // which is software
			case n == 4:
				env = append(env, "GCCL_QP_COUNT=2")
				if full() {
					env = append(env, "GCCL_QP_BUDGET=8") // of 12 or more: connections are parked all the time
				}
				if inVM {
					env = append(env, "GCCL_RDMA_DEVICE==rxe0,rxe5")
				}
			}
			return env
		})
	}
	t.Logf("%d cases", total)
}

// matrix runs the table of a way with all numbers of ranks, and returns how many cases there were.
func (w way) matrix(t *testing.T, env func(n int) []string) (total int) {
	for _, n := range w.worlds {
		t.Run(fmt.Sprintf("%s-%d", w.name, n), func(t *testing.T) {
			// Eight ranks take two processors 110 seconds under the race detector.
			l := cluster.Launch{Job: "matrix", Ranks: n, Timeout: 6 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + w.transport, wayVar + "=" + w.name}}
			if env != nil {
				l.Env = append(l.Env, "GCCL_INIT_TIMEOUT=5m") // processors are emulated there, and theirs may be busy
				l.Env = append(l.Env, env(n)...)
				l.Timeout = 10 * time.Minute
			}
			if w.host != nil {
				l.Only = func(rank int) []string { return []string{"GCCL_HOSTID=" + w.host(rank)} }
			}
			if full() {
				l.Timeout = 3 * time.Hour
			}
			res := cluster.Run(t, l)
			total += len(res.Cases())
			require.Len(t, res.Cases(), len(cases(w, n))+2)
			barriers(t, res, n)
		})
	}
	return total
}

// barriers checks that no rank left a barrier before the last had entered it.
func barriers(t *testing.T, res *cluster.Result, n int) {
	for _, name := range res.Cases() {
		if !strings.HasPrefix(name, comm.KindBarrier.String()+"/") {
			continue
		}
		var entered, left int64
		for rank := range n {
			e, ok := res.Fact(name, rank, "enter")
			l, ok2 := res.Fact(name, rank, "leave")
			require.True(t, ok && ok2, "%s: rank %d", name, rank)
			if rank == 0 || e > entered {
				entered = e
			}
			if rank == 0 || l < left {
				left = l
			}
		}
		require.LessOrEqual(t, entered, left, "%s: a rank left before another entered", name)
	}
}
