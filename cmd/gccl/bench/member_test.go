package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMembers(t *testing.T) {
	a := member{Host: "a", Boot: "1", Processors: 2, Transports: []string{"", "shm", "tcp"}}
	b := member{Host: "a", Boot: "1", Processors: 2, Transports: []string{"shm", "", "tcp"}}
	c := member{Host: "a", Boot: "2", Processors: 2, Transports: []string{"tcp", "tcp", ""}}
	all := []member{a, b, c}
	require.Equal(t, 2, hosts(all), "two hosts of one name")
	require.Equal(t, 2, onHostOf(all, 1))
	require.Equal(t, "shm+tcp", transports(all))
	require.Equal(t, "shm for 0-1, tcp for 0-2 1-2", pairs(all))
	require.Equal(t, "none", transports([]member{{Transports: []string{""}}}))

	many := make([]member, 8)
	for i := range many {
		many[i].Transports = []string{"shm", "shm", "shm", "shm", "shm", "shm", "shm", "shm"}
	}
	require.Equal(t, "shm for 28 pairs", pairs(many))
}
