package collective_test

import (
	"fmt"
	"strings"

	"github.com/gccl-project/gccl/collective"
)

// A user's own algorithm, as text: an all-reduce of four ranks in which the even ranks sum
// up in pairs, rank 0 adds the two sums, and tells the others.
func ExampleParse() {
	texts := []string{`
all_reduce ranks=4 root=0 rank=0 pieces=1 temps=1
step
  recvreduce 1 temp[0] = in[0] + wire
step
  recvreduce 2 out[0] = temp[0] + wire
step
  send 1 out[0]
  send 2 out[0]
  send 3 out[0]
`, `
all_reduce ranks=4 root=0 rank=1 pieces=1 temps=0
step
  send 0 in[0]
step
step
  recv 0 out[0]
`, `
all_reduce ranks=4 root=0 rank=2 pieces=1 temps=1
step
  recvreduce 3 temp[0] = in[0] + wire
step
  send 0 temp[0]
step
  recv 0 out[0]
`, `
all_reduce ranks=4 root=0 rank=3 pieces=1 temps=0
step
  send 2 in[0]
step
step
  recv 0 out[0]
`}
	var all []collective.Schedule
	for _, text := range texts {
		s, err := collective.Parse(strings.NewReader(text))
		if err != nil {
			fmt.Println(err)
			return
		}
		all = append(all, s)
	}
	fmt.Println("verified:", collective.Verify(all, collective.Options{}))

	// A slip: rank 3 sends to rank 1, who isn't listening.
	all[3].Steps[0][0].Peer = 1
	fmt.Println(collective.Verify(all, collective.Options{}))
	all[3].Steps[0][0].Peer = 2

	p, err := collective.Compile(all[2], collective.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, op := range p.Linear() {
		fmt.Println(op.Code, "peer", op.Peer)
	}
	// Output:
	// verified: <nil>
	// collective: deadlock (linear): rank 0 waits at its op 2 of 7: view 1 of message 0 from rank 2; rank 1 waits at its op 1 of 2: receive of message 0 from rank 0 into out[0.0]; rank 2 waits at its op 0 of 4: view 0 of message 0 from rank 3; rank 3 waits at its op 1 of 2: receive of message 0 from rank 0 into out[0.0]
	// view peer 3
	// fold peer 0
	// send peer 0
	// recv peer 0
}

// ExampleBuild shows what a rank does in a ring.
func ExampleBuild() {
	s, err := collective.Build(collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 1, "ring")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(s)
	fmt.Printf("%+v\n", s.Cost())
	// Output:
	// all_reduce ranks=2 root=0 rank=1 pieces=2 temps=0
	// step
	//   send 0 in[1]
	//   recvreduce 0 out[0] = wire + in[0]
	// step
	//   send 0 out[0]
	//   recv 0 out[1]
	// {Steps:2 Sends:2 Receives:2 Duplex:2 MaxFanout:1 MaxFanin:1 Folds:1 Folded:2 Copied:0}
}
