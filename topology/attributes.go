package topology

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// attributes are those of an element; what is read is struck off. The first error stays.
type attributes struct {
	m   map[string]string
	err error
}

func newAttributes(e xml.StartElement) (*attributes, error) {
	a := &attributes{m: map[string]string{}}
	for _, attr := range e.Attr {
		if attr.Name.Space != "" || !isName(attr.Name.Local) {
			continue // of another namespace: not NCCL's
		}
		if _, twice := a.m[attr.Name.Local]; twice {
			return nil, fmt.Errorf("<%s>: attribute %s stands twice", e.Name.Local, attr.Name.Local)
		}
		a.m[attr.Name.Local] = strings.TrimSpace(attr.Value)
	}
	return a, nil
}

func (a *attributes) text(name string) string {
	s := a.m[name]
	delete(a.m, name)
	return s
}

// int is decimal, or hexadecimal with 0x. Absent and empty are the default.
func (a *attributes) int(name string, absent, low, high int) int {
	s := a.text(name)
	if s == "" {
		return absent
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if trimmed := strings.TrimLeft(s, "0"); err != nil && trimmed != "" {
		n, err = strconv.ParseInt(trimmed, 10, 64) // "08"
	}
	if err != nil || n < int64(low) || n > int64(high) {
		if a.err == nil {
			a.err = fmt.Errorf("%s=%q; want a whole number from %d to %d", name, s, low, high)
		}
		return absent
	}
	return int(n)
}

// wordOf is one of the admitted ones, or "" where it is absent or empty.
func wordOf[T ~string](a *attributes, name string, admitted []T) T {
	word := T(a.text(name))
	if word == "" {
		return ""
	}
	if err := checkWord(name, word, admitted); err != nil && a.err == nil {
		a.err = err
	}
	return word
}

func (a *attributes) bool(name string) bool { return a.int(name, 0, math.MinInt32, math.MaxInt32) != 0 }

func (a *attributes) float(name string) float64 {
	s := a.text(name)
	if s == "" {
		return 0
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		if a.err == nil {
			a.err = fmt.Errorf("%s=%q; want a number", name, s)
		}
		return 0
	}
	return f
}

// rest is what was not read.
func (a *attributes) rest() map[string]string {
	if len(a.m) == 0 {
		return nil
	}
	return a.m
}

func lower(s string) string { return strings.ToLower(s) }

// parseGTs reads "16 GT/s", "16.0 GT/s PCIe" and "2.5 GT/s". Anything else, such as "Unknown", is 0.
func parseGTs(s string) float64 {
	number, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	f, err := strconv.ParseFloat(strings.TrimSuffix(number, "GT/s"), 64)
	if err != nil || !(f > 0 && f <= 1024) {
		return 0
	}
	return f
}

// isName takes the names of attributes that all XML parsers do.
func isName(s string) bool {
	for i, c := range s {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c != '-' && c != '.' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != ""
}
