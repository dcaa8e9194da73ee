package bootstrap

import (
	"context"
	"slices"
)

// Regroup makes a session of the ranks of s that are left, which all of them call, and returns it with the list of these ranks: its
// rank i is rank alive[i] of s. All ranks get the same, however many die meanwhile; s is still to be closed.
//
// An Agree and a Sub of its list alone are not enough: if a rank dies in the Sub, some may have the new session already and others
// not. So the ranks agree once more, afterwards, and take the session only if nobody is missing.
func Regroup(ctx context.Context, s Session) (sub Session, alive []int, err error) {
	alive, err = s.Agree(ctx)
	for err == nil {
		var subErr error
		sub, subErr = s.Sub(ctx, alive)
		var again []int
		again, err = s.Agree(ctx)
		same := err == nil && slices.Equal(again, alive)
		switch {
		case subErr == nil && same:
			return sub, alive, nil
		case subErr == nil:
			sub.Close()
		case same: // nobody died: ctx ended, or this rank is short of something
			return nil, nil, subErr
		}
		alive = again
	}
	return nil, nil, err
}
