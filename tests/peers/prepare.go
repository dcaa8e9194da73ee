//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"
)

// prepare builds gccl, our programs and what runs them, and finds out which peers there are.
func (b *comparison) prepare(ctx context.Context) (err error) {
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.dir, "rows.jsonl"))
	if err != nil {
		return err
	}
	b.rows = json.NewEncoder(f)
	gccl := filepath.Join(b.dir, "gccl")
	if _, err := output(ctx, nil, "go", "build", "-o", gccl, "./cmd/gccl"); err != nil {
		return err
	}
	peers := ours(gccl)
	if b.install {
		if err := b.fetch(ctx); err != nil {
			log.Printf("apt-get: %v", err)
		}
	}
	const native = "tests/peers/native/"
	if _, err := output(ctx, nil, "gcc", "-O2", "-march=native", "-o", b.program("limits"), native+"limits.c"); err != nil {
		return err
	}
	agent := b.program("agent")
	if err := os.WriteFile(agent, []byte("#!/bin/sh\n# Runs a command on a \"host\", a network namespace: agent [-x] HOST COMMAND…\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\nexec ip netns exec \"$host\" sh -c \"$*\"\n"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"openmpi", "mpich"} {
		compiler, launcher := "mpicc."+name, "mpirun."+name
		if _, err := exec.LookPath(compiler); err != nil {
			log.Printf("%s: left out: %v", name, err)
			continue
		}
		p := mpi{name: name, launcher: launcher, program: b.program(name), agent: agent}
		if _, err := output(ctx, nil, compiler, "-O2", "-o", p.program, native+"mpi.c"); err != nil {
			return err
		}
		peers = append(peers, p.peer())
	}
	if _, err := output(ctx, nil, "g++", "-std=c++17", "-O2", "-o", b.program("gloo"), native+"gloo.cc", "-lgloo", "-lpthread"); err != nil {
		log.Printf("gloo: left out: %v", err)
	} else {
		peers = append(peers, gloo(b.program("gloo")))
	}
	if b.only != "" {
		peers = slices.DeleteFunc(peers, func(p peer) bool { return !slices.Contains(strings.Split(b.only, ","), p.name) })
	}
	b.peers = peers
	return nil
}

func (b *comparison) program(name string) string { return filepath.Join(b.dir, name) }

// fetch installs what is missing.
func (b *comparison) fetch(ctx context.Context) error {
	var missing []string
	for program, packages := range map[string][]string{"mpicc.openmpi": {"openmpi-bin", "libopenmpi-dev"}, "mpicc.mpich": {"mpich", "libmpich-dev"}, "iperf3": {"iperf3"}, "g++": {"g++"}} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, packages...)
		}
	}
	if _, err := os.Stat("/usr/include/gloo"); err != nil {
		missing = append(missing, "libgloo-dev")
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	fmt.Fprintf(os.Stderr, "installing %s\n", strings.Join(missing, " "))
	_, err := output(ctx, []string{"DEBIAN_FRONTEND=noninteractive"}, append([]string{"apt-get", "install", "-y", "-q", "--no-install-recommends"}, missing...)...)
	return err
}
