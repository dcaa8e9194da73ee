package topology

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUC15_PrefixAndExact(t *testing.T) {
	tests := []struct {
		filter string
		takes  []string
		leaves []string
	}{
		{"", []string{"eth0", "lo", "docker0"}, nil},
		{"  ", []string{"eth0", "lo"}, nil},
		{"eth", []string{"eth", "eth0", "eth10"}, []string{"lo", "e", "bond0"}},
		{"=eth1", []string{"eth1"}, []string{"eth10", "eth", "eth1.5"}},
		{"eth1", []string{"eth1", "eth10", "eth1.5"}, []string{"eth", "eth0"}},
		{"^docker,lo", []string{"eth0", "ib0"}, []string{"docker0", "docker_gwbridge", "lo", "lo0"}},
		{"^=eth1,eth2", []string{"eth0", "eth10", "eth20"}, []string{"eth1", "eth2"}},
		{" ^ = eth1 , eth2 ,", []string{"eth0", "eth10"}, []string{"eth1", "eth2"}},
		{"bond0", []string{"bond0", "bond0.2973"}, []string{"bond1"}},
		{"=bond0", []string{"bond0"}, []string{"bond0.2973"}},
		{"eth0,,ib,", []string{"eth0", "ib3"}, []string{"eth1"}},
	}
	for _, tt := range tests {
		f := filter(t, tt.filter)
		for _, name := range tt.takes {
			require.True(t, f.Match(name, 0), "%q takes %s", tt.filter, name)
		}
		for _, name := range tt.leaves {
			require.False(t, f.Match(name, 0), "%q leaves %s", tt.filter, name)
		}
	}
}

func TestUC15_HCAs(t *testing.T) {
	type port struct {
		name string
		port int
	}
	hcas := []port{{"mlx5_1", 1}, {"mlx5_1", 2}, {"mlx5_10", 1}, {"mlx5_11", 1}, {"mlx5_2", 1}, {"mlx5_2", 2}}
	tests := []struct {
		filter string
		takes  []port
	}{
		{"", hcas},
		{"mlx5_1", hcas[:4]},
		{"=mlx5_1", hcas[:2]},
		{"=mlx5_1:1,mlx5_2:2", []port{hcas[0], hcas[5]}},
		{"mlx5_1:1", []port{hcas[0], hcas[2], hcas[3]}},
		{"^=mlx5_1:1,mlx5_2", []port{hcas[1], hcas[2], hcas[3]}},
		{"^mlx5_1", hcas[4:]},
	}
	for _, tt := range tests {
		f := filter(t, tt.filter)
		var got []port
		for _, h := range hcas {
			if f.Match(h.name, h.port) {
				got = append(got, h)
			}
		}
		require.Equal(t, tt.takes, got, tt.filter)
	}
}

func TestUC14_BadFilters(t *testing.T) {
	for in, says := range map[string]string{
		"^":           "it names no device",
		"=":           "it names no device",
		"^=":          "it names no device",
		" ^ , ,":      "it names no device",
		",":           "it names no device",
		"=^eth0":      `"^eth0" has its own sign`,
		"^docker,^lo": `"^lo" has its own sign`,
		"=eth1,=eth2": `"=eth2" has its own sign`,
		"mlx5_1:":     `port ""`,
		"mlx5_1:x":    `port "x"`,
		"mlx5_1:0":    `port "0"`,
		"mlx5_1:-1":   `port "-1"`,
		"mlx5_1:256":  `port "256"`,
		":1":          `"" is not a device name`,
		"eth0 eth1":   `"eth0 eth1" is not a device name`,
		"a/b":         `"a/b" is not a device name`,
	} {
		_, err := ParseFilter(in)
		require.ErrorContains(t, err, says, "%q", in)
		require.ErrorContains(t, err, "want a comma-separated list")
	}
}

func FuzzParseFilter(f *testing.F) {
	for _, s := range []string{"", "^", "eth,ib", "^=a:1,b", "=mlx5_1:2", " a , b ,"} {
		f.Add(s, "eth0")
	}
	f.Fuzz(func(t *testing.T, s, name string) {
		got, err := ParseFilter(s)
		if err != nil {
			return
		}
		again, err := ParseFilter(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
		for port := range 3 {
			require.Equal(t, got.Match(name, port), again.Match(name, port))
		}
	})
}
