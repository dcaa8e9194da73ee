package topology

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// CPUSet is a set of CPU numbers: bit n%64 of word n/64, without zero words at the end. The nil set is empty, and in a [Graph]
// says that the CPUs are not known.
type CPUSet []uint64

// maxCPU is the largest CPU number of any Linux (CONFIG_NR_CPUS ends at 8192).
const maxCPU = 8191

// ParseCPUList reads the kernel's list form: "0-3,8,10-11". The empty list is the empty set.
func ParseCPUList(s string) (CPUSet, error) {
	var set CPUSet
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 32)
		b, errB := strconv.ParseUint(to, 10, 32)
		if errA != nil || errB != nil || a > b || b > maxCPU {
			return nil, fmt.Errorf("CPU list %q: %q is not a number or range up to %d", s, item, maxCPU)
		}
		for n := a; n <= b; n++ {
			set = set.with(int(n))
		}
	}
	return set, nil
}

// ParseCPUMask reads the kernel's mask form, hexadecimal in groups of 32 bits with the highest first: "ff,ffff0000". The first
// group may be short.
func ParseCPUMask(s string) (CPUSet, error) {
	s = strings.TrimSpace(s)
	groups := strings.Split(s, ",")
	if s == "" || len(groups) > (maxCPU+1)/32 {
		return nil, fmt.Errorf("CPU mask %q: want hexadecimal groups of 32 bits, at most %d", s, (maxCPU+1)/32)
	}
	var set CPUSet
	for i, group := range groups {
		v, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(group), "0x"), 16, 32)
		if err != nil {
			return nil, fmt.Errorf("CPU mask %q: %q is not 32 bits in hexadecimal", s, group)
		}
		base := 32 * (len(groups) - 1 - i)
		for ; v != 0; v &= v - 1 {
			set = set.with(base + bits.TrailingZeros64(v))
		}
	}
	return set, nil
}

// CPUSetOf returns the set of some CPU numbers, of which those below 0 or above any Linux's are left out.
func CPUSetOf(cpus ...int) CPUSet {
	var set CPUSet
	for _, n := range cpus {
		if n >= 0 && n <= maxCPU {
			set = set.with(n)
		}
	}
	return set
}

func (s CPUSet) with(n int) CPUSet {
	for len(s) <= n/64 {
		s = append(s, 0)
	}
	s[n/64] |= 1 << (n % 64)
	return s
}

// Has reports whether CPU n is in s.
func (s CPUSet) Has(n int) bool { return n >= 0 && n/64 < len(s) && s[n/64]>>(n%64)&1 != 0 }

// Len returns how many CPUs are in s.
func (s CPUSet) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// List returns the CPUs in ascending order.
func (s CPUSet) List() (cpus []int) {
	for n := range 64 * len(s) {
		if s.Has(n) {
			cpus = append(cpus, n)
		}
	}
	return cpus
}

// And returns the CPUs that are in both.
func (s CPUSet) And(t CPUSet) CPUSet {
	var both CPUSet
	for i := range min(len(s), len(t)) {
		both = append(both, s[i]&t[i])
	}
	for len(both) > 0 && both[len(both)-1] == 0 {
		both = both[:len(both)-1]
	}
	if len(both) == 0 {
		return nil
	}
	return both
}

// Or returns the CPUs that are in either.
func (s CPUSet) Or(t CPUSet) CPUSet {
	if len(s) < len(t) {
		s, t = t, s
	}
	either := append(CPUSet(nil), s...)
	for i, w := range t {
		either[i] |= w
	}
	return either
}

// Equal reports whether the same CPUs are in both.
func (s CPUSet) Equal(t CPUSet) bool { return s.String() == t.String() }

// String returns the list form, "0-3,8".
func (s CPUSet) String() string {
	var b strings.Builder
	for n := 0; n < 64*len(s); n++ {
		if !s.Has(n) {
			continue
		}
		from := n
		for s.Has(n + 1) {
			n++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(from))
		if n > from {
			fmt.Fprintf(&b, "-%d", n)
		}
	}
	return b.String()
}

// Mask returns the mask form: "000000ff,ffff0000".
func (s CPUSet) Mask() string {
	if len(s) == 0 {
		return "00000000"
	}
	var groups []string
	for i := len(s) - 1; i >= 0; i-- {
		groups = append(groups, fmt.Sprintf("%08x", s[i]>>32), fmt.Sprintf("%08x", s[i]&0xffffffff))
	}
	if groups[0] == "00000000" {
		groups = groups[1:]
	}
	return strings.Join(groups, ",")
}

// MarshalText gives the list form.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the list form.
func (s *CPUSet) UnmarshalText(b []byte) (err error) {
	*s, err = ParseCPUList(string(b))
	return err
}
