package topology

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCPUSet: sets of CPUs and bus ids, as the kernel and others' tools write them.
func FuzzCPUSet(f *testing.F) {
	for _, s := range []string{"", "0", "0-3,8,10-11", "3-1", "x", "1-", "-1", "99999999", "0-99999999", "ff", "5555,55555555", "100000000,0", "g", "0000:01:00.0", "1:0.0", "01:00.0", "0000:zz:00.0", "0000:01:00.9", "12345678:01:00.0", "123456789:01:00.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if set, err := ParseCPUList(s); err == nil {
			again, err := ParseCPUList(set.String())
			require.NoError(t, err)
			require.Equal(t, set.String(), again.String())
		}
		if set, err := ParseCPUMask(s); err == nil {
			again, err := ParseCPUMask(set.Mask())
			require.NoError(t, err)
			require.Equal(t, set.String(), again.String())
		}
		if id, err := ParseBusID(s); err == nil {
			again, err := ParseBusID(string(id))
			require.NoError(t, err)
			require.Equal(t, id, again)
		}
	})
}
