package collective

import "testing"

func TestSpike(t *testing.T) {
	for _, a := range catalog {
		for n := 2; n <= 16; n++ {
			for _, opt := range []Options{{}, {InPlace: true}, {Scale: true}, {InPlace: true, Scale: true}} {
				var all []Schedule
				for r := range n {
					all = append(all, a.Build(Shape{Kind: a.Kind, Ranks: n}, r))
				}
				if err := Verify(all, opt); err != nil {
					t.Fatalf("%s n=%d %+v: %v", a.Name, n, opt, err)
				}
			}
		}
	}
	s, _ := Build(Shape{Kind: AllReduce, Ranks: 2}, 1, "ring")
	p, _ := Compile(s, Options{})
	t.Log(s)
	for i := range p.Ops {
		t.Log(p.describe(i), p.Ops[i])
	}
}
