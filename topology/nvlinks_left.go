package topology

// nvlinksLeft counts the NVLinks that no channel has taken, by direction.
type nvlinksLeft struct {
	direct  [][]int
	out, in []int // to and from the switches
}

func newNVLinksLeft(g *Graph, gpus []NodeID) nvlinksLeft {
	n := len(gpus)
	l := nvlinksLeft{make([][]int, n), make([]int, n), make([]int, n)}
	direct, toSwitch := g.bundles()
	for i, a := range gpus {
		l.direct[i] = make([]int, n)
		for j, b := range gpus {
			l.direct[i][j] = direct[[2]NodeID{a, b}]
		}
		l.out[i], l.in[i] = toSwitch[a], toSwitch[a]
	}
	return l
}

func (l nvlinksLeft) between(i, j int) int { return max(l.direct[i][j], min(l.out[i], l.in[j])) }

// take uses one NVLink for every edge of a section that goes over NVLink, if all of them still have one. It reports whether it
// did.
func (l nvlinksLeft) take(s section) bool {
	for pass := range 2 {
		for k, over := range s.over {
			i, j := s.order[k], s.order[(k+1)%len(s.order)]
			switch {
			case !over:
			case l.between(i, j) == 0:
				return false
			case pass == 0:
			case l.direct[i][j] > 0:
				l.direct[i][j]--
			default:
				l.out[i]--
				l.in[j]--
			}
		}
	}
	return true
}
