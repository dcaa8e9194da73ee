package bootstrap

import (
	"sync/atomic"
	"time"
)

// Defaults of [Config.Heartbeat] and [Config.SilentAfter].
const (
	DefaultHeartbeat   = 500 * time.Millisecond
	DefaultSilentAfter = 4 * time.Second // what is left to five seconds is for all ranks to hear of it
)

// pulse tells who has been silent for too long. It is pure: the time, counted from any moment, is given to it.
//
// Silence counts in own time, which stands still while this process could not run: how late its timer fires is subtracted. Who was
// frozen or starved itself thus blames nobody.
type pulse struct {
	every, limit time.Duration
	due          time.Duration // when the next beat is due
	lag          time.Duration // the sum of all delays
}

// awaited is one rank whose pulse is taken.
type awaited struct {
	rank  int
	heard time.Duration // of the last byte from it
	asked time.Duration // when it was last asked for a sign of life
}

// beat sorts the ranks at time now into those that are silent and those to be asked, for which asked is set, and returns when to
// beat again. Own is now in own time, in which heard and asked must be, too; a heard that is later is taken as own.
func (p *pulse) beat(now time.Duration, ranks []*awaited) (silent, ask []*awaited, next time.Duration) {
	if p.due > 0 && now > p.due {
		p.lag += now - p.due
	}
	own := now - p.lag
	next = p.every
	for _, a := range ranks {
		a.heard, a.asked = min(a.heard, own), min(a.asked, own)
		if own-a.heard >= p.limit {
			silent = append(silent, a)
			continue
		}
		if own-max(a.heard, a.asked) >= p.every {
			a.asked = own
			ask = append(ask, a)
		}
		next = min(next, max(a.heard, a.asked)+p.every-own, a.heard+p.limit-own)
	}
	next = max(next, time.Millisecond)
	p.due = now + next
	return silent, ask, next
}

// watch is a pulse with a clock, for one goroutine that takes it and others that note what they hear.
type watch struct {
	pulse
	born   time.Time
	lagged atomic.Int64 // pulse.lag, for those others
}

func (w *watch) start(every, limit time.Duration) {
	w.every, w.limit, w.born = every, limit, time.Now()
}

// own is the own time now, as far as its lag is known.
func (w *watch) own() time.Duration { return time.Since(w.born) - time.Duration(w.lagged.Load()) }

// rest says that the next beat comes after a whole interval, and returns that. What its caller did until now is no lag.
func (w *watch) rest() time.Duration {
	w.due = time.Since(w.born) + w.every
	return w.every
}

func (w *watch) take(ranks []*awaited) (silent, ask []*awaited, next time.Duration) {
	silent, ask, next = w.beat(time.Since(w.born), ranks)
	w.lagged.Store(int64(w.lag))
	return silent, ask, next
}
