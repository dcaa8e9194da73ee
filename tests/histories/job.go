package histories

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/transport/mem"
)

// job is one run of a history.
type job struct {
	History
	net    *bootstraptest.Net
	memory mem.Network
	root   *bootstrap.Root
	ranks  []*rank
	began  time.Time
	trace  func(format string, args ...any) // or nil
	log    *slog.Logger

	strikes   sync.WaitGroup
	stricken  chan struct{} // closed when the fault has begun to happen, if it is not one of a message or call
	over      chan struct{}
	struck    atomic.Bool
	struckAt  atomic.Int64 // time
	dwelt     atomic.Uint64
	mu        sync.Mutex
	members   map[uint64][]int // of communicators, by id: their ranks in the world
	survivors map[uint64]bool  // ids of communicators made after the fault
	culprits  []int            // in the world: who may be blamed
	wrong     []string
	unless    []string // wrong, unless some rank finished
	outcomes  []outcome
}

func host(r int) string { return fmt.Sprintf("192.0.2.%d", r+1) }

const rootPort = "4711"

// Result is what came of a history.
type Result struct {
	Wrong   []string // how the contract was broken; empty: it was not
	Struck  bool     // the fault happened before the job was over
	Shrunk  int      // ranks that went on in a smaller communicator
	Virtual time.Duration
}

// patience is for how long a whole job may take, in virtual time.
const patience = 5 * time.Minute

// Run runs the history. It must be called in a testing/synctest bubble. Trace, if not nil, is told what happens. A rank that
// does not come to an end is a panic, with the stacks of all goroutines.
func (h History) Run(trace func(format string, args ...any)) Result {
	goroutines := runtime.NumGoroutine()
	j := &job{History: h, net: bootstraptest.New(), began: time.Now(), trace: trace, log: slog.New(slog.DiscardHandler), stricken: make(chan struct{}), over: make(chan struct{}), members: map[uint64][]int{}, survivors: map[uint64]bool{}, culprits: slices.Clone(h.Fault.Ranks)}
	if trace != nil {
		j.log = slog.New(slog.NewTextHandler(tracer{j}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
	at := host(0)
	if h.RootApart {
		at = host(100)
	}
	j.memory.Credit, j.memory.Dwell = h.credit(), j.dwell
	root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: at + ":" + rootPort, Network: j.net.Host(at), Timeout: h.InitTimeout, Log: j.log})
	if err != nil {
		panic(err)
	}
	j.root = root
	for r := range h.Ranks {
		q := &rank{job: j, number: r, rng: rand.New(rand.NewPCG(h.Seed, uint64(r))), trigger: make(chan struct{}, 1), idle: make(chan struct{}), thawed: make(chan struct{})}
		q.ctx, q.cancel = context.WithCancel(context.Background())
		close(q.thawed)
		j.ranks = append(j.ranks, q)
	}
	var running, starting sync.WaitGroup
	starting.Add(h.Ranks)
	for _, q := range j.ranks {
		running.Go(func() { q.run(starting.Done) })
	}
	running.Go(func() {
		starting.Wait()
		root.Close()
	})
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(j.over)
		j.strikes.Wait()
		close(done)
	}()
	late := time.NewTimer(patience)
	select {
	case <-done:
		late.Stop()
	case <-late.C:
		var where []string
		for _, q := range j.ranks {
			where = append(where, fmt.Sprintf("rank %d: %v", q.number, q.doing.Load()))
		}
		panic(fmt.Sprintf("after %v of virtual time ranks have not come to an end: %q; wrong: %q", patience, where, j.wrong))
	}
	took := time.Since(j.began)
	time.Sleep(10 * time.Millisecond) // the goroutine of a driver that looks whether calls are in flight sleeps up to 5 ms
	for _, q := range j.ranks {
		q.cancel()
		q.checkPoison()
	}
	if !slices.ContainsFunc(j.ranks, func(q *rank) bool { return q.finished.Load() && !q.gone() }) {
		j.wrong = append(j.wrong, j.unless...)
	}
	j.judge()
	if n := j.net.Conns(); n != 0 {
		j.fault("%d ends of bootstrap connections are open after all ranks closed", n)
	}
	if endpoints, links := j.memory.Len(); endpoints+links != 0 {
		j.fault("%d endpoints and %d links are open after all ranks closed", endpoints, links)
	}
	synctest.Wait()
	if runtime.NumGoroutine() > goroutines { // perhaps the runtime's
		if left := leftovers(); len(left) > 0 { // they may go on for ever: this cannot end well
			panic(fmt.Sprintf("%d goroutines are left; wrong: %q\n%s", len(left), j.wrong, strings.Join(left, "\n\n")))
		}
	}
	res := Result{Wrong: j.wrong, Struck: j.struck.Load(), Virtual: took}
	for _, q := range j.ranks {
		if q.shrunk {
			res.Shrunk++
		}
	}
	return res
}

// leftovers are the stacks of the bubble's goroutines but those that run the test.
func leftovers() (left []string) {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if head, _, _ := strings.Cut(g, "\n"); strings.Contains(head, "synctest bubble") && !strings.Contains(g, "testing/synctest.") {
			left = append(left, g)
		}
	}
	return left
}

// tracer writes log lines to the trace.
type tracer struct{ j *job }

func (t tracer) Write(b []byte) (int, error) {
	t.j.tracef("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func (j *job) tracef(format string, args ...any) {
	if j.trace != nil {
		j.trace("%12v  %s", time.Since(j.began), fmt.Sprintf(format, args...))
	}
}

// fault notes how the contract was broken.
func (j *job) fault(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	j.tracef("WRONG: %s", s)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wrong = append(j.wrong, s)
}

// faultUnlessFinished is fault, but for jobs of which some rank did all its steps before it heard of the fault: that rank closes,
// and takes no part in shrinking.
func (j *job) faultUnlessFinished(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unless = append(j.unless, fmt.Sprintf(format, args...))
}

// blame adds to those who may be blamed.
func (j *job) blame(ranks ...int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range ranks {
		if !slices.Contains(j.culprits, r) {
			j.culprits = append(j.culprits, r)
		}
	}
}

func (j *job) register(id uint64, members []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if members == nil { // survivors find out who they are
		if _, ok := j.members[id]; ok && !j.survivors[id] {
			j.wrong = append(j.wrong, fmt.Sprintf("communicator %x of survivors has the id of one with members %v", id, j.members[id]))
		}
		j.survivors[id] = true
	}
	if old := j.members[id]; old != nil && !slices.Equal(old, members) {
		j.wrong = append(j.wrong, fmt.Sprintf("communicator %x has members %v and %v", id, old, members))
	}
	j.members[id] = members
}

func (j *job) config(r *rank) comm.Config {
	return comm.Config{
		Rank: r.number, Size: j.Ranks, ID: j.root.ID(), Transport: "mem", Memory: j.memory.Host(host(r.number)), Network: r.network(),
		Driver: engine.NewSimulatedDriver(), Lanes: j.Lanes, MaxMessage: j.MaxMessage, Algorithm: j.Algorithm, Checksum: j.Checksum, FirstSeq: j.FirstSeq,
		InitTimeout: j.InitTimeout, CallTimeout: j.CallTimeout, WarnAfter: time.Second, HostID: j.node(r.number), Logger: j.log.With("at", r.number), Hook: r.hook,
	}
}

var errRecovery = errors.New("recovery")
