//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
	"github.com/gccl-project/gccl/transport"
)

// strike is one round: what happens to whom and when. The ranks get it by their environment.
type strike struct {
	Seed   uint64
	Fault  string // kill, stop or cut
	Ranks  int
	Victim int
	Other  int  // another one that is struck at the same time, or the victim
	Own    bool // the victim does it to itself: early in a call, however short. Else the test does, in what takes long
	Call   int  // own: which one
	Delay  time.Duration
	Wake   int64 // stage of the survivors in which the victim goes on
}

const strikeVar = "GCCL_FAULTS_STRIKE"

func (s strike) env() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return strikeVar + "=" + string(b)
}

func (s *strike) fromEnv() error { return json.Unmarshal([]byte(os.Getenv(strikeVar)), s) }

func (s strike) survivors() (ranks []int) {
	for r := range s.Ranks {
		if r != s.Victim && r != s.Other {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// bound is in what time survivors must have their error, on a busy machine. What is promised is a second for the dead and five for the
// silent.
func (s strike) bound() time.Duration {
	if s.Fault == "kill" {
		return 5 * time.Second
	}
	return 15 * time.Second
}

const (
	patience  = 60 * time.Second // what takes longer hangs
	goodCalls = 100
)

// within returns a context that turns a hang into an error.
func within() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(background, patience, errors.New("HANG: the test's patience ended"))
}

// struck is the job of a rank in a loop of collectives in which a fault strikes.
func struck(r *cluster.Rank) {
	var s strike
	err := s.fromEnv()
	if err != nil {
		r.Fatal(err)
	}
	p, err := openPage(os.Getenv(pageVar))
	if err != nil {
		r.Fatal(err)
	}
	before := baseline()
	victim := r.Rank == s.Victim || r.Rank == s.Other
	pattern := uint32(s.Seed)*7919 + 1
	var c, child *comm.Comm
	var b, other *buffers
	stage := func(n int64) { p.put(of(r.Rank, wordStage), n) }
	fine := r.Case("error", func(report *cluster.Case) error {
		cfg := r.Config()
		cfg.Logger = quiet
		if s.Fault == "cut" {
			root, err := meetInNamespaces(r, &cfg)
			if err != nil {
				return err
			}
			defer root.Close()
		}
		ctx, cancel := within()
		defer cancel()
		var err error
		if c, err = comm.New(ctx, cfg); err != nil {
			return err
		}
		if b, err = newBuffers(c, mostBytes); err != nil {
			return err
		}
		if other, err = newBuffers(c, mostBytes/4); err != nil {
			return err
		}
		err = s.loop(c, b, p)
		at := now()
		if rec := c.Record(); errors.Is(err, comm.ErrAborted) && (rec.Rank != r.Rank || rec.Failure == "") {
			return fmt.Errorf("the record after a failure: %+v", rec)
		}
		if victim {
			report.Fact("error after µs", (at-max(p.get(wordWoken), p.get(wordStruck)))/1000)
			return refused(err)
		}
		took := time.Duration(at - p.get(wordStruck))
		report.Fact("error after µs", took.Microseconds())
		if err := s.blamesVictims(err); err != nil {
			return err
		}
		if took > s.bound() {
			return fmt.Errorf("the error came %v after the fault, want %v at most", took, s.bound())
		}
		b.fill(pattern)
		stage(failed)
		return nil
	})
	victimIsDone := func() error {
		if s.Fault != "kill" && !p.awaitStage(ended, patience, s.Victim, s.Other) {
			return errors.New("the victim did not end")
		}
		return nil
	}
	r.Case("shrink", func(report *cluster.Case) error {
		if !fine {
			return nil
		}
		ctx, cancel := within()
		defer cancel()
		if victim {
			return s.neverRejoins(ctx, c, p)
		}
		if s.Wake == failed {
			if err := victimIsDone(); err != nil {
				return err
			}
		}
		start := time.Now()
		var err error
		if child, err = c.Shrink(ctx); err != nil {
			return err
		}
		report.Fact("shrink µs", time.Since(start).Microseconds())
		rank, _ := slices.BinarySearch(s.survivors(), r.Rank)
		if child.Size() != len(s.survivors()) || child.Rank() != rank {
			return fmt.Errorf("shrunk to rank %d of %d, want %d of %d", child.Rank(), child.Size(), rank, len(s.survivors()))
		}
		stage(shrunk)
		if err := good(ctx, child, other, s.Seed+1, goodCalls, mostBytes/4); err != nil {
			return err
		}
		stage(finished)
		if err := victimIsDone(); err != nil {
			return err
		}
		if err := good(ctx, child, other, s.Seed+2, 3, mostBytes/4); err != nil {
			return err
		}
		return b.intact(pattern)
	})
	r.Case("close", func(*cluster.Case) error {
		start := time.Now()
		for _, c := range []*comm.Comm{child, c} {
			if c != nil {
				c.Close() // may say that a peer is gone
			}
		}
		if d := time.Since(start); d > 20*time.Second {
			return fmt.Errorf("Close took %v", d)
		}
		b, other = nil, nil
		err := settles(before, 0)
		stage(ended)
		return err
	})
}

// loop calls until an error comes, and returns that.
func (s strike) loop(c *comm.Comm, b *buffers, p *page) error {
	ctx, cancel := context.WithTimeoutCause(background, patience+patience/2, errors.New("HANG: the test's patience ended"))
	defer cancel()
	own := s.Own && c.Rank() == s.Victim
	for i := 0; ; i++ {
		d := deedOf(s.Seed, i, s.Ranks, mostBytes)
		at := state{kind: d.kind, bytes: d.bytes(s.Ranks), number: i}
		if i == 1 {
			p.put(of(c.Rank(), wordStage), looping)
		}
		err := d.do(ctx, c, b, i, func(inCall bool) {
			at.inCall = inCall
			p.put(of(c.Rank(), wordState), at.word())
			if own && inCall && i == s.Call {
				go s.self(p, d.bytes(s.Ranks))
			}
		})
		if err != nil {
			return err
		}
	}
}

// self does it to this process, a moment from now.
func (s strike) self(p *page, bytes int) {
	runtime.LockOSThread()
	until := now() + int64(s.Delay)*int64(1+bytes/1024)/4096
	for now() < until {
	}
	sig := syscall.SIGKILL
	if s.Fault == "stop" {
		sig = syscall.SIGSTOP
	}
	p.put(wordStruck, now())
	syscall.Kill(os.Getpid(), sig)
}

// neverRejoins checks that the victim, which was given up, is no member any more. Who was cut off may go on alone.
func (s strike) neverRejoins(ctx context.Context, c *comm.Comm, p *page) error {
	if s.Fault == "cut" {
		for start := time.Now(); p.get(wordWoken) == 0; time.Sleep(time.Millisecond) {
			if time.Since(start) > patience {
				return errors.New("the network was not joined again")
			}
		}
	}
	alone, err := c.Shrink(ctx)
	if err == nil {
		defer alone.Close()
		if s.Fault != "cut" || alone.Size() != 1 {
			return fmt.Errorf("the rank that was given up is rank %d of %d now", alone.Rank(), alone.Size())
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "HANG") {
		return fmt.Errorf("Shrink of the rank that was given up waited for nothing: %w", err)
	}
	return refused(c.Barrier(ctx))
}

// blamesVictims checks a survivor's error. Of two that are struck at once it may have heard of one.
func (s strike) blamesVictims(err error) error {
	one := blames(err, transport.ErrGone, s.Victim)
	if s.Other == s.Victim || one == nil {
		return one
	}
	if blames(err, transport.ErrGone, s.Other) == nil {
		return nil
	}
	return blames(err, transport.ErrGone, min(s.Victim, s.Other), max(s.Victim, s.Other))
}

// refused checks the error of a rank that was given up.
func refused(err error) error {
	switch {
	case err == nil:
		return errors.New("the call of a rank that was given up succeeded")
	case !errors.Is(err, comm.ErrAborted) || strings.Contains(err.Error(), "HANG"):
		return fmt.Errorf("not an ErrAborted: %w", err)
	}
	return nil
}

// blames checks an error of a call: its class, and that it blames these ranks alone.
func blames(err error, class error, ranks ...int) error {
	var e *comm.Error
	switch {
	case err == nil:
		return errors.New("the call succeeded")
	case !errors.Is(err, comm.ErrAborted) || strings.Contains(err.Error(), "HANG"):
		return fmt.Errorf("not an ErrAborted: %w", err)
	case class != nil && !errors.Is(err, class):
		return fmt.Errorf("not %q: %w", class, err)
	case !errors.As(err, &e):
		return fmt.Errorf("not an *comm.Error: %w", err)
	case len(ranks) > 0 && !slices.Equal(e.Ranks, ranks):
		return fmt.Errorf("WRONG CULPRIT: blames ranks %v, want %v: %w", e.Ranks, ranks, err)
	}
	return nil
}
