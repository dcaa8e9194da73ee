package shm

import (
	"fmt"
	"strconv"
	"strings"
)

const namePrefix = "gccl-"

// name is that of a socket: what tells, without connecting, whose it is and
// whether that process still lives.
type name struct {
	uid, pidns, pid, start uint64
	random                 uint64
}

func (n name) String() string {
	return fmt.Sprintf("%s%d-%d-%d-%d-%016x", namePrefix, n.uid, n.pidns, n.pid, n.start, n.random)
}

// parseName is the inverse of String; any other text is an error.
func parseName(s string) (name, error) {
	var n name
	f := strings.Split(strings.TrimPrefix(s, namePrefix), "-")
	if len(f) == 5 && len(s) < 128 {
		for i, p := range []*uint64{&n.uid, &n.pidns, &n.pid, &n.start} {
			*p, _ = strconv.ParseUint(f[i], 10, 64)
		}
		n.random, _ = strconv.ParseUint(f[4], 16, 64)
		if n.String() == s {
			return n, nil
		}
	}
	return name{}, fmt.Errorf("%q is not the name of a socket of gccl's, %s<uid>-<pid namespace>-<pid>-<start time>-<random>", s, namePrefix)
}
