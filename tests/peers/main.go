//go:build linux

// Peers compares gccl's collectives on host memory with those of Open MPI, MPICH and Gloo on this machine:
//
//	make bench-peers
//	go run ./tests/peers -modes shm -kinds all_reduce -repeats 3
//
// A machine that has no Go takes the two programs, gccl and this one, and whatever compilers and peers it has:
//
//	./peers -gccl ./gccl -dir out -install=false -modes shm16 -kinds all_reduce
//
// What is not installed it installs, where it may and apt-get is there, or leaves out and says so. Every peer is timed in one way: inputs are
// rewritten, the ranks meet on a page of shared memory, each times its call, and the slowest counts (native/page.h, and cmd/gccl/bench).
// Peers take turns slice by slice (a kind, a few sizes), several times over, because machines change their state within seconds; before each slice
// two processes exchange a cache line, and that time is kept with it. The tables hold medians over the repeats of medians over
// calls, and gccl's ratio to the best peer; every row of every slice goes to rows.jsonl, and a picture of each mode beside it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	var b comparison
	modes := flag.String("modes", "shm,tcp,veth,crowded,shm8,shm16", "what to measure: "+strings.Join(modeNames(), ", "))
	kinds := flag.String("kinds", strings.Join(allKinds, ","), "collectives")
	flag.IntVar(&b.repeats, "repeats", 3, "slices of each peer, kind and size")
	flag.Int64Var(&b.most, "most", 256<<20, "largest size in bytes")
	flag.StringVar(&b.dir, "dir", "build/peers", "where programs, rows and pictures go")
	flag.StringVar(&b.gccl, "gccl", "", "gccl's program; default: built from the source here")
	flag.BoolVar(&b.install, "install", os.Geteuid() == 0, "install what is missing with apt-get")
	flag.StringVar(&b.only, "peers", "", "only these, by commas; default: all that are there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b.kinds = strings.Split(*kinds, ",")
	for _, k := range b.kinds {
		if !slices.Contains(allKinds, k) {
			log.Fatalf("-kinds: no kind %q; there are %s", k, strings.Join(allKinds, ", "))
		}
	}
	if err := b.prepare(ctx); err != nil {
		log.Fatal(err)
	}
	for _, name := range strings.Split(*modes, ",") {
		i := slices.IndexFunc(allModes, func(m mode) bool { return m.name == name })
		if i < 0 {
			log.Fatalf("-modes: no mode %q; there are %s", name, strings.Join(modeNames(), ", "))
		}
		if err := b.run(ctx, allModes[i]); err != nil {
			log.Fatal(err)
		}
	}
}

// comparison is one run of all peers.
type comparison struct {
	kinds   []string
	repeats int
	most    int64
	dir     string
	gccl    string
	install bool
	only    string

	peers []peer
	rows  *json.Encoder
}

// run measures one mode, and prints and draws what came of it.
func (b *comparison) run(ctx context.Context, m mode) error {
	done, err := m.setUp()
	if err != nil {
		log.Printf("%s: left out: %v", m.name, err)
		return nil
	}
	defer done()
	var rows []Row
	for repeat := range b.repeats {
		for _, kind := range b.kinds {
			for _, g := range groups {
				if g = g.within(b.most, kind, m.ranks); len(g.sizes) == 0 {
					continue
				}
				for _, i := range rand.Perm(len(b.peers)) {
					p := b.peers[i]
					if !p.fits(m, kind) {
						continue
					}
					s := slice{mode: m, kind: kind, group: g, dir: b.dir}
					before := b.exchange(ctx)
					got, err := p.run(ctx, s)
					after := b.exchange(ctx)
					if ctx.Err() != nil {
						return ctx.Err()
					}
					if err != nil {
						log.Printf("%s %s %s %v: %v", p.name, m.name, kind, g.sizes, err)
					}
					for _, r := range got {
						r.Peer, r.Mode, r.Repeat, r.Exchange, r.After = p.name, m.name, repeat, before, after
						rows = append(rows, r)
						if err := b.rows.Encode(r); err != nil {
							return err
						}
					}
				}
			}
		}
		if m.name == "shm" || m.name == "tcp" {
			before := b.exchange(ctx)
			limits, err := b.limits(ctx)
			after := b.exchange(ctx)
			if err != nil {
				log.Printf("limits: %v", err)
			}
			for _, r := range limits {
				r.Peer, r.Mode, r.Repeat, r.Exchange, r.After = "limit", m.name, repeat, before, after
				rows = append(rows, r)
				if err := b.rows.Encode(r); err != nil {
					return err
				}
			}
		}
		fmt.Fprintf(os.Stderr, "%s: repeat %d of %d done\n", m.name, repeat+1, b.repeats)
	}
	fmt.Print(table(m.name, m.name, rows, rows))
	for _, s := range states(rows) {
		fmt.Print(table(m.name+", "+s.name, m.name, s.rows, rows))
	}
	return drawMode(filepath.Join(b.dir, m.name+".svg"), m.name, rows)
}
