package collective

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// planMutants yields the plan with each small fault.
func planMutants(p *Plan) iter.Seq2[string, *Plan] {
	return func(yield func(string, *Plan) bool) {
		ok := true
		try := func(class string, change func(m *Plan)) {
			if ok {
				m := *p
				m.Ops, m.Srcs = slices.Clone(p.Ops), slices.Clone(p.Srcs)
				change(&m)
				ok = yield(class, &m)
			}
		}
		for i := range p.Ops {
			o := p.Ops[i]
			drop := func(m *Plan) { m.Ops = slices.Delete(m.Ops, i, i+1) }
			if o.Code == OpReuse {
				try("drop reuse", drop)
				if o.Behind() > 0 {
					try("reuse one more", func(m *Plan) { m.Ops[i].Src--; m.Ops[i].Msg++ })
				}
				if o.Msg > 0 {
					try("reuse one less", func(m *Plan) { m.Ops[i].Src++; m.Ops[i].Msg-- })
				}
				try("reuse behind", func(m *Plan) { m.Ops[i].Src++ })
			} else {
				try("drop op", drop)
			}
			if i+1 < len(p.Ops) {
				try("swap ops", func(m *Plan) { m.Ops[i], m.Ops[i+1] = m.Ops[i+1], m.Ops[i] })
			}
			if o.Code == OpSend || o.Code == OpRecv || o.Code == OpView {
				try("number", func(m *Plan) { m.Ops[i].Msg++ })
			}
			for k := range p.Sources(&o) {
				at := int(o.Src) + k
				src := p.Srcs[at]
				switch {
				case o.Code == OpSend && src.Flags&Lend == 0:
					try("lend", func(m *Plan) { m.Srcs[at].Flags |= Lend })
				case o.Code == OpSend:
					try("do not lend", func(m *Plan) { m.Srcs[at].Flags &^= Lend })
				case src.IsView() && src.Flags&Last != 0:
					try("drop last", func(m *Plan) { m.Srcs[at].Flags &^= Last })
				case src.IsView():
					try("set last", func(m *Plan) { m.Srcs[at].Flags |= Last })
				}
				if o.Code != OpSend {
					try("scale", func(m *Plan) { m.Srcs[at].Flags ^= Scaled })
				}
			}
		}
	}
}

// A mutant of a plan that Verify passes is one that no run finds fault with.
func TestMutantsOfPlans(t *testing.T) {
	most, runs := 4, 60
	if testing.Short() {
		most, runs = 3, 20
	}
	var fates tally
	t.Run("all", func(t *testing.T) {
		forCatalog(t, func(t *testing.T, a Algorithm) {
			for n := 2; n <= most; n++ {
				for _, opt := range allOptions {
					var plans []*Plan
					for _, s := range schedulesOf(a, n, n/2*btoi(a.Kind.Rooted())) {
						p, err := Compile(s, opt)
						require.NoError(t, err)
						plans = append(plans, p)
					}
					// One element a piece, two rounds.
					l := Layout{Count: 2 * plans[0].Pieces, Elem: Align, Round: plans[0].Pieces, Pieces: plans[0].Pieces}
					require.Empty(t, fault(plans, l, runs))
					for r := range plans {
						changed := slices.Clone(plans)
						for class, m := range planMutants(plans[r]) {
							changed[r] = m
							err := verifyPlans(changed)
							why := fault(changed, l, runs)
							if err == nil {
								require.Empty(t, why, "%d ranks, %+v, rank %d: %s", n, opt, r, class)
							}
							fate := "harmless"
							if why != "" {
								fate = "harmful"
							}
							if err == nil {
								fate += ", passed"
							} else {
								fate += ", flagged"
							}
							fates.add(class, fate)
						}
					}
				}
			}
		})
	})
	fates.report(t)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestMutantsOfPlansAreThere(t *testing.T) {
	classes := map[string]int{}
	for _, a := range catalog {
		for _, s := range schedulesOf(a, 5, 0) {
			for _, opt := range allOptions {
				p, err := Compile(s, opt)
				require.NoError(t, err)
				for class := range planMutants(p) {
					classes[class]++
				}
			}
		}
	}
	for _, class := range []string{"drop reuse", "reuse behind", "drop last", "lend", "do not lend", "swap ops", "drop op", "number", "scale"} {
		require.Positive(t, classes[class], "%s: %v", class, fmt.Sprint(classes))
	}
}
