package comm

import "testing"

func TestCrowded(t *testing.T) {
	on := func(threads int, cpus ...int) hello { return hello{Processors: cpus, Threads: threads} }
	for _, c := range []struct {
		name string
		host []hello
		want bool
	}{
		{"two ranks, two processors", []hello{on(2, 0, 1), on(2, 0, 1)}, false},
		{"three ranks, two processors", []hello{on(2, 0, 1), on(2, 0, 1), on(2, 0, 1)}, true},
		{"each bound to its own", []hello{on(1, 0), on(1, 1)}, false},
		{"both bound to one", []hello{on(1, 3), on(1, 3)}, true},
		{"a quota of one processor", []hello{on(1, 0, 1, 2, 3), on(1, 0, 1, 2, 3)}, true},
		{"a quota that suffices", []hello{on(2, 0, 1, 2, 3), on(2, 0, 1, 2, 3)}, false},
	} {
		if got := crowded(c.host); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
