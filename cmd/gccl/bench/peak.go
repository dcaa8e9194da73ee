package bench

import (
	"context"
	"math/bits"
	"time"
)

// pace is what a number of messages took together.
type pace struct {
	took     time.Duration // not negative
	messages int           // at least 1
}

// faster reports whether p is less a message than o: exactly, since what a message takes is seldom whole nanoseconds.
func (p pace) faster(o pace) bool {
	ph, pl := bits.Mul64(uint64(p.took), uint64(o.messages))
	oh, ol := bits.Mul64(uint64(o.took), uint64(p.messages))
	return ph < oh || ph == oh && pl < ol
}

// rate is the bandwidth of messages of so many bytes, in MB of 2^20 bytes a second.
func (p pace) rate(bytes int) float64 {
	return float64(bytes) * float64(p.messages) / (1 << 20) / p.took.Seconds()
}

// linkWindow is how many messages the peak is taken over at least, less one: fewer would fit into memory on their way, and say nothing of the
// link.
const linkWindow = 64

// peak is the best pace from the post of a message i to the completion of a message j that is at least linkWindow later, i and j included, or
// all if that is better. That is perftest's peak, but for the window. Both times of message i are those of event i of their kind, so they never
// fall, and no completion is before the post of what is linkWindow earlier. Where the clock stood still all the while, all is the answer. It fails
// when ctx ends.
//
// Perftest looks at all pairs, and therefore not beyond 20,000 messages. With posts as points (i, posted[i]) and completions as points
// (j+1, done[j]) a pair's pace is the slope between them, and of the posts before a completion only those on their upper hull can be the least
// steep, which one walk along the hull finds. The walk never goes back: if q is as good as p before it for this completion, then p is as steep
// or steeper to q as q is to the completion, and a later completion that p is better for than q is above the line from p through q, and so no
// better than what is found already. So it takes time in proportion to the messages.
func peak(ctx context.Context, posted, done []time.Duration, all pace) (pace, error) {
	best := all
	slope := func(from, to int) pace { return pace{posted[to] - posted[from], to - from} }
	hull := make([]int, 0, linkWindow) // posts, by number; each is reached less steeply than the one before
	for j := linkWindow; j < len(done); j++ {
		if j%linkLook == 0 && ctx.Err() != nil {
			return best, context.Cause(ctx)
		}
		i := j - linkWindow
		for n := len(hull); n > 1 && !slope(hull[n-1], i).faster(slope(hull[n-2], hull[n-1])); n-- {
			hull = hull[:n-1]
		}
		hull = append(hull, i)
		to := func(from int) pace { return pace{done[j] - posted[from], j - from + 1} }
		for len(hull) > 1 && !to(hull[0]).faster(to(hull[1])) {
			hull = hull[1:]
		}
		if p := to(hull[0]); p.faster(best) {
			best = p
		}
	}
	if best.took == 0 {
		best = all
	}
	return best, nil
}
