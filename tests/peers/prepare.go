//go:build linux

package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed native
var native embed.FS

// prepare builds our programs and what runs them, and finds out which peers there are.
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
	if b.gccl == "" {
		b.gccl = b.program("gccl")
		if _, err := output(ctx, nil, "go", "build", "-o", b.gccl, "./cmd/gccl"); err != nil {
			return fmt.Errorf("building gccl (-gccl names one that is built): %w", err)
		}
	}
	peers := ours(b.gccl)
	if b.install {
		if err := b.fetch(ctx); err != nil {
			log.Printf("apt-get: %v", err)
		}
	}
	sources := b.program("native")
	if err := b.unpack(sources); err != nil {
		return err
	}
	if err := b.build(ctx, "limits", "gcc", append(vectors, "-O2", filepath.Join(sources, "limits.c"))...); err != nil {
		log.Printf("limits: left out: %v", err)
	}
	agent, pin := filepath.Join(sources, "agent.sh"), filepath.Join(sources, "pin.sh")
	for _, name := range []string{"openmpi", "mpich"} {
		compiler, launcher, err := findMPI(ctx, name)
		if err == nil {
			err = b.build(ctx, name, compiler, "-O2", filepath.Join(sources, "mpi.c"))
		}
		if err != nil {
			log.Printf("%s: left out: %v", name, err)
			continue
		}
		peers = append(peers, mpi{name: name, launcher: launcher, program: b.program(name), agent: agent, pin: pin}.peer())
	}
	if err := b.build(ctx, "gloo", "g++", "-std=c++17", "-O2", filepath.Join(sources, "gloo.cc"), "-lgloo", "-lpthread"); err != nil {
		log.Printf("gloo: left out: %v", err)
	} else {
		peers = append(peers, gloo(b.program("gloo")))
	}
	_, err = output(ctx, nil, "python3", "-c", "import torch.distributed as d; assert d.is_gloo_available()")
	if err == nil {
		err = b.build(ctx, "page.so", "gcc", "-O2", "-shared", "-fPIC", filepath.Join(sources, "page.c"))
	}
	if err != nil {
		log.Printf("torch-gloo: left out: %v", err)
	} else {
		peers = append(peers, pytorch(filepath.Join(sources, "pytorch.py"), b.program("page.so")))
	}
	if b.only != "" {
		peers = slices.DeleteFunc(peers, func(p peer) bool { return !slices.Contains(strings.Split(b.only, ","), p.name) })
	}
	b.peers = peers
	return nil
}

// vectors is what a compiler is told of the processor. It names no model, so that the program runs on another machine too.
var vectors = map[string][]string{"amd64": {"-mavx2"}}[runtime.GOARCH]

// build makes a program of ours. One that is there already, made on another machine, does where its compiler is lacking or fails.
func (b *comparison) build(ctx context.Context, name, compiler string, args ...string) error {
	_, err := output(ctx, nil, append([]string{compiler, "-o", b.program(name)}, args...)...)
	if _, there := os.Stat(b.program(name)); err != nil && there == nil {
		log.Printf("%s: the one in %s is used: %v", name, b.dir, err)
		return nil
	}
	return err
}

// unpack writes the native sources and scripts into dir, since this program may run far from its source.
func (b *comparison) unpack(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := native.ReadDir("native")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := native.ReadFile("native/" + f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// launchers has what an implementation's launcher says of itself.
var launchers = map[string]string{"openmpi": "Open MPI", "mpich": "HYDRA"}

// findMPI finds an implementation's compiler and launcher: by Debian's names for them, by everybody's on the path, or where vendors put them.
func findMPI(ctx context.Context, name string) (compiler, launcher string, err error) {
	if launcher, err = exec.LookPath("mpirun." + name); err == nil {
		return "mpicc." + name, launcher, nil
	}
	for _, dir := range []string{"", "/opt/hpcx/ompi/bin/", "/usr/local/mpi/bin/", "/opt/amazon/openmpi/bin/", "/usr/lib64/" + name + "/bin/", "/usr/local/" + name + "/bin/"} {
		if launcher, err := exec.LookPath(dir + "mpirun"); err == nil {
			if said, err := output(ctx, nil, launcher, "--version"); err == nil && strings.Contains(said, launchers[name]) {
				return dir + "mpicc", launcher, nil
			}
		}
	}
	return "", "", fmt.Errorf("no mpirun.%s, nor an mpirun that says it is of %s", name, launchers[name])
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
