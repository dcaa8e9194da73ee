//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// peer is a library that is measured.
type peer struct {
	name string
	fits func(m mode, kind string) bool
	run  func(ctx context.Context, s slice) ([]Row, error)
}

// patience bounds one slice.
const patience = 2 * time.Minute

// ours are gccl with Go slices, which is the comparison, and with its own memory, the better way.
func ours(binary string) (peers []peer) {
	for _, memory := range []string{"slice", "alloc"} {
		peers = append(peers, peer{
			name: "gccl-" + memory,
			fits: func(mode, string) bool { return true },
			run: func(ctx context.Context, s slice) ([]Row, error) {
				return runOurs(ctx, binary, memory, s)
			},
		})
	}
	return peers
}

// mpi is an implementation with its launcher and our program built by its compiler. Agent runs a command on a "host", pin on a processor.
type mpi struct {
	name, launcher, program, agent, pin string
}

func (p mpi) peer() peer {
	return peer{
		name: p.name,
		// MPICH spins without ever yielding: hours where ranks outnumber cores.
		fits: func(m mode, _ string) bool { return p.name == "openmpi" || !m.crowded() },
		run:  p.run,
	}
}

func (p mpi) run(ctx context.Context, s slice) ([]Row, error) {
	page, remove := newPage()
	defer remove()
	var args, env []string
	switch p.name {
	case "openmpi":
		args = []string{"--allow-run-as-root", "--use-hwthread-cpus", "--bind-to", "none", "--mca", "plm_rsh_agent", p.agent, "--mca", "pml", "ob1", "-x", "MALLOC_MMAP_MAX_", "-x", "MALLOC_TRIM_THRESHOLD_", "-x", "MALLOC_TOP_PAD_"}
		if s.mode.net == "" {
			args = append(args, "--mca", "btl", "vader,self")
		} else {
			args = append(args, "--mca", "btl", "tcp,self")
		}
		if s.mode.crowded() {
			args = append(args, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
		}
		if s.mode.net == "veth" {
			args = append(args, "--mca", "oob_tcp_if_include", "veth0", "--mca", "btl_tcp_if_include", "veth0", "--host", strings.Join(hosts, ","))
		}
	case "mpich":
		if s.mode.net != "" {
			env = append(env, "UCX_TLS=tcp,self", "MPIR_CVAR_NOLOCAL=1")
		}
		if s.mode.net == "veth" {
			args = append(args, "-launcher", "ssh", "-launcher-exec", p.agent, "-hosts", strings.Join(hosts, ","), "-iface", "veth0")
			env = append(env, "UCX_NET_DEVICES=veth0")
		}
	}
	args = append(args, "-n", strconv.Itoa(s.mode.ranks))
	if !s.mode.crowded() {
		var cpus []string
		for r := range s.mode.ranks {
			cpus = append(cpus, processor(r))
		}
		args = append(args, p.pin, strings.Join(cpus, ","))
	}
	args = append(append(args, p.program, s.kind, page, strconv.Itoa(s.group.calls), strconv.Itoa(s.group.warm)), s.sizes()...)
	if slices.Max(s.group.sizes) > 4<<20 { // what malloc has taken from the kernel it is to keep: else a call pays for fresh memory
		env = append(env, "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=4294967296", "MALLOC_TOP_PAD_=536870912")
	}
	name := []string{p.launcher}
	if s.mode.net == "veth" {
		name = []string{"ip", "netns", "exec", hosts[0], p.launcher}
	}
	out, err := output(ctx, env, append(name, args...)...)
	if err != nil {
		return nil, err
	}
	return parseRows(out)
}

// gloo is libgloo's own interface, in C++. Its processes have threads: they do worse pinned.
func gloo(program string) peer {
	return peer{
		name: "gloo",
		fits: func(m mode, kind string) bool { return kind != "reduce_scatter" && !m.crowded() },
		run: func(ctx context.Context, s slice) ([]Row, error) {
			return s.meeting(ctx, func(rank int, dir, page string) (env, args []string) {
				at := "127.0.0.1"
				if s.mode.net == "veth" {
					at = hosts[rank]
				}
				return nil, []string{program, strconv.Itoa(rank), strconv.Itoa(s.mode.ranks), dir, at, s.kind, page}
			})
		},
	}
}

// pytorch is Gloo as PyTorch's users have it.
func pytorch(script, library string) peer {
	return peer{
		name: "torch-gloo",
		fits: func(m mode, _ string) bool { return !m.crowded() },
		run: func(ctx context.Context, s slice) ([]Row, error) {
			nic := "lo"
			if s.mode.net == "veth" {
				nic = "veth0"
			}
			return s.meeting(ctx, func(rank int, dir, page string) (env, args []string) {
				return []string{"GLOO_SOCKET_IFNAME=" + nic}, []string{"python3", script, strconv.Itoa(rank), strconv.Itoa(s.mode.ranks), dir, library, s.kind, page}
			})
		},
	}
}

// meeting runs a process for each rank that gets a folder and a page to meet in, and then how many calls, after how many, of which sizes.
func (s slice) meeting(ctx context.Context, command func(rank int, dir, page string) (env, args []string)) ([]Row, error) {
	page, remove := newPage()
	defer remove()
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out, err := s.each(ctx, func(rank int) (env, args []string) {
		env, args = command(rank, dir, page)
		return env, append(append(args, strconv.Itoa(s.group.calls), strconv.Itoa(fewWarm)), s.sizes()...)
	})
	if err != nil {
		return nil, err
	}
	return parseRows(out)
}

func (s slice) sizes() (words []string) {
	for _, n := range s.group.sizes {
		words = append(words, strconv.FormatInt(n, 10))
	}
	return words
}

// newPage names a file on which the ranks of a slice meet.
func newPage() (path string, remove func()) {
	path = filepath.Join("/dev/shm", fmt.Sprintf("peers-%d-%d", os.Getpid(), time.Now().UnixNano()))
	return path, func() { os.Remove(path) }
}

// each runs a process for each rank, in its network namespace where there are such, and returns what rank 0 printed.
func (s slice) each(ctx context.Context, command func(rank int) (env, args []string)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	type result struct {
		out string
		err error
	}
	results := make([]result, s.mode.ranks)
	done := make(chan int, s.mode.ranks)
	for r := range s.mode.ranks {
		go func() {
			env, args := command(r)
			if s.mode.net == "veth" {
				args = append([]string{"ip", "netns", "exec", hosts[r]}, args...)
			}
			results[r].out, results[r].err = output(ctx, env, args...)
			done <- r
		}()
	}
	for range results {
		if r := <-done; results[r].err != nil {
			cancel() // the others wait for it
		}
	}
	for _, r := range results {
		if r.err != nil {
			return "", r.err
		}
	}
	return results[0].out, nil
}

// output runs a command with more in its environment, and returns what it printed.
func output(ctx context.Context, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // launchers end their ranks
	c.WaitDelay = 5 * time.Second
	c.Env = append(os.Environ(), env...)
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		words := strings.TrimSpace(said.String())
		if len(words) > 600 {
			words = "…" + words[len(words)-600:]
		}
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, words)
	}
	return out.String(), nil
}
