package comm

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/collective/engine"
)

// Record is what a communicator is doing on one rank, for a post-mortem: the last calls, and where each lane and each of
// its connections stands. Nothing is written down while calls run; it all follows from where they stand.
type Record struct {
	Comm    string
	Rank    int
	Size    int
	Place   string // host and process
	Time    time.Time
	Failure string // why the communicator failed, if it did: what the ranks found together, or as long as they look what this one saw
	Culprit []int  // whom that names
	Calls   []RecordedCall
	Lanes   []RecordedLane
}

// RecordedCall is one of the last collectives begun, or of the last messages with a peer.
type RecordedCall struct {
	Seq  uint64
	Call string
	Peer int // of point-to-point; -1: a collective
	Done bool
}

// RecordedLane is a lane with a call in flight.
type RecordedLane struct {
	engine.LaneState
	Seq  uint64
	Call string
	Peer int // of point-to-point; -1: a collective
}

// Record returns what the communicator is doing; after a failure, what it was doing when it failed. Anyone may call it.
func (c *Comm) Record() Record {
	if lanes := c.wreck.Load(); lanes != nil {
		return c.record(*lanes)
	}
	var lanes []RecordedLane
	if c.port != nil {
		c.family.driver.Exclusive(func() {
			if wreck := c.wreck.Load(); wreck != nil { // it failed while we waited for our turn
				lanes = *wreck
			} else {
				lanes = c.lanes()
			}
		})
	}
	return c.record(lanes)
}

func (c *Comm) record(lanes []RecordedLane) Record {
	r := Record{Comm: c.name(), Rank: c.rank, Size: c.Size(), Place: c.family.place(), Time: time.Now(), Lanes: lanes}
	err := c.reason()
	if why := c.judgement.Load(); why != nil { // which says more than what we saw first
		err = why
	}
	if err != nil {
		r.Failure, r.Culprit = err.Error(), culprits(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Calls = recorded(r.Calls, c.recent[:], c.seq, -1, -1)
	for peer, p := range c.pairs {
		for lane := range p.recent {
			r.Calls = recorded(r.Calls, p.recent[lane][:], p.seq[lane], lane, peer)
		}
	}
	return r
}

func recorded(out []RecordedCall, recent []entry, last uint64, lane, peer int) []RecordedCall {
	for i := range uint64(remembered) {
		if e := recent[(last+1+i)%remembered]; e.call != nil {
			out = append(out, RecordedCall{e.seq, e.call.agreed().with(lane, peer), peer, e.done()})
		}
	}
	return out
}

// lanes is where calls in flight stand. The driver's token is held.
func (c *Comm) lanes() []RecordedLane {
	var out []RecordedLane
	add := func(p *engine.Port, peer int) {
		for _, l := range p.Snapshot() {
			r := l.Note.(*run)
			l.Note = nil
			if peer >= 0 { // a pair's port numbers its one peer 0
				for i := range l.Peers {
					l.Peers[i].Peer = peer
				}
				if l.Waits >= 0 {
					l.Waits = peer
				}
			}
			out = append(out, RecordedLane{l, r.seq, r.prepared.agreed().with(r.lane, peer), peer})
		}
	}
	add(c.port, -1)
	for peer, port := range c.pairPorts.all() {
		add(port, peer)
	}
	return out
}

// WriteRecord writes the record as JSON.
func (c *Comm) WriteRecord(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(c.Record())
}

// dump writes the record to a file in the directory of Config.Recorder: gccl-COMM-RANK.json.
func (c *Comm) dump() {
	dir := c.family.cfg.Recorder
	if dir == "" {
		return
	}
	path := filepath.Join(dir, fmt.Sprintf("gccl-%s-%d.json", c.name(), c.rank))
	err := func() error {
		f, err := os.CreateTemp(dir, ".gccl-*")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		if err := c.WriteRecord(f); err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return os.Rename(f.Name(), path) // nobody reads half a record
	}()
	if err != nil {
		c.log.Warn("no record written", "path", path, "reason", err)
		return
	}
	c.log.Warn("record written", "path", path)
}

// recordable returns an error where records can't be written to a directory; "" is none and all right.
func recordable(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no directory", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	return nil
}

// dumpOnSignal catches SIGUSR1 and returns what writes a record at each, until Close.
func (c *Comm) dumpOnSignal() func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1) // at once: one that nobody catches ends the process
	return func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-signals:
				c.dump()
			case <-c.life.Done():
				return
			}
		}
	}
}
