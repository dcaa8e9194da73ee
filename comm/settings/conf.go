package settings

import (
	"fmt"
	"strings"
)

// conf is what a file in the format of NCCL's nccl.conf says: NAME=value on each line.
type conf struct {
	name   string
	lines  []confLine
	broken []string // "FILE:LINE: what is wrong", of the lines that say nothing
}

type confLine struct {
	name, value string
	line        int
}

// parseConf reads lines that end in LF or CRLF. A # begins a comment at the start of a line or after a space; a value
// may stand in quotes, of which it then says all that is between them.
func parseConf(name string, text []byte) conf {
	c := conf{name: name}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(strings.TrimPrefix(key, "export "))
		if !ok || key == "" || strings.ContainsAny(key, " \t\"'") {
			c.broken = append(c.broken, fmt.Sprintf("%s:%d: %.60q is not NAME=value", name, n, line))
			continue
		}
		value, ok = unquote(strings.TrimSpace(value))
		if !ok {
			c.broken = append(c.broken, fmt.Sprintf("%s:%d: the value of %s has an opening quote and no closing one", name, n, key))
			continue
		}
		c.lines = append(c.lines, confLine{key, value, n})
	}
	return c
}

func unquote(value string) (string, bool) {
	if value == "" || value[0] != '"' && value[0] != '\'' {
		for i := range len(value) {
			if value[i] == '#' && (i == 0 || value[i-1] == ' ' || value[i-1] == '\t') {
				value = value[:i]
				break
			}
		}
		return strings.TrimSpace(value), true
	}
	end := strings.IndexByte(value[1:], value[0])
	if end < 0 {
		return "", false
	}
	return value[1 : 1+end], true
}
