package faulty

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ParseRules parses text. An empty text has no rules.
func ParseRules(text string) (Rules, error) {
	var rules Rules
	seeded := false
	if strings.TrimSpace(text) == "" {
		return rules, nil
	}
	for _, item := range strings.Split(text, ";") {
		item = strings.TrimSpace(item)
		when, fates, isRule := strings.Cut(item, ":")
		if !isRule {
			value, ok := strings.CutPrefix(item, "seed=")
			if !ok {
				return Rules{}, wrong(item, "item", `"seed=number" or a rule "condition,…:fate"`)
			}
			if seeded {
				return Rules{}, wrong(item, "second seed", "one")
			}
			seed, err := number(item, value, 0, math.MaxUint64)
			if err != nil {
				return Rules{}, err
			}
			rules.Seed, seeded = seed, true
			continue
		}
		rule, err := parseRule(when, fates)
		if err != nil {
			return Rules{}, err
		}
		rules.Rules = append(rules.Rules, rule)
	}
	return rules, nil
}

func wrong(token, what, want string) error {
	return fmt.Errorf("faults: %s %q, want %s", what, token, want)
}

func parseRule(when, fates string) (Rule, error) {
	var r Rule
	given := map[string]bool{}
	once := func(token, name string) error {
		if given[name] {
			return wrong(token, "repeated token", "each condition and fate once")
		}
		given[name] = true
		return nil
	}
	if strings.TrimSpace(when) != "" {
		for _, token := range strings.Split(when, ",") {
			token = strings.TrimSpace(token)
			name, value, _ := strings.Cut(token, "=")
			if err := r.condition(token, name, value); err != nil {
				return r, err
			}
			if err := once(token, name); err != nil {
				return r, err
			}
		}
	}
	for _, token := range strings.Split(fates, "+") {
		token = strings.TrimSpace(token)
		name, value, valued := strings.Cut(token, "=")
		if err := r.fate(token, name, value, valued); err != nil {
			return r, err
		}
		if err := once(token, "fate "+name); err != nil {
			return r, err
		}
	}
	return r, nil
}

var transportName = regexp.MustCompile(`^[a-z0-9_-]+$`)

func (r *Rule) condition(token, name, value string) error {
	var err error
	switch name {
	case "transport":
		if r.Transport = value; !transportName.MatchString(value) {
			return wrong(token, "condition", "the name of a transport in small letters")
		}
	case "rank":
		r.Rank, err = int32Of(token, value, 0)
	case "peer":
		r.Peer, err = int32Of(token, value, 0)
	case "channel":
		r.Channel, err = int32Of(token, value, -1)
	case "comm":
		r.Comm = new(uint64)
		*r.Comm, err = number(token, value, 0, math.MaxUint64)
	case "stream":
		var v uint64
		v, err = number(token, value, 0, 63)
		r.Stream = new(int)
		*r.Stream = int(v)
	case "min":
		var v uint64
		v, err = number(token, value, 1, math.MaxInt32)
		r.Min = int(v)
	case "after":
		r.After, err = number(token, value, 1, math.MaxUint64)
	case "every":
		r.Every, err = number(token, value, 1, math.MaxUint64)
	case "times":
		r.Times, err = number(token, value, 1, math.MaxUint64)
	case "prob":
		p, failed := strconv.ParseFloat(value, 64)
		if failed != nil || !(p >= 0 && p <= 1) {
			return wrong(token, "condition", "prob=0 to prob=1")
		}
		r.Prob = &p
	default:
		return wrong(token, "condition", "transport, rank, peer, comm, channel, stream, min, after, every, times or prob, each with =value")
	}
	return err
}

func (r *Rule) fate(token, name, value string, valued bool) error {
	switch {
	case name == "drop" && !valued:
		r.Fate.Drop = true
	case name == "reset" && !valued:
		r.Fate.Reset = true
	case name == "twice" && !valued:
		r.Fate.Twice = true
	case name == "delay":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 || d > longest {
			return wrong(token, "fate", "a duration such as delay=50ms, at most "+longest.String())
		}
		r.Fate.Delay = d
	case name == "flip":
		v, err := number(token, value, 1, math.MaxInt32)
		if err != nil {
			return err
		}
		r.Fate.Flip = int(v)
	case name == "reorder" && !valued:
		r.Fate.Reorder = true
	case name == "truncate":
		v, err := number(token, value, 1, math.MaxInt32)
		if err != nil {
			return err
		}
		r.Fate.Truncate = int(v)
	default:
		return wrong(token, "fate", "drop, reset, twice, reorder, delay=duration, flip=bit or truncate=bytes")
	}
	return nil
}

func int32Of(token, value string, low int64) (*int32, error) {
	v, err := strconv.ParseInt(value, 0, 32)
	if err != nil || v < low {
		return nil, wrong(token, "condition", fmt.Sprintf("a number from %d to %d", low, math.MaxInt32))
	}
	n := int32(v)
	return &n, nil
}

func number(token, value string, low, high uint64) (uint64, error) {
	v, err := strconv.ParseUint(value, 0, 64)
	if err != nil || v < low || v > high {
		return 0, wrong(token, "token", fmt.Sprintf("a number from %d to %d", low, high))
	}
	return v, nil
}
