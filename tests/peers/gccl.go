//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// runOurs runs gccl's own benchmark, a process a rank, each on a core of its own where there are enough.
func runOurs(ctx context.Context, binary, memory string, s slice) ([]Row, error) {
	file := filepath.Join(s.dir, "gccl.jsonl")
	defer os.Remove(file)
	factor := int64(2)
	if len(s.group.sizes) > 1 {
		factor = s.group.sizes[1] / s.group.sizes[0]
	}
	at, transport := "127.0.0.1", "shm"
	if s.mode.net != "" {
		transport = "tcp"
	}
	if s.mode.net == "veth" {
		at = hosts[0]
	}
	first, last := s.group.sizes[0], s.group.sizes[len(s.group.sizes)-1]
	root := fmt.Sprintf("%s:%d", at, 20_000+rand.IntN(12_000))
	_, err := s.each(ctx, func(rank int) (env, args []string) {
		env = []string{"GCCL_RANK=" + strconv.Itoa(rank), "GCCL_WORLD_SIZE=" + strconv.Itoa(s.mode.ranks), "GCCL_ROOT=" + root, "GCCL_JOB_ID=peers"}
		args = []string{binary, "bench", s.kind, "-b", strconv.FormatInt(first, 10), "-e", strconv.FormatInt(last, 10), "-f", strconv.FormatInt(factor, 10),
			"-n", strconv.Itoa(s.group.calls), "-w", strconv.Itoa(s.group.warm), "--memory", memory, "--transport", transport, "--json", file}
		return env, s.mode.pinned(rank, args)
	})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for lines := bufio.NewScanner(strings.NewReader(string(b))); lines.Scan(); {
		var r struct {
			Kind   string
			Bytes  int64
			Iters  int
			Wrong  *int64
			In     bool                       `json:"in_place"`
			TimeUS struct{ P50, P99 float64 } `json:"time_us"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return rows, err
		}
		if r.Wrong == nil || *r.Wrong != 0 {
			return rows, fmt.Errorf("wrong or unchecked: %s", lines.Text())
		}
		if r.In != (s.kind == "broadcast") {
			continue // peers work out of place, but for the kind that has only one buffer with them
		}
		rows = append(rows, Row{Kind: r.Kind, Bytes: r.Bytes, P50: r.TimeUS.P50, P99: r.TimeUS.P99, Calls: r.Iters})
	}
	return rows, nil
}
