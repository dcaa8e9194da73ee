//go:build linux

package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/tests/cluster"
)

// strikeOf is the round with this seed.
func strikeOf(seed uint64, fault string) strike {
	rng := rand.New(rand.NewPCG(seed, 4))
	s := strike{Seed: seed, Fault: fault, Ranks: 3 + rng.IntN(3)}
	s.Victim = rng.IntN(s.Ranks)
	if s.Other = s.Victim; fault != "cut" && seed%5 == 3 {
		s.Ranks = 5
		s.Victim = rng.IntN(5)
		s.Other = (s.Victim + 1 + rng.IntN(4)) % 5 // two neighbours cut the ring, too
	}
	s.Own = s.Other == s.Victim && fault != "cut" && seed%2 == 0
	s.Call = 3 + rng.IntN(40)
	s.Delay = time.Duration(rng.IntN(int(4 * time.Millisecond)))
	s.Wake = []int64{failed, shrunk, finished}[rng.IntN(3)]
	return s
}

// rounds is how often each fault strikes, and how many of them at a time: those that take long because they wait.
func rounds(fault string) (n, together int) {
	n, together = 10, 1
	if full {
		n = 200
	}
	if fault != "kill" {
		if together = 5; full {
			together = 8
		}
	}
	return n, together
}

// TestStrikes: a rank (sometimes two at once) of a loop of collectives of all kinds and sizes is killed, or stopped and let go on later, or
// cut off from the network, at random moments.
func TestStrikes(t *testing.T) {
	for _, fault := range []string{"kill", "stop", "cut"} {
		for _, over := range transports() {
			t.Run(fault+"/"+over, func(t *testing.T) {
				if fault == "cut" {
					if over == "verbs" {
						t.Skip("RDMA devices do not go along into namespaces of networks: transport/verbs cuts links")
					}
					needNamespaces(t)
				}
				n, together := rounds(fault)
				var tally tally
				var workers errgroup.Group
				workers.SetLimit(together)
				first := firstSeed(t)
				for i := range n {
					workers.Go(func() error {
						s := strikeOf(first+uint64(i), fault)
						t.Run(fmt.Sprintf("seed=%d", s.Seed), func(t *testing.T) { s.round(t, over, &tally) })
						return nil
					})
				}
				workers.Wait()
				t.Log(tally.String())
				// Four in five, which a few rounds show only roughly.
				if tally.rounds >= 50 && tally.inFlight*10 < tally.rounds*8 || tally.inFlight*10 < tally.rounds*4 {
					t.Errorf("only %d of %d strikes hit a call in flight", tally.inFlight, tally.rounds)
				}
			})
		}
	}
}

// round is one launch that is struck once.
func (s strike) round(t *testing.T, over string, all *tally) {
	p, path := newPage(t)
	l := cluster.Launch{Job: "struck", Ranks: s.Ranks, Timeout: 4 * patience,
		Env: []string{"GCCL_TRANSPORT=" + over, pageVar + "=" + path, s.env(), "GCCL_CALL_TIMEOUT=45s", "GCCL_INIT_TIMEOUT=30s"}}
	if s.Fault == "kill" {
		l.Dies = map[int]syscall.Signal{s.Victim: syscall.SIGKILL, s.Other: syscall.SIGKILL}
	}
	hit := func(ps []*os.Process) {
		p.put(wordStruck, now())
		if s.Fault == "kill" {
			ps[s.Victim].Kill()
			ps[s.Other].Kill()
		} else {
			ps[s.Victim].Signal(syscall.SIGSTOP)
			ps[s.Other].Signal(syscall.SIGSTOP)
		}
	}
	var at state
	wake := func(ps []*os.Process) {
		ps[s.Victim].Signal(syscall.SIGCONT)
		ps[s.Other].Signal(syscall.SIGCONT)
	}
	if s.Fault == "cut" {
		sw := newSwitch(t, s.Ranks, path)
		l.Namespaces = func(int) uintptr { return unix.CLONE_NEWNET }
		hit = func([]*os.Process) { p.put(wordStruck, now()); sw.unplug(s.Victim) }
		wake = func([]*os.Process) { sw.plug(s.Victim) }
		defer sw.wait()
		l.Started = func(ps []*os.Process) { sw.connect(ps); at = s.conduct(p, ps, hit, wake) }
	} else {
		l.Started = func(ps []*os.Process) { at = s.conduct(p, ps, hit, wake) }
	}
	res := cluster.Run(t, l)
	all.add(s, at, res)
	if t.Failed() {
		t.Logf("%+v: the victim was %v (call %d); again with GCCL_TEST_SEED=%d", s, at, at.number, s.Seed)
	}
}

// conduct strikes, and lets the victim go on when the survivors are as far as the round has it. It returns what the victim was in.
func (s strike) conduct(p *page, ps []*os.Process, hit, wake func([]*os.Process)) state {
	var all []int
	for r := range ps {
		all = append(all, r)
	}
	p.awaitStage(looping, patience, all...)
	if s.Own {
		for start := time.Now(); p.get(wordStruck) == 0 && time.Since(start) < patience; {
			time.Sleep(time.Millisecond)
		}
	} else {
		time.Sleep(s.Delay * 50) // up to 0.2 s
		// Nine times of ten in a call.
		for start := time.Now(); s.Seed%20 != 1 && time.Since(start) < time.Second; time.Sleep(20 * time.Microsecond) {
			if stateOf(p.get(of(s.Victim, wordState))).inCall {
				break
			}
		}
		hit(ps)
	}
	time.Sleep(2 * time.Millisecond) // a signal takes a moment, and what is still on its way when a cable is cut
	at := stateOf(p.get(of(s.Victim, wordState)))
	if s.Fault == "kill" {
		return at
	}
	p.awaitStage(s.Wake, patience, s.survivors()...)
	p.put(wordWoken, now())
	wake(ps)
	return at
}

// tally is what came of the rounds of one fault.
type tally struct {
	mu       sync.Mutex
	rounds   int
	inFlight int
	phases   map[string]int
	took     map[string][]time.Duration
}

func (a *tally) add(s strike, at state, res *cluster.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phases == nil {
		a.phases, a.took = map[string]int{}, map[string][]time.Duration{}
	}
	a.rounds++
	if at.inCall {
		a.inFlight++
	}
	a.phases[at.String()]++
	for r := range s.Ranks {
		who := "survivor's error"
		if r == s.Victim || r == s.Other {
			who = "victim's error"
		}
		if µs, ok := res.Fact("error", r, "error after µs"); ok {
			a.took[who] = append(a.took[who], time.Duration(µs)*time.Microsecond)
		}
		if µs, ok := res.Fact("shrink", r, "shrink µs"); ok {
			a.took["Shrink"] = append(a.took["Shrink"], time.Duration(µs)*time.Microsecond)
		}
	}
}

func (a *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds, %d in flight", a.rounds, a.inFlight)
	for _, phase := range slices.Sorted(maps.Keys(a.phases)) {
		fmt.Fprintf(&b, "\n  %4d %s", a.phases[phase], phase)
	}
	for _, what := range slices.Sorted(maps.Keys(a.took)) {
		d := a.took[what]
		slices.Sort(d)
		fmt.Fprintf(&b, "\n  %s: p50 %v, max %v", what, d[len(d)/2].Round(time.Millisecond/10), d[len(d)-1].Round(time.Millisecond/10))
	}
	return b.String()
}
