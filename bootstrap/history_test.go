package bootstrap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// A history is one seeded life of a job in memory: its ranks join, do operations, and fail at random moments in random ways. Every
// rank that survives must get right results, or errors in time that name one which failed; and all survivors must find each other again.
type history struct {
	seed  uint64
	net   *bootstraptest.Net
	id    bootstrap.ID
	n     int
	plan  []operation
	fault []fault
	start time.Time

	mu      sync.Mutex
	failed  map[int]bool // ranks that failed by now, or did not get through Join
	aborted map[int]bool // ranks that called Abort
	joined  map[int]bool // ranks whose Join returned
	wrong   []string
	regroup [][]int // by rank: the last list
}

type operation int

const (
	opGather operation = iota
	opSend
	opAsk
	opSub
	opAgree
	operations
)

// fault is what happens to a rank's host, and when.
type fault struct {
	rank  int
	kind  faultKind
	at    time.Duration
	until time.Duration // when it heals
}

type faultKind int

const (
	kill   faultKind = iota
	cut              // of the network, for longer than the limit
	freeze           // likewise
	pause            // a freeze that is shorter than the limit: no fault at all
	faultKinds
)

const (
	historyQuiet = 35 * time.Second // after all faults and recoveries
	opLimit      = 30 * time.Second // for one operation; all faults are known long before
)

func newHistory(seed uint64) *history {
	rng := rand.New(rand.NewPCG(seed, 8))
	h := &history{seed: seed, n: 2 + rng.IntN(8), failed: map[int]bool{}, aborted: map[int]bool{}, joined: map[int]bool{}}
	h.regroup = make([][]int, h.n)
	for range 3 + rng.IntN(12) {
		h.plan = append(h.plan, operation(rng.IntN(int(operations))))
	}
	ranks := rng.Perm(h.n)
	for i := range rng.IntN(h.n) {
		f := fault{rank: ranks[i], kind: faultKind(rng.IntN(int(faultKinds)))}
		switch rng.IntN(3) {
		case 0: // while they join
			f.at = time.Duration(rng.IntN(40_000)) * time.Microsecond
		case 1: // while they work, or agree after another death
			f.at = time.Duration(rng.IntN(400_000)) * time.Microsecond
		case 2: // around the time when silence is noticed
			f.at = 3500*time.Millisecond + time.Duration(rng.IntN(1500))*time.Millisecond
		}
		f.until = f.at + 10*time.Second + time.Duration(rng.IntN(10_000))*time.Millisecond
		if f.kind == pause {
			f.until = f.at + time.Duration(rng.IntN(2500))*time.Millisecond
			for _, g := range h.fault { // between two that pause one after the other it is silent for longer than either does
				if g.kind == pause && f.at-time.Second < g.until && g.at-time.Second < f.until {
					f.at, f.until = g.at, g.until
				}
			}
		}
		h.fault = append(h.fault, f)
	}
	return h
}

func (h *history) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, fmt.Sprintf("%v ", time.Since(h.start))+fmt.Sprintf(format, args...))
}

// lost reports whether a rank fails at some time, and has done so by now.
func (h *history) lost(rank int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed[rank]
}

// inject lets the faults happen.
func (h *history) inject() (wait func()) {
	var wg sync.WaitGroup
	for _, f := range h.fault {
		wg.Go(func() {
			time.Sleep(f.at)
			if f.kind != pause {
				h.mu.Lock()
				h.failed[f.rank] = true
				h.mu.Unlock()
			}
			at := host(f.rank)
			switch f.kind {
			case kill:
				h.net.Kill(at)
				return
			case cut:
				h.net.Cut(at)
				defer h.net.Heal(at)
			case freeze, pause:
				h.net.Freeze(at)
				defer h.net.Thaw(at)
			}
			time.Sleep(f.until - f.at)
		})
	}
	return wg.Wait
}

func (h *history) run(t *testing.T) {
	rng := rand.New(rand.NewPCG(h.seed, 9))
	var mu sync.Mutex
	h.net.Delay(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(1+rng.IntN(500)) * time.Microsecond
	})
	h.start = time.Now()
	wait := h.inject()
	sessions := make([]bootstrap.Session, h.n)
	each(h.n, func(r int) { sessions[r] = h.live(r) })
	wait()
	time.Sleep(time.Until(h.start.Add(historyQuiet + 15*time.Second)))
	for _, f := range h.fault {
		if s := sessions[f.rank]; s != nil && f.kind != kill && f.kind != pause {
			h.comesBack(f.rank, s, sessions)
		}
	}
	h.compare()
	each(h.n, func(r int) {
		if sessions[r] != nil {
			sessions[r].Close()
		}
	})
	if left := h.net.Conns(); left > 0 {
		h.say("%d connections left", left)
	}
}

// live is one rank's life. It returns its session, still open, or nil.
func (h *history) live(r int) bootstrap.Session {
	rng := rand.New(rand.NewPCG(h.seed, 100+uint64(r)))
	c := config(h.net, h.id, r, h.n)
	c.Timeout, c.Heartbeat = 15*time.Second, time.Second
	begun := time.Now()
	s, err := bootstrap.Join(bg, c)
	h.mu.Lock()
	h.joined[r] = true
	h.mu.Unlock()
	if err != nil {
		ends := []error{bootstrap.ErrDead, bootstrap.ErrClosed, bootstrap.ErrAborted, bootstrap.ErrTimeout, bootstrap.ErrRefused}
		if !h.lost(r) {
			switch {
			case len(h.failedNow()) == 0:
				h.say("rank %d: Join failed though nobody did: %v", r, err)
			case !slices.ContainsFunc(ends, func(e error) bool { return errors.Is(err, e) }):
				h.say("rank %d: Join: %v", r, err)
			case time.Since(begun) > c.Timeout+5*time.Second:
				h.say("rank %d: Join took %v: %v", r, time.Since(begun), err)
			}
		}
		h.mu.Lock()
		h.failed[r] = true // the others see it close
		h.mu.Unlock()
		return nil
	}
	s.Answer(func(from int, q []byte) []byte { return append([]byte{byte(from), byte(s.Rank())}, q...) })
	err = h.work(r, s, rng)
	for {
		var got *shrunk
		if !errors.As(err, &got) {
			if err != nil {
				h.check(r, s, err)
				h.mu.Lock()
				h.aborted[r] = true
				h.mu.Unlock()
				s.Abort(err)
			}
			ctx, cancel := context.WithTimeout(bg, opLimit)
			sub, alive, err := s.Regroup(ctx)
			cancel()
			if err != nil && len(h.failedNow()) == h.n-1 && strings.Contains(err.Error(), "gave this rank up") {
				h.mu.Lock()
				h.failed[r] = true // alone against one that came back and has a lower number
				h.mu.Unlock()
			}
			if err != nil {
				h.check(r, s, err)
				if !h.lost(r) {
					h.say("rank %d: Regroup: %v", r, err)
				}
				return s
			}
			got = &shrunk{sub, alive}
		}
		// Ranks of a sub that failed later are at different ones, so they all go back to the first session.
		err = h.gather(r, got.sub, 1000)
		if err == nil {
			select {
			case <-got.sub.Aborted():
			case <-time.After(time.Until(h.start.Add(historyQuiet))): // until all faults have happened
			}
			err = h.gather(r, got.sub, 1001)
		}
		if err == nil {
			h.mu.Lock()
			h.regroup[r] = got.alive
			h.mu.Unlock()
			time.Sleep(time.Second)
			got.sub.Close()
			return s
		}
		if len(h.failedNow()) == 0 {
			h.say("rank %d: on a new session, though nobody failed: %v", r, err)
		}
		got.sub.Abort(err)
		got.sub.Close()
		err = nil
	}
}

// shrunk ends a rank's work because an operation found that others are gone.
type shrunk struct {
	sub   bootstrap.Session
	alive []int
}

func (*shrunk) Error() string { return "shrunk" }

// work does the planned operations up to the first error.
func (h *history) work(r int, s bootstrap.Session, rng *rand.Rand) error {
	for k, op := range h.plan {
		time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		ctx, cancel := context.WithTimeout(bg, opLimit)
		err := h.operation(ctx, r, s, k, op)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *history) operation(ctx context.Context, r int, s bootstrap.Session, k int, op operation) error {
	n := s.Size()
	switch op {
	case opGather:
		return h.gather(r, s, k)
	case opSend:
		d := 1 + k%max(n-1, 1)
		b := bytes.Repeat([]byte{byte(r), byte(k)}, 1+k*997)
		if err := s.Send(ctx, (r+d)%n, uint64(k), b); err != nil {
			return err
		}
		from := (r + n - d) % n
		got, err := s.Recv(ctx, from, uint64(k))
		if err == nil && !bytes.Equal(got, bytes.Repeat([]byte{byte(from), byte(k)}, 1+k*997)) {
			h.say("rank %d: message %d from rank %d is wrong", r, k, from)
		}
		return err
	case opAsk:
		to := (r + k) % n
		got, err := s.Ask(ctx, to, []byte{byte(k)})
		if errors.Is(err, bootstrap.ErrNoAnswer) {
			return nil // it has just joined
		}
		if err == nil && !bytes.Equal(got, []byte{byte(r), byte(to), byte(k)}) {
			h.say("rank %d: answer %v of rank %d is wrong", r, got, to)
		}
		return err
	case opSub:
		var ranks []int
		for q := range n {
			if k%2 == 0 || q%2 == r%2 {
				ranks = append(ranks, q)
			}
		}
		sub, err := s.Sub(ctx, ranks)
		if err != nil {
			return err
		}
		err = h.gather(r, sub, k)
		sub.Close()
		var peer *bootstrap.PeerError
		if errors.As(err, &peer) && peer.Status == bootstrap.Closed {
			return s.Barrier(ctx) // it had the bad news earlier: hear it from the parent
		}
		if err != nil {
			return fmt.Errorf("in a Sub of %v: %w", ranks, err)
		}
		return nil
	case opAgree:
		sub, alive, err := s.Regroup(ctx)
		if err == nil && len(alive) < n {
			return &shrunk{sub, alive}
		}
		if err == nil {
			sub.Close()
		}
		return err
	}
	panic("no such operation")
}

func (h *history) gather(r int, s bootstrap.Session, k int) error {
	ctx, cancel := context.WithTimeout(bg, opLimit)
	defer cancel()
	block := func(q int) []byte { return bytes.Repeat([]byte{byte(q), byte(k), byte(s.ID())}, 1+(q*31+k*7)%300) }
	got, err := s.AllGather(ctx, block(s.Rank()))
	for q, b := range got {
		if !bytes.Equal(b, block(q)) {
			h.say("rank %d: the block of rank %d in gather %d is wrong", r, q, k)
		}
	}
	return err
}

func (h *history) failedNow() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ranks []int
	for r := range h.failed {
		ranks = append(ranks, r)
	}
	return ranks
}

// check looks at an error that a rank got, whether it is of the right kind and names ranks that failed. Ranks of a sub are not
// looked at, for they have other numbers.
func (h *history) check(r int, s bootstrap.Session, err error) {
	if h.lost(r) {
		return // it may say what it likes
	}
	var peer *bootstrap.PeerError
	var aborted *bootstrap.AbortedError
	root := s.Size() == h.n
	switch {
	case len(h.failedNow()) == 0:
		h.say("rank %d: an error though nobody failed: %v", r, err)
	case errors.As(err, &aborted):
		h.mu.Lock()
		by := h.aborted[aborted.Notice.From]
		h.mu.Unlock()
		if root && !by && !h.lost(aborted.Notice.From) && !strings.Contains(err.Error(), "Sub") && !strings.Contains(err.Error(), "Join") {
			h.say("rank %d: aborted by a rank that did not: %v", r, err)
		}
	case errors.As(err, &peer):
		h.mu.Lock()
		joined := h.joined[peer.Rank] // if not, it may be about to give up
		h.mu.Unlock()
		if root && joined && !h.lost(peer.Rank) && !strings.Contains(err.Error(), "Sub") {
			h.say("rank %d: blames rank %d: %v", r, peer.Rank, err)
		}
	case errors.Is(err, bootstrap.ErrDead): // opAgree
	default:
		h.say("rank %d: %v", r, err)
	}
}

// comesBack checks that of a rank and those who gave it up not both go on: the larger side does.
func (h *history) comesBack(r int, s bootstrap.Session, all []bootstrap.Session) {
	out := func(s bootstrap.Session) (bool, error) {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		_, err := s.Agree(ctx)
		return errors.Is(err, bootstrap.ErrAborted) && strings.Contains(err.Error(), "gave this rank up"), err
	}
	for q, other := range all {
		if other == nil || h.lost(q) || other.Status(r) != bootstrap.Dead {
			continue
		}
		yes, err := out(s)
		if !yes {
			if yes, _ = out(other); !yes {
				h.say("rank %d came back after rank %d gave it up, and got: %v", r, q, err)
			}
		}
		return
	}
}

// compare checks that the survivors found each other. Who was cut off only while they joined may be among them, as one of them.
func (h *history) compare() {
	for r := range h.n {
		if h.failed[r] {
			continue
		}
		if h.regroup[r] == nil {
			h.say("rank %d regrouped with nobody", r)
		}
		for q := range h.n {
			in := slices.Contains(h.regroup[r], q)
			if in && !slices.Equal(h.regroup[r], h.regroup[q]) || !in && !h.failed[q] {
				h.say("rank %d regrouped to %v, rank %d to %v", r, h.regroup[r], q, h.regroup[q])
			}
		}
	}
}

// TestHistories runs 2,000 histories, with GCCL_TEST_FULL 20,000, or those from GCCL_SEED on, GCCL_HISTORIES of them.
func TestHistories(t *testing.T) {
	from, number := uint64(0), uint64(2000)
	if os.Getenv("GCCL_TEST_FULL") != "" {
		number = 20_000
	}
	if text := os.Getenv("GCCL_SEED"); text != "" {
		from, _ = strconv.ParseUint(text, 10, 64)
		number = 1
	}
	if text := os.Getenv("GCCL_HISTORIES"); text != "" {
		number, _ = strconv.ParseUint(text, 10, 64)
	}
	if testing.Short() {
		number = min(number, 200)
	}
	var faults [faultKinds]int
	for seed := from; seed < from+number; seed++ {
		h := newHistory(seed)
		for _, f := range h.fault {
			faults[f.kind]++
		}
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				id, err := bootstrap.DeriveID(host(0)+":29500", "a secret for histories")
				if err != nil {
					t.Fatal(err)
				}
				h.id, h.net = id, bootstraptest.New()
				h.run(t)
			})
			for _, w := range h.wrong {
				t.Error(w)
			}
		})
		if !ok {
			t.Fatalf("n=%d faults=%+v; reproduce with: GCCL_SEED=%d go test -run TestHistories ./bootstrap", h.n, h.fault, seed)
		}
	}
	t.Logf("%d histories with %d kills, %d cuts, %d freezes, %d pauses", number, faults[kill], faults[cut], faults[freeze], faults[pause])
}
