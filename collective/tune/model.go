package tune

import (
	"errors"
	"fmt"
	"math"

	"github.com/gccl-project/gccl/collective"
)

// Model is what a communicator's messages cost. It is plain data for exchange between
// ranks, for instance as JSON, which keeps every bit. All fields are read as one pair of ranks sees
// them with nothing else going on.
type Model struct {
	Latency float64 `json:"latency_ns"`         // α: ns from a send to the end of the receive of an empty message
	Gap     float64 `json:"gap_ns"`             // g: ns that one more message takes of a rank that sends or receives several
	Byte    float64 `json:"byte_ns"`            // β: ns a byte takes from a rank's buffer into another's
	Fanout  float64 `json:"fanout_ns_per_byte"` // φ: ns more for a byte where a rank talks to several peers at once
	Fold    float64 `json:"fold_ns_per_byte"`   // γ: ns for a byte that a fold reads, of each source
	Copy    float64 `json:"copy_ns_per_byte"`   // c: ns for a byte copied within a rank
	// Shared: all peers share memory, so that the cores of sender and receiver move a message, half each.
	Shared     bool `json:"shared"`
	Lanes      int  `json:"lanes"`       // rounds that may be in flight, ≥ 1
	Piece      int  `json:"piece"`       // bytes of the longest message worth sending, ≥ collective.Align
	MaxMessage int  `json:"max_message"` // bytes of the longest message that may be sent, ≥ collective.Align
	// Near is what messages cost between ranks that Shape.Hosts says are on one host; nil: the same as others.
	Near *Wire `json:"near,omitempty"`
}

// Wire is what messages between two ranks cost. The fields are those of Model.
type Wire struct {
	Latency float64 `json:"latency_ns"`
	Gap     float64 `json:"gap_ns"`
	Byte    float64 `json:"byte_ns"`
	Fanout  float64 `json:"fanout_ns_per_byte"`
	Shared  bool    `json:"shared"`
}

// Wire is what messages cost between ranks that are not near each other.
func (m Model) Wire() Wire { return Wire{m.Latency, m.Gap, m.Byte, m.Fanout, m.Shared} }

// near is what they cost between ranks that are.
func (m Model) near() Wire {
	if m.Near != nil {
		return *m.Near
	}
	return m.Wire()
}

// slowest has the worse of both in every field.
func (w Wire) slowest(o Wire) Wire {
	return Wire{max(w.Latency, o.Latency), max(w.Gap, o.Gap), max(w.Byte, o.Byte), max(w.Fanout, o.Fanout), w.Shared && o.Shared}
}

// The defaults come from measurements on one two-core host, which had a faster and a
// slower state. BenchmarkTransport of transport/shm, BenchmarkTCP of transport/tcp and
// BenchmarkReduce of kernels/cpu print such figures for the host at hand.
//
// shm: Latency and Gap are between the states: an exchange of 8 bytes took 130 and 530 ns
// after a barrier, 60 and 240 ns back to back. Byte is of the faster state, from all-reduces
// of 256 KiB and 1 MiB; in the slower one it was eight times that. tcp: over loopback, from
// exchanges of 8 bytes and of 1 to 64 MiB. Fold and Copy: a sum of two at 15 GB/s and a
// copy at 24 GB/s, in the caches. Piece: shorter ones cost more, longer ones gained nothing; over tcp, where two or four ranks exchange 4 to 64 MiB,
// 1 MiB takes 0.8 to 1.0 of the time of 512 KiB, and there are no longer messages.
//
// Assumed, not measured: that over tcp a rank sends to several peers faster than one after the
// other (Gap; loopback does not show it), and that each byte is then a tenth slower, as many senders to
// one receiver overrun it (Fanout). And all of verbs: a card of 200 Gb/s, until one is measured.
var defaults = map[string]Model{
	"shm":   {Latency: 300, Gap: 130, Byte: 0.05, Fold: 0.033, Copy: 0.042, Shared: true, Lanes: 4, Piece: 128 << 10, MaxMessage: 128 << 10},
	"verbs": {Latency: 2e3, Gap: 300, Byte: 0.04, Fanout: 0.004, Fold: 0.033, Copy: 0.042, Lanes: 4, Piece: 512 << 10, MaxMessage: 1 << 20},
	"tcp":   {Latency: 10e3, Gap: 4e3, Byte: 0.4, Fanout: 0.04, Fold: 0.033, Copy: 0.042, Lanes: 4, Piece: 1 << 20, MaxMessage: 1 << 20},
}

// Default returns the constants to start from where nothing was measured, of the transport
// with that name: "shm", "verbs", "tcp", or "mem", which is taken to be like shm. Lanes and
// MaxMessage are the caller's to set to what it has.
func Default(transport string) (Model, error) {
	if transport == "mem" {
		transport = "shm"
	}
	m, ok := defaults[transport]
	if !ok {
		return Model{}, fmt.Errorf("tune: no constants for transport %q; have mem, shm, verbs, tcp", transport)
	}
	return m, nil
}

// Validate returns an error that names the first field out of its bounds, its value and
// what is accepted.
func (m Model) Validate() error {
	const most = 1e12 // keeps every estimate finite
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"Latency", m.Latency}, {"Gap", m.Gap}, {"Byte", m.Byte}, {"Fanout", m.Fanout}, {"Fold", m.Fold}, {"Copy", m.Copy},
		{"Near.Latency", m.near().Latency}, {"Near.Gap", m.near().Gap}, {"Near.Byte", m.near().Byte}, {"Near.Fanout", m.near().Fanout},
	} {
		if !(f.value >= 0 && f.value <= most) {
			return fmt.Errorf("tune: model: %s is %v ns, want 0 to %v", f.name, f.value, most)
		}
	}
	for _, f := range []struct {
		name         string
		value, least int
	}{{"Lanes", m.Lanes, 1}, {"Piece", m.Piece, collective.Align}, {"MaxMessage", m.MaxMessage, collective.Align}} {
		if f.value < f.least {
			return fmt.Errorf("tune: model: %s is %d, want at least %d", f.name, f.value, f.least)
		}
	}
	return nil
}

// With is the model of ranks of which some are on one host: m's between hosts and that of near on them.
func (m Model) With(near Model) Model {
	w := near.Wire()
	m.Fold, m.Copy = max(m.Fold, near.Fold), max(m.Copy, near.Copy)
	m.Lanes, m.Piece, m.MaxMessage = min(m.Lanes, near.Lanes), max(m.Piece, near.Piece), min(m.MaxMessage, near.MaxMessage)
	m.Near = &w
	return m
}

// A process that waits for its turn on a processor waits so long for a message, and each further message costs it so much: what collectives
// of 3, 4 and 8 processes on 2 processors took over shared memory and loopback TCP, of one, two and three steps and 1 to 7 messages a step.
const (
	switchLatency = 20e3
	switchGap     = 1.5e3
)

// Crowded is m where there are so many ranks, each a process, for each processor: up to one they run at once, and it is m itself. Else
// they take turns, what cores do takes as many times as long, and few messages in few steps count more than their bytes.
func (m Model) Crowded(ranks float64) Model {
	if !(ranks > 1) {
		return m
	}
	crowd := func(w Wire) Wire {
		return Wire{w.Latency + switchLatency, float64((w.Gap + switchGap) * ranks), float64(w.Byte * ranks), float64(w.Fanout * ranks), w.Shared}
	}
	w := crowd(m.Wire())
	m.Latency, m.Gap, m.Byte, m.Fanout = w.Latency, w.Gap, w.Byte, w.Fanout
	if m.Near != nil {
		near := crowd(*m.Near)
		m.Near = &near
	}
	m.Fold, m.Copy = float64(m.Fold*ranks), float64(m.Copy*ranks)
	return m
}

// longest is how long a message may be.
func (m Model) longest() int { return min(m.Piece, m.MaxMessage) }

// Combine makes one model of those of all ranks or paths. In every field the slowest wins: the most
// nanoseconds, the fewest lanes, the shortest message; memory is shared if it is
// for all. Near is of the models that have it. Piece is the longest, as slow paths want. The order does not matter. An error names the index of a
// model that does not Validate; there must be at least one.
func Combine(models []Model) (Model, error) {
	if len(models) == 0 {
		return Model{}, errors.New("tune: no models to combine, want one of each rank")
	}
	all := Model{Shared: true, Lanes: math.MaxInt, MaxMessage: math.MaxInt}
	for i, m := range models {
		if err := m.Validate(); err != nil {
			return Model{}, fmt.Errorf("%w (model %d of %d)", err, i, len(models))
		}
		w := all.Wire().slowest(m.Wire())
		all.Latency, all.Gap, all.Byte, all.Fanout, all.Shared = w.Latency, w.Gap, w.Byte, w.Fanout, w.Shared
		if m.Near != nil {
			near := *m.Near
			if all.Near != nil {
				near = near.slowest(*all.Near)
			}
			all.Near = &near
		}
		all.Fold = max(all.Fold, m.Fold)
		all.Copy = max(all.Copy, m.Copy)
		all.Lanes = min(all.Lanes, m.Lanes)
		all.Piece = max(all.Piece, m.Piece)
		all.MaxMessage = min(all.MaxMessage, m.MaxMessage)
	}
	return all, nil
}
