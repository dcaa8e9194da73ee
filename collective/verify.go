package collective

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// WrongValueError says that a rank would end with another value than the kind promises.
type WrongValueError struct {
	Rank, Chunk int    // of Out
	Got, Want   string // expressions over r<rank>.<chunk> of In
}

func (e *WrongValueError) Error() string {
	return fmt.Sprintf("collective: rank %d ends with out[%d] = %s, want %s", e.Rank, e.Chunk, e.Got, e.Want)
}

// DeadlockError says that the ranks wait for each other.
type DeadlockError struct {
	Reading string   // "linear" or "machine"
	Waiting []string // for each rank that is not done, what it waits for
}

func (e *DeadlockError) Error() string {
	const most = 8
	waiting := e.Waiting
	more := ""
	if len(waiting) > most {
		more = fmt.Sprintf("; and %d more", len(waiting)-most)
		waiting = waiting[:most]
	}
	return fmt.Sprintf("collective: deadlock (%s): %s%s", e.Reading, strings.Join(waiting, "; "), more)
}

// HazardError says that an op may read or write memory that another one still needs, or that
// messages do not match.
type HazardError struct {
	Rank int
	Op   string
	Why  string
}

func (e *HazardError) Error() string {
	return fmt.Sprintf("collective: rank %d: %s: %s", e.Rank, e.Op, e.Why)
}

// Verify proves that the schedules of all ranks, all[r] of rank r, do together what their
// kind promises: every element of every output is the right expression over all inputs,
// in an all-reduce the same expression (the same bits) on every rank; nobody waits for ever; no
// memory is overwritten before its last reader. Both readings of the plans are run.
//
// The linear reading runs with one message of room between two ranks; messages that may be
// lent are read by the receiver only when it uses them, the others leave the sender's memory when the
// receiver takes them. It is a network of sequential processes over bounded queues: each
// waits at one queue at a time, so what happens does not depend on timing, and one run is a
// proof for all. That memory was waited for before it is written again is
// checked in program order, so it holds for every transport. What runs here runs with
// more room and with copies too, as these only take waits away. Rounds that
// follow one another on the same plans run too: a round leaves all queues empty. The
// machine is run in several random orders.
//
// The error is a *WrongValueError, *DeadlockError, *HazardError or what Compile says.
func Verify(all []Schedule, opt Options) error {
	if len(all) == 0 {
		return fmt.Errorf("collective: no schedules to verify, want those of all ranks")
	}
	plans := make([]*Plan, len(all))
	for r, s := range all {
		if s.Rank != r || s.Shape != all[0].Shape || s.Shape.Ranks != len(all) || s.Pieces != all[0].Pieces {
			return fmt.Errorf("collective: schedule %d of %d is of rank %d, %+v with %d pieces; want rank %d, %+v with %d", r, len(all), s.Rank, s.Shape, s.Pieces, r, all[0].Shape, all[0].Pieces)
		}
		p, err := Compile(s, opt)
		if err != nil {
			return err
		}
		plans[r] = p
	}
	return verifyPlans(plans)
}

// orders is how many random orders of the machine Verify runs.
const orders = 3

func verifyPlans(plans []*Plan) error {
	_, err := verifyWorld(newWorld(plans))
	return err
}

// verifyWorld returns the values of all outputs.
func verifyWorld(w *world) ([][]int32, error) {
	linear, err := w.runLinear()
	if err != nil {
		return nil, err
	}
	if err := w.check(linear); err != nil {
		return nil, err
	}
	machines := make([]*Machine, len(w.plans))
	for r, v := range w.plans {
		machines[r] = newMachine(v)
	}
	for seed := range uint64(orders) {
		out, err := w.runMachines(machines, rand.New(rand.NewPCG(seed, 0)))
		if err != nil {
			return nil, err
		}
		for r := range out {
			for c, x := range out[r] {
				if x != linear[r][c] {
					return nil, &WrongValueError{Rank: r, Chunk: c, Got: w.values.text(x) + " by the machine", Want: w.values.text(linear[r][c])}
				}
			}
		}
	}
	return linear, nil
}

// runLinear runs every rank's ops in order, each rank as far as it gets, and again when
// something changed that it may wait for.
func (w *world) runLinear() ([][]int32, error) {
	w.reset()
	n := len(w.plans)
	pc, queued, queue := make([]int, n), make([]bool, n), make([]int32, 0, 4*n)
	wake := func(r int32) {
		if !queued[r] {
			queued[r] = true
			queue = append(queue, r)
		}
	}
	for r := range n {
		wake(int32(r))
	}
	for len(queue) > 0 {
		r := queue[0]
		queue, queued[r] = queue[1:], false
		for pc[r] < len(w.plans[r].Ops) {
			ok, err := w.step(int(r), pc[r], 1)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			pc[r]++
			for _, id := range w.touched {
				if p := &w.pipes[id]; p.from == r {
					wake(p.to)
				} else {
					wake(p.from)
				}
			}
		}
	}
	var waiting []string
	for r, v := range w.plans {
		if pc[r] < len(v.Ops) {
			waiting = append(waiting, fmt.Sprintf("rank %d waits at its op %d of %d: %s", r, pc[r], len(v.Ops), v.Describe(pc[r])))
		}
	}
	if waiting != nil {
		return nil, &DeadlockError{"linear", waiting}
	}
	return w.outputs()
}

// runMachines runs ops that are ready in a random order, with as much room as they need.
func (w *world) runMachines(machines []*Machine, rnd *rand.Rand) ([][]int32, error) {
	w.reset()
	type task struct{ rank, op int32 }
	var ready []task
	parked := make([][]task, len(w.pipes)) // until something changes there
	left := 0
	var next []int32
	for r, m := range machines {
		left += len(w.plans[r].Ops)
		next = m.Reset(next[:0])
		for _, i := range next {
			ready = append(ready, task{int32(r), i})
		}
	}
	for len(ready) > 0 {
		k := rnd.IntN(len(ready))
		t := ready[k]
		ready[k] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		ok, err := w.step(int(t.rank), int(t.op), 0)
		if err != nil {
			return nil, err
		}
		if !ok {
			id := w.pipeOf[t.rank][t.op]
			parked[id] = append(parked[id], t)
			continue
		}
		left--
		for _, id := range w.touched {
			ready = append(ready, parked[id]...)
			parked[id] = parked[id][:0]
		}
		next = machines[t.rank].Done(t.op, next[:0])
		for _, i := range next {
			ready = append(ready, task{t.rank, i})
		}
	}
	if left > 0 {
		var waiting []string
		for _, tasks := range parked {
			for _, t := range tasks {
				waiting = append(waiting, fmt.Sprintf("rank %d: %s", t.rank, w.plans[t.rank].Describe(int(t.op))))
			}
		}
		return nil, &DeadlockError{"machine", waiting}
	}
	return w.outputs()
}

// check holds the outputs against what the kind promises.
func (w *world) check(out [][]int32) error {
	n := len(w.plans)
	type question struct {
		value int32
		chunk int
	}
	asked := map[question]bool{}
	for r, p := range w.plans {
		scaled := p.Scale && p.Shape.Kind.Reduces()
		for c, x := range out[r] {
			rank, chunk, sum := p.want(c)
			q := question{x, chunk}
			ok, known := asked[q]
			if sum && !known {
				ok = w.values.isSum(x, n, chunk, scaled)
				asked[q] = ok
			} else if !sum {
				ok = x != 0 && x == w.values.leaf(leaf{rank: int32(rank), chunk: int32(chunk)})
			}
			if !ok {
				want := fmt.Sprintf("r%d.%d", rank, chunk)
				if sum {
					want = fmt.Sprintf("the sum of r0.%d … r%d.%d", chunk, n-1, chunk)
				}
				return &WrongValueError{r, c, w.values.text(x), want}
			}
			if k := p.Shape.Kind; (k == AllReduce || k == Barrier) && x != out[0][c] {
				return &WrongValueError{r, c, w.values.text(x), w.values.text(out[0][c]) + ", as on rank 0 (the same bits on all ranks)"}
			}
		}
	}
	return nil
}

// want is what chunk c of the rank's Out must be: the leaf (rank, chunk), or the sum over
// all ranks of their leaf chunk.
func (p *Plan) want(c int) (rank, chunk int, sum bool) {
	switch p.Shape.Kind {
	case AllGather:
		return c / p.Pieces, c % p.Pieces, false
	case AllToAll:
		return c / p.Pieces, p.Rank*p.Pieces + c%p.Pieces, false
	case Broadcast:
		return p.Shape.Root, c, false
	case ReduceScatter:
		return 0, p.Rank*p.Pieces + c, true
	}
	return 0, c, true
}
