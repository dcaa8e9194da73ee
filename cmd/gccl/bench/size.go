package bench

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
)

// ParseSize reads a number of bytes as nccl-tests does: digits, also with a fraction, and a letter K,
// M, G or T for powers of 1024; KiB and the like are taken too. It must be a whole number of bytes
// below 2^62.
func ParseSize(s string) (int64, error) {
	bad := func() (int64, error) {
		return 0, fmt.Errorf("%q is no size; want bytes such as 8, 64K, 1.5M, 2G (powers of 1024), below 2^62", s)
	}
	digits := strings.TrimRight(s, "kKmMgGtTiB")
	shift := 0
	switch strings.ToUpper(strings.TrimSuffix(s[len(digits):], "iB")) {
	case "":
		if digits != s {
			return bad()
		}
	case "K":
		shift = 10
	case "M":
		shift = 20
	case "G":
		shift = 30
	case "T":
		shift = 40
	default:
		return bad()
	}
	if strings.Trim(digits, "0123456789.") != "" {
		return bad() // what ParseFloat would take besides: signs, exponents, Inf
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n >= 1<<62>>shift {
			return bad()
		}
		return n << shift, nil
	}
	v, err := strconv.ParseFloat(digits, 64)
	v *= float64(int64(1) << shift)
	if err != nil || v >= 1<<62 || v != math.Trunc(v) {
		return bad()
	}
	return int64(v), nil
}

// FormatSize is the shortest text that ParseSize reads as n.
func FormatSize(n int64) string {
	for _, u := range []struct {
		letter string
		shift  int
	}{{"T", 40}, {"G", 30}, {"M", 20}, {"K", 10}} {
		if n != 0 && n&(1<<u.shift-1) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.letter
		}
	}
	return strconv.FormatInt(n, 10)
}

// Sizes are the message sizes of a run, in bytes: from Min to Max, each Factor times the one before
// where Factor is at least 2, else Step more. A Min of 0 is a size of its own; after it come 1 byte
// and its multiples, or Step.
type Sizes struct {
	Min, Max, Step int64
	Factor         int64
}

// Check returns an error that names the flag and the value that make no sense.
func (s Sizes) Check() error {
	switch {
	case s.Max < s.Min:
		return fmt.Errorf("-e %s is less than -b %s", FormatSize(s.Max), FormatSize(s.Min))
	case s.Factor < 0 || s.Factor > 1<<30:
		return fmt.Errorf("-f %d; want 2 to 2^30, or 1 to add -i bytes instead", s.Factor)
	case s.Factor < 2 && s.Step < 1 && s.Min < s.Max:
		return fmt.Errorf("-i %d; want at least 1 byte", s.Step)
	}
	return nil
}

// All returns the sizes in ascending order.
func (s Sizes) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for n := s.Min; n <= s.Max; {
			if !yield(n) {
				return
			}
			switch {
			case s.Factor >= 2 && n == 0:
				n = 1
			case s.Factor >= 2:
				if n > s.Max/s.Factor {
					return
				}
				n *= s.Factor
			case s.Step < 1 || n > s.Max-s.Step:
				return
			default:
				n += s.Step
			}
		}
	}
}
