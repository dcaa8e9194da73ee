package bench

import (
	"context"
	"fmt"
	"os"

	"github.com/gccl-project/gccl/comm"
)

// gate brings the ranks together before a timed call.
type gate struct {
	c    *comm.Comm
	page *page  // nil where the ranks share no memory
	why  string // the page is nil
}

// newGate finds out whether all ranks can map a page that the lowest makes in dir.
func newGate(ctx context.Context, c *comm.Comm, dir string) (*gate, error) {
	if c.Size() == 1 {
		return &gate{c: c, why: "one rank waits for nobody"}, nil
	}
	type offer struct{ Path, Nonce, Problem string }
	var own offer
	if c.Rank() == 0 {
		var err error
		if own.Path, own.Nonce, err = newPage(dir, c.Size()); err != nil {
			own.Problem = err.Error()
		} else {
			defer os.Remove(own.Path)
		}
	}
	offers, err := spread(ctx, c, own)
	if err != nil {
		return nil, err
	}
	if offers[0].Problem != "" {
		return &gate{c: c, why: offers[0].Problem}, nil
	}
	p, problem := openPage(offers[0].Path, offers[0].Nonce, c.Rank(), c.Size())
	own = offer{}
	if problem != nil {
		own.Problem = problem.Error()
	}
	// This is also what rank 0 waits for before it removes the file.
	results, err := spread(ctx, c, own)
	if err != nil {
		return nil, err
	}
	for q, r := range results {
		if r.Problem != "" {
			if p != nil {
				p.close()
			}
			return &gate{c: c, why: fmt.Sprintf("rank %d shares no memory with rank 0: %s", q, r.Problem)}, nil
		}
	}
	if c.Crowded() {
		p.polls = 1 // whoever we wait for needs our processor
	}
	return &gate{c: c, page: p}, nil
}

// name is what a row's Barrier says.
func (g *gate) name() string {
	if g.page != nil {
		return "page"
	}
	return "comm"
}

// wait returns when all ranks have called it as often.
func (g *gate) wait(ctx context.Context) error {
	if g.page != nil {
		return g.page.wait(ctx)
	}
	return g.c.Barrier(ctx)
}

func (g *gate) close() {
	if g.page != nil {
		g.page.close()
	}
}
