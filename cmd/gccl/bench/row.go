package bench

import (
	"math"
	"slices"
	"time"
)

// Row is what was measured of one message: a line of JSON. Bandwidths are in 10^9 bytes a second,
// and null where they mean nothing: for one rank and for no bytes.
type Row struct {
	Kind      string   `json:"kind"`
	Bytes     int64    `json:"bytes"`
	Count     int64    `json:"count"` // elements in Bytes
	DType     string   `json:"dtype"`
	RedOp     string   `json:"redop"` // "none" where the kind reduces nothing
	Ranks     int      `json:"ranks"`
	Algo      string   `json:"algo"`
	Transport string   `json:"transport"`
	Root      *int     `json:"root"` // null where the kind has none
	Memory    string   `json:"memory"`
	InPlace   bool     `json:"in_place"`
	Iters     int      `json:"iters"`
	TimeUS    TimeUS   `json:"time_us"`
	AlgBW     *float64 `json:"algbw_gb_per_s"`
	BusBW     *float64 `json:"busbw_gb_per_s"`
	Wrong     *int64   `json:"wrong"`   // elements; null when nothing was checked
	Barrier   string   `json:"barrier"` // before each call: "page", "comm", or "none" when they are back to back

	time float64 // of TimeUS the one that the bandwidths come from, in microseconds
}

// newRow is what is known of a message before it is measured.
func newRow(m *message, cfg *Config) Row {
	row := Row{
		Kind: m.kind.Name, Bytes: m.size, Count: m.size / int64(m.dtype.Size()), DType: m.dtype.String(), RedOp: "none",
		Ranks: m.ranks, Algo: "none", Memory: string(cfg.Memory), InPlace: m.inPlace, Iters: cfg.Iters,
	}
	if m.kind.isBarrier() {
		row.DType = "none"
	}
	if m.kind.reduces {
		row.RedOp = m.op.String()
	}
	if m.kind.rooted {
		root := m.root
		row.Root = &root
	}
	return row
}

// TimeUS are times of a call in microseconds. An iteration's time is the slowest rank's; back to back it is
// the ranks' mean, and Mean is of the rank that took longest for all iterations.
type TimeUS struct {
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
}

// newTimeUS returns the figures of some iterations, sorting them. A percentile is the smallest time
// that so many in a hundred don't exceed; of fewer than 100 iterations p99 is the longest.
func newTimeUS(times []time.Duration) TimeUS {
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	rank := func(p float64) float64 {
		return us(times[max(0, int(math.Ceil(p*float64(len(times))))-1)])
	}
	return TimeUS{
		Min:  us(times[0]),
		P50:  rank(0.50),
		P99:  rank(0.99),
		Mean: us(sum) / float64(len(times)),
	}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// setBandwidth derives the bandwidths from the time of a call in microseconds, which is also what the table shows.
func (r *Row) setBandwidth(k Kind, timeUS float64) {
	r.time = timeUS
	if r.Ranks < 2 || r.Bytes == 0 || timeUS <= 0 {
		return
	}
	alg := float64(r.Bytes) / timeUS / 1e3
	bus := alg * k.BusFactor(r.Ranks)
	r.AlgBW, r.BusBW = &alg, &bus
}
