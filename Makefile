# gccl: build, show, test, verify. Needs Go as go.mod says, and nothing else; `make generate` may need more.

GO ?= go
BIN := bin/gccl

# What holds no system in it and builds anywhere.
PURE := ./collective ./kernels/... ./topology/... ./bootstrap/...

# What runs many ranks in one process: also under the race detector.
RACE := ./comm ./collective/engine ./transport/mem ./bootstrap

# Whole jobs: ranks as processes.
JOBS := ./tests/e2e ./tests/faults

# At most so long for one package's tests, on a slow and busy machine.
TIMEOUT ?= 10m
FUZZTIME ?= 20s

# make benchcmp: which benchmarks of kernels/cpu, how long each, how often.
BENCH ?= .
BENCHTIME ?= 20ms
BENCHCOUNT ?= 6

.PHONY: build demo test test-full test-gpu test-rdma test-rdma-full bench bench-rdma bench-peers benchcmp verify format tidy vet lint cross fresh generate fuzz gpu-tests clean

build:
	$(GO) build -o $(BIN) ./cmd/gccl

# An all-reduce between two real processes, which checks its results: by what gccl chooses, then over TCP.
demo: build
	$(BIN) bench all_reduce -b 8 -e 64M -f 4
	$(BIN) bench all_reduce -b 8 -e 1M -f 16 --transport tcp

test: vet
	$(GO) test -timeout $(TIMEOUT) ./...
	$(GO) test -race -short -timeout $(TIMEOUT) $(RACE)

# Every combination instead of a pairwise cover: takes hours. Then the whole jobs where processes may not look into each other, and under
# the race detector without assembly.
test-full: vet
	GCCL_TEST_FULL=1 $(GO) test -timeout 12h ./...
	GCCL_TEST_CONFINED=1 $(GO) test -count 1 -timeout 1h $(JOBS)
	$(GO) test -race -tags purego -timeout 2h $(JOBS)

# The tests that need GPUs, on emulated ones (kernels/cuda/emulator). It wants g++ and x86-64.
test-gpu:
	GO="$(GO)" tests/gpu/emulated.sh

# What needs RDMA devices: on this host's, or on Soft-RoCE in a virtual machine (Debian; it installs QEMU and unpacks a kernel in build/).
test-rdma:
	GO="$(GO)" tests/rdma/test.sh $(RDMA)

# The same with every combination, and 10,000 connections made and closed: takes hours.
test-rdma-full:
	GO="$(GO)" GCCL_TEST_FULL=1 tests/rdma/test.sh $(RDMA)

# gccl's connection beside perftest's by turns, in the virtual machine. PERFTEST="3 100 write_lat" takes less: rounds, messages, names.
# An emulated processor's own clock, which perftest reads and Linux would not trust, costs little; each look at another is a device's emulation.
bench-rdma: build
	tests/rdma/vm.sh --timeout 1800 --append "tsc=reliable clocksource=tsc" tests/rdma/perftest.sh $(CURDIR)/$(BIN) $(PERFTEST)

bench: build
	$(BIN) bench all_reduce -b 8 -e 64M -f 2 -n 100
	$(BIN) bench all_reduce -b 8 -e 64M -f 2 -n 100 --memory slice
	$(BIN) bench all_reduce -b 8 -e 64M -f 2 -n 100 --transport tcp

# gccl beside Open MPI, MPICH and Gloo, which it installs where it may. Takes long; PEERS="-modes shm -kinds all_reduce -repeats 1" takes less.
bench-peers:
	$(GO) run ./tests/peers $(PEERS)

# The vector kernels against plain Go: both builds in turn, then medians and what the default build gains.
benchcmp:
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(GO) test -tags purego -c -o $$dir/purego.test ./kernels/cpu; \
	$(GO) test -c -o $$dir/default.test ./kernels/cpu; \
	for i in $$(seq $(BENCHCOUNT)); do for build in purego default; do \
		$$dir/$$build.test -test.run '^$$' -test.bench '$(BENCH)' -test.benchtime $(BENCHTIME) >> $$dir/$$build; \
	done; done; \
	$(GO) tool benchstat purego=$$dir/purego default=$$dir/default

verify: format tidy vet lint cross fresh

format:
	@bad=$$(find . -name '*.go' -not -path './.git/*' -print0 | xargs -0 gofmt -l) || exit 1; \
	if [ -n "$$bad" ]; then echo "not gofmt'ed:"; echo "$$bad"; exit 1; fi

tidy:
	$(GO) mod tidy -diff

vet:
	$(GO) vet ./...

lint:
	$(GO) tool staticcheck ./...

cross:
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) build $(PURE)
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) build $(PURE)
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) build ./...
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) vet ./...

generate:
	$(GO) generate ./...

# Generated files begin with z; generating them again must change nothing.
GENERATED = find . -name 'z*' -type f -not -path './.git/*' -not -path './bin/*' -not -path './build/*' -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum

fresh:
	@before=$$($(GENERATED)); \
	$(MAKE) --no-print-directory generate || exit 1; \
	after=$$($(GENERATED)); \
	if [ "$$before" != "$$after" ]; then \
		echo "make generate changed generated files:"; \
		echo "$$before" > $${TMPDIR:-/tmp}/gccl-generated.$$$$; \
		echo "$$after" | diff $${TMPDIR:-/tmp}/gccl-generated.$$$$ -; \
		rm -f $${TMPDIR:-/tmp}/gccl-generated.$$$$; exit 1; fi

# Each fuzz target for FUZZTIME.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$package; \
		done; \
	done

# Test binaries that need nothing but a driver, and a script that runs them, for an x86-64 machine with a GPU. They need cgo.
gpu-tests:
	@mkdir -p build/gpu
	CGO_ENABLED=1 $(GO) build -ldflags "-s -w" -o build/gpu/gccl ./cmd/gccl
	CGO_ENABLED=1 $(GO) build -ldflags "-s -w" -o build/gpu/example ./examples/gpu
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/cuda.test ./kernels/cuda
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/gpu.test ./collective/gpu
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/comm.test ./comm
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/nvml.test ./topology/nvml
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/figures.test ./tests/gpu
	CGO_ENABLED=1 $(GO) test -c -ldflags "-s -w" -o build/gpu/faults.test ./tests/faults
	cp tests/gpu/run.sh tests/gpu/multi.sh tests/gpu/topology.sh build/gpu/

clean:
	rm -rf bin build
