package bench

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "8": 8, "1k": 1 << 10, "64K": 64 << 10, "1M": 1 << 20, "1.5M": 3 << 19, "2G": 2 << 30, "1T": 1 << 40,
		"4KiB": 4 << 10, "3Mi": 0, "0.5K": 512, "4194303T": 4194303 << 40,
	} {
		got, err := ParseSize(text)
		if text == "3Mi" {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "K", "-1", "+1", "1e3", "0x10", "1KB", "1 K", " 1", "8iB", "8B", "1KK", "1.5", "0.3K", "1..5K", "4194304T", "9223372036854775808",
		"4611686018427387904", "inf", "nan", "99999999999999999999999G", "1P", "1_000", ".", "1KiBi",
	} {
		_, err := ParseSize(text)
		require.Error(t, err, "%q", text)
		require.ErrorContains(t, err, "want bytes such as")
	}
}

func TestFormatSizeIsReadBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		n := rng.Int64N(1<<62) >> rng.IntN(62) << rng.IntN(20) & (1<<62 - 1)
		got, err := ParseSize(FormatSize(n))
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
	require.Equal(t, "64M", FormatSize(64<<20))
}

func FuzzParseSize(f *testing.F) {
	f.Add("1.5M")
	f.Add("8iB")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseSize(text)
		if err == nil && (n < 0 || n >= 1<<62) {
			t.Fatalf("%q is %d", text, n)
		}
	})
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		sizes Sizes
		want  []int64
	}{
		{Sizes{Min: 8, Max: 512, Factor: 4}, []int64{8, 32, 128, 512}},
		{Sizes{Min: 8, Max: 511, Factor: 4}, []int64{8, 32, 128}},
		{Sizes{Min: 8, Max: 8, Factor: 4}, []int64{8}},
		{Sizes{Min: 0, Max: 16, Factor: 4}, []int64{0, 1, 4, 16}},
		{Sizes{Min: 0, Max: 0, Factor: 2}, []int64{0}},
		{Sizes{Min: 1, Max: 10, Step: 4, Factor: 1}, []int64{1, 5, 9}},
		{Sizes{Min: 0, Max: 8, Step: 4}, []int64{0, 4, 8}},
		{Sizes{Min: 7, Max: 7}, []int64{7}},
		{Sizes{Min: 1 << 60, Max: 1<<62 - 1, Factor: 1 << 30}, []int64{1 << 60}},
		{Sizes{Min: 1, Max: 1<<62 - 1, Step: 1 << 61}, []int64{1, 1<<61 + 1}},
	} {
		require.NoError(t, c.sizes.Check())
		require.Equal(t, c.want, slices.Collect(c.sizes.All()), "%+v", c.sizes)
	}
	for _, s := range []Sizes{{Min: 9, Max: 8}, {Min: 1, Max: 8, Step: 0}, {Min: 1, Max: 8, Step: -1}, {Min: 1, Max: 8, Factor: -2}} {
		require.Error(t, s.Check(), "%+v", s)
	}
}
