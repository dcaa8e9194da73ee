package topology

import "math"

// tour orders the numbers 0 to n-1, from a start on, so that the sum of cost[i][next] is least; the last one's next is the
// start. Of equal orders it is the first one by number. Above exactTour numbers it is a good order, not the best.
func tour(cost [][]float64, start int) []int {
	n := len(cost)
	switch {
	case n <= 1:
		return []int{start}
	case n <= exactTour:
		return bestTour(cost, start)
	}
	return improve(cost, nearestTour(cost, start))
}

// exactTour is where the best order, at 2^n·n² steps, takes too long.
const exactTour = 16

// bestTour is Held and Karp's: rest[visited][at] is the least cost of what remains.
func bestTour(cost [][]float64, start int) []int {
	n := len(cost)
	all := 1<<n - 1
	rest := make([]float64, (all+1)*n)
	for visited := all; visited > 0; visited-- {
		if visited>>start&1 == 0 {
			continue
		}
		for at := range n {
			if visited>>at&1 == 0 {
				continue
			}
			best := math.Inf(1)
			if visited == all {
				best = cost[at][start]
			}
			for next := range n {
				if visited>>next&1 == 0 {
					best = min(best, cost[at][next]+rest[(visited|1<<next)*n+next])
				}
			}
			rest[visited*n+at] = best
		}
	}
	order, visited := []int{start}, 1<<start
	for at := start; len(order) < n; {
		for next := range n {
			if visited>>next&1 == 0 && cost[at][next]+rest[(visited|1<<next)*n+next] == rest[visited*n+at] {
				order, visited, at = append(order, next), visited|1<<next, next
				break
			}
		}
	}
	return order
}

func nearestTour(cost [][]float64, start int) []int {
	seen := make([]bool, len(cost))
	order := []int{start}
	seen[start] = true
	for at := start; len(order) < len(cost); {
		best := -1
		for next := range cost {
			if !seen[next] && (best < 0 || cost[at][next] < cost[at][best]) {
				best = next
			}
		}
		order, seen[best], at = append(order, best), true, best
	}
	return order
}

// improve moves runs of up to three numbers elsewhere while that makes the order cheaper. Every move lowers the cost, so it
// ends; the bound keeps a large host's plan short.
func improve(cost [][]float64, order []int) []int {
	n := len(order)
	total := func(o []int) (sum float64) {
		for k, i := range o {
			sum += cost[i][o[(k+1)%n]]
		}
		return sum
	}
	best := total(order)
	try := make([]int, 0, n)
	for tries, better := 0, true; better && tries < 1<<16; {
		better = false
		for run := 1; run <= 3; run++ {
			for from := 1; from+run <= n; from++ {
				for to := 1; to+run <= n; to++ {
					if to == from {
						continue
					}
					tries++
					piece := order[from : from+run]
					without := append(append([]int{}, order[:from]...), order[from+run:]...)
					try = append(append(append(try[:0], without[:to]...), piece...), without[to:]...)
					if sum := total(try); sum < best {
						best, better = sum, true
						copy(order, try)
					}
				}
			}
		}
	}
	return order
}
