//go:build linux

package main

import (
	"bufio"
	"fmt"
	"strings"
)

// Row is what one peer took for one kind and size in one slice: a line of rows.jsonl. Times are µs of the slowest rank.
type Row struct {
	Peer     string  `json:"peer"`
	Mode     string  `json:"mode"`
	Kind     string  `json:"kind"`
	Bytes    int64   `json:"bytes"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	Wrong    int64   `json:"wrong"` // elements
	Calls    int     `json:"calls"`
	Repeat   int     `json:"repeat"`
	Exchange float64 `json:"exchange_us"` // of a cache line each way, just before
	After    float64 `json:"after_us"`    // and just after
}

// parseRows reads what the native programs print: kind, bytes, median, 99th percentile, wrong elements, calls.
func parseRows(text string) (rows []Row, err error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		var r Row
		if _, err := fmt.Sscanf(lines.Text(), "%s %d %g %g %d %d", &r.Kind, &r.Bytes, &r.P50, &r.P99, &r.Wrong, &r.Calls); err != nil {
			continue // launchers have their own things to say
		}
		if r.Wrong != 0 {
			return rows, fmt.Errorf("%d elements of %s of %d bytes are wrong", r.Wrong, r.Kind, r.Bytes)
		}
		rows = append(rows, r)
	}
	return rows, nil
}
