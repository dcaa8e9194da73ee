// Package faulty makes transport.Hooks from text: seeded faults for tests, for
// fault studies in virtual time, and for trying out by hand how a job fails.
//
// # Grammar
//
//	text  = item { ";" item }
//	item  = "seed=" number | rule
//	rule  = [ when { "," when } ] ":" fate { "+" fate }
//	when  = "transport=" name    of this transport
//	      | "rank=" number       sent by this rank
//	      | "peer=" number       sent to this rank
//	      | "comm=" number       of this communicator (0x… for hexadecimal)
//	      | "channel=" number    -1 is point-to-point
//	      | "stream=" number
//	      | "min=" bytes         of messages at least that long
//	      | "after=" number      not the first so many matching messages
//	      | "every=" N           of those that are left, each Nth
//	      | "times=" number      at most so often
//	      | "prob=" fraction     with this probability, 0 to 1
//	fate  = "drop" | "reset" | "twice" | "delay=" duration | "flip=" bit
//	      | "reorder" | "truncate=" bytes    with mem alone
//
// Spaces around items and tokens do not matter. Messages are counted apart for
// each rule, sender, receiver, communicator and channel. The first rule that
// applies to a message decides its fate. Numbers and sizes are decimal or 0x…;
// durations are Go's, as in 50ms; bits count from 1 and wrap round at the end of
// the payload.
//
//	seed=7; transport=tcp,rank=2,peer=0,after=100,times=1:reset
//	prob=0.01:delay=5ms+flip=3
//	:twice
//
// # Promises
//
// A Hook decides by seed, rule and message alone, never by time or by which
// goroutine asks first: the same text gives the same faults in every run that
// sends the same messages, in whatever order conns take turns. It may be called
// by several goroutines. Each call of Hook begins counting anew.
//
//	hook, err := faulty.Parse("seed=1;rank=3,after=10,times=1:drop")
//	options.Hook = hook
package faulty

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// Rules is a parsed text. Its String parses to the same Rules.
type Rules struct {
	Seed  uint64
	Rules []Rule
}

// Rule is one rule. A nil condition does not matter.
type Rule struct {
	Transport           string // "" any
	Rank, Peer, Channel *int32
	Comm                *uint64
	Stream              *int
	Min                 int
	After               uint64
	Every               uint64   // 0 and 1: each
	Times               uint64   // 0: always
	Prob                *float64 // nil: 1
	Fate                transport.Fate
}

// Parse makes a Hook of text. Errors name the token that is wrong and what would
// be right.
func Parse(text string) (transport.Hook, error) {
	r, err := ParseRules(text)
	if err != nil {
		return nil, err
	}
	return r.Hook(), nil
}

// Hook returns a Hook that applies the rules, and owns a copy of them.
func (r Rules) Hook() transport.Hook {
	h := &hook{seed: r.Seed, rules: slices.Clone(r.Rules), counts: map[count]*counts{}}
	return h.decide
}

type hook struct {
	seed   uint64
	rules  []Rule
	mu     sync.Mutex
	counts map[count]*counts
}

// count is what messages are counted apart for.
type count struct {
	rule int
	key  transport.Key
}

type counts struct{ matched, applied uint64 }

func (h *hook) decide(f transport.Frame) transport.Fate {
	for i := range h.rules {
		if r := &h.rules[i]; r.matches(f) && h.due(i, r, f) {
			return r.Fate
		}
	}
	return transport.Fate{}
}

func (r *Rule) matches(f transport.Frame) bool {
	return (r.Transport == "" || r.Transport == f.Transport) &&
		(r.Rank == nil || *r.Rank == f.Key.Self) &&
		(r.Peer == nil || *r.Peer == f.Key.Peer) &&
		(r.Channel == nil || *r.Channel == f.Key.Channel) &&
		(r.Comm == nil || *r.Comm == f.Key.Comm) &&
		(r.Stream == nil || *r.Stream == f.Stream) &&
		f.Bytes >= r.Min
}

// due counts a matching message and reports whether the rule applies to it.
func (h *hook) due(i int, r *Rule, f transport.Frame) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.counts[count{i, f.Key}]
	if c == nil {
		c = &counts{}
		h.counts[count{i, f.Key}] = c
	}
	c.matched++
	if c.matched <= r.After || r.Every > 1 && (c.matched-r.After)%r.Every != 0 || r.Times > 0 && c.applied >= r.Times {
		return false
	}
	if r.Prob != nil && chance(h.seed, i, f) >= *r.Prob {
		return false
	}
	c.applied++
	return true
}

// chance is a number in [0, 1) that depends on the seed, the rule and the message.
func chance(seed uint64, rule int, f transport.Frame) float64 {
	x := seed
	for _, v := range []uint64{
		uint64(rule), f.Key.Comm, uint64(uint32(f.Key.Channel))<<32 | uint64(uint32(f.Stream)),
		uint64(uint32(f.Key.Self))<<32 | uint64(uint32(f.Key.Peer)), f.Seq,
	} {
		x = mix(x ^ v)
	}
	return float64(x>>11) / (1 << 53)
}

// mix is one step of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// String writes the rules in the grammar of the package comment.
func (r Rules) String() string {
	var items []string
	if r.Seed != 0 {
		items = append(items, fmt.Sprintf("seed=%d", r.Seed))
	}
	for _, rule := range r.Rules {
		items = append(items, rule.String())
	}
	return strings.Join(items, ";")
}

// String writes the rule as an item of the grammar.
func (r Rule) String() string {
	var when, fates []string
	add := func(to *[]string, given bool, format string, v any) {
		if given {
			*to = append(*to, fmt.Sprintf(format, v))
		}
	}
	add(&when, r.Transport != "", "transport=%s", r.Transport)
	add(&when, r.Rank != nil, "rank=%d", deref(r.Rank))
	add(&when, r.Peer != nil, "peer=%d", deref(r.Peer))
	add(&when, r.Comm != nil, "comm=%#x", deref(r.Comm))
	add(&when, r.Channel != nil, "channel=%d", deref(r.Channel))
	add(&when, r.Stream != nil, "stream=%d", deref(r.Stream))
	add(&when, r.Min != 0, "min=%d", r.Min)
	add(&when, r.After != 0, "after=%d", r.After)
	add(&when, r.Every != 0, "every=%d", r.Every)
	add(&when, r.Times != 0, "times=%d", r.Times)
	add(&when, r.Prob != nil, "prob=%v", deref(r.Prob))
	f := r.Fate
	add(&fates, f.Drop, "%s", "drop")
	add(&fates, f.Reset, "%s", "reset")
	add(&fates, f.Twice, "%s", "twice")
	add(&fates, f.Delay != 0, "delay=%v", f.Delay)
	add(&fates, f.Flip != 0, "flip=%d", f.Flip)
	add(&fates, f.Reorder, "%s", "reorder")
	add(&fates, f.Truncate != 0, "truncate=%d", f.Truncate)
	return strings.Join(when, ",") + ":" + strings.Join(fates, "+")
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

var _ fmt.Stringer = Rules{}

// longest bounds a delay: more is a mistake of units.
const longest = 1000 * time.Hour
