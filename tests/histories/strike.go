package histories

import (
	"time"

	"github.com/gccl-project/gccl/transport"
)

// enter marks that the rank comes to a phase. The fault is armed by the first at fault.
func (r *rank) enter(p Phase) {
	f := &r.job.Fault
	if len(f.Ranks) == 0 || f.Ranks[0] != r.number || p != f.Phase || r.armed.Swap(true) {
		return
	}
	if f.Kind.ofMessage() || f.Kind.ofCall() { // by whoever does them
		return
	}
	r.job.strikes.Go(func() {
		wait := f.After
		if wait == 0 {
			wait = 100 * time.Millisecond
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-r.trigger:
		case <-t.C:
		case <-r.job.over:
			return
		}
		r.job.strike()
	})
}

// through marks that the rank is through with all phases before p. If the fault was to happen there and did not, it does now.
func (r *rank) through(p Phase) {
	j := r.job
	if f := &j.Fault; !r.armed.Load() || f.Phase >= p || f.Kind.ofMessage() || f.Kind.ofCall() || j.struck.Load() {
		return
	}
	select {
	case r.trigger <- struct{}{}:
	default:
	}
	<-j.stricken
}

// strike makes the fault happen, for those that are not of one message or call.
func (j *job) strike() {
	j.struckAt.Store(time.Now().UnixNano())
	j.struck.Store(true)
	close(j.stricken)
	j.tracef("STRIKE: %v", j.Fault)
	r := j.ranks[j.Fault.Ranks[0]]
	switch j.Fault.Kind {
	case Kill, KillTwo:
		for _, n := range j.Fault.Ranks {
			j.ranks[n].dead.Store(true)
			j.net.Kill(host(n))
			j.memory.Kill(host(n))
		}
		for _, n := range j.Fault.Ranks {
			j.ranks[n].cancel()
			j.ranks[n].closeAll()
		}
	case Cut:
		r.cut.Store(true)
		j.net.Cut(host(r.number))
		j.memory.Cut(host(r.number))
	case Freeze:
		thawed := make(chan struct{})
		r.mu.Lock()
		r.thawed = thawed
		r.mu.Unlock()
		j.net.Freeze(host(r.number))
		j.memory.Cut(host(r.number))
		time.Sleep(j.Fault.Lasts)
		j.net.Thaw(host(r.number))
		j.memory.Heal(host(r.number))
		j.tracef("thawed")
		close(thawed)
	case Abort:
		r.mu.Lock()
		var m *member
		if n := len(r.comms); n > 0 {
			m = r.comms[j.Fault.Bit%n]
		}
		r.mu.Unlock()
		if m != nil {
			m.comm.Abort(errStop)
		}
	case Cancel:
		r.cancel()
	case Leave:
		// First one communicator: whatever call is in flight there must end.
		r.left.Store(true)
		r.mu.Lock()
		var m *member
		if n := len(r.comms); n > 0 {
			m = r.comms[j.Fault.Bit%n]
		}
		r.mu.Unlock()
		if m != nil {
			r.close(m)
			if r.doesOn(m) {
				select {
				case <-r.idle:
				case <-time.After(time.Second):
					j.fault("rank %d: %v did not end, though its communicator was closed", r.number, r.doing.Load())
				}
			}
		}
		r.closeAll()
	}
}

// hook decides what becomes of a message that the rank sends.
func (r *rank) hook(f transport.Frame) (fate transport.Fate) {
	j := r.job
	if r.dead.Load() || r.cut.Load() {
		return transport.Fate{Drop: true}
	}
	if j.MemDelay > 0 {
		if x := mix(j.Seed, f.Key.Comm, uint64(f.Key.Channel), uint64(f.Key.Self)<<32|uint64(f.Key.Peer), uint64(f.Stream), f.Seq); x%4 == 0 {
			fate.Delay = time.Duration(x>>8) % j.MemDelay
		}
	}
	if !r.armed.Load() || j.Fault.Frames == 0 {
		return fate
	}
	n := int(r.frames.Add(1)) - j.Fault.Frames
	if r.last.Load() && j.Fault.Kind.ofMessage() && !j.struck.Load() {
		n = max(n, 0)
	}
	switch k := j.Fault.Kind; k {
	case Drop, Twice, Reset, Flip, Reorder, Truncate:
		if n < 0 || (k == Flip || k == Truncate) && f.Bytes == 0 || r.struck.Swap(true) {
			return fate
		}
		j.mu.Lock()
		m := j.members[f.Key.Comm]
		j.mu.Unlock()
		if m != nil {
			j.blame(m[f.Key.Peer])
		}
		j.struck.Store(true)
		j.tracef("STRIKE: %v on %+v", j.Fault, f)
		switch k {
		case Drop:
			fate.Drop = true
		case Twice:
			fate.Twice = true
		case Reset:
			fate.Reset = true
		case Flip:
			fate.Flip = j.Fault.Bit
		case Reorder:
			fate.Reorder = true
		case Truncate:
			fate.Truncate = 1 + j.Fault.Bit%f.Bytes
		}
	case Delay:
		if n >= 0 && r.delayed.Add(1) <= 4 {
			j.struck.Store(true)
			fate.Delay = j.Fault.Lasts
		}
	case Kill, KillTwo, Cut, Freeze, Abort, Cancel, Leave:
		if n == 0 {
			select {
			case r.trigger <- struct{}{}:
			default:
			}
		}
		if n >= 0 && (k == Kill || k == KillTwo || k == Cut) {
			return transport.Fate{Drop: true} // from this message on, exactly
		}
	}
	return fate
}

// dwell is mem.Network.Dwell.
func (j *job) dwell(a, b string) time.Duration {
	if x := mix(j.Seed, j.dwelt.Add(1)); j.Dwell > 0 && x%2 == 0 {
		return time.Duration(x>>8) % j.Dwell
	}
	return 0
}

// mix hashes numbers (FNV-1a, and a step of SplitMix64).
func mix(xs ...uint64) uint64 {
	h := uint64(14695981039346656037)
	for _, x := range xs {
		h = (h ^ x) * 1099511628211
		h ^= h >> 29
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
