package bootstrap

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A leader that decided and died may have told a single rank. Whoever hears it from that one passes it on to those who took it for the new
// leader, whichever came first: they have said that they called, and ask no more.
func TestDecisionIsPassedOn(t *testing.T) {
	for _, first := range []bool{true, false} {
		s, links := still() // of rank 2, with ranks 1, 3 and 4
		three, four := links[1], links[2]
		s.agreement.called, s.agreement.returned = 3, 2
		list := []int{1, 2, 3, 4}
		called := agreeMessage{step: stepCalled, number: 3}
		if first {
			s.agreeArrived(three, called)
		}
		s.agreeArrived(four, agreeMessage{step: stepDecide, number: 3, ranks: list})
		if !first {
			s.agreeArrived(three, called)
		}
		var said []byte
		for _, c := range three.queue {
			said = append(said, c.b...)
		}
		typ, body, err := readFrame(bytes.NewReader(said), maxFrame)
		require.NoError(t, err, "nothing is passed on")
		require.Equal(t, frameAgree, typ)
		m, err := parseAgree(&fields{b: body}, s.size)
		require.NoError(t, err)
		require.Equal(t, agreeMessage{step: stepDecide, number: 3, ranks: list}, m)
		require.Empty(t, links[0].queue, "rank 1 has not called")
	}
}
