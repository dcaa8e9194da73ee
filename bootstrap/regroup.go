package bootstrap

import (
	"context"
	"slices"
)

// Regroup agrees and makes a session of the list. An Agree and a Sub are not enough: if a rank dies in the Sub, some may have the new
// session already and others not. So the ranks agree once more, afterwards, and take the session only if nobody is missing.
func (s *session) Regroup(ctx context.Context) (sub Session, alive []int, err error) {
	alive, err = s.Agree(ctx)
	for err == nil {
		var subErr error
		sub, subErr = s.sub(ctx, alive, true)
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
