//go:build linux && cgo

package verbs

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestNudge: who sent a short message, which asks for no completion, knows a little later that it is there.
func TestNudge(t *testing.T) {
	needDevices(t, 1)
	c := small()
	c.look = time.Hour // but for those here
	d := newDuo(t, testOptions(), c)
	d.pass(0, message(8))
	q := d.conns[0].(*conn).link.queues[0]
	require.False(t, q.settled())
	d.eps[0].look()
	require.EqualValues(t, 1, q.posted, "a request may well be under way when somebody looks")
	d.eps[0].look()
	d.until("the completion", q.settled)
	require.EqualValues(t, 2, q.posted)
	for range 3 {
		d.eps[0].look()
	}
	require.EqualValues(t, 2, q.posted, "who is idle is left alone")
	require.Zero(t, q.stall.looks)
	for n := range 100 { // and nothing was taken that messages need
		d.pass(n%2, message(8))
		for range 2 {
			d.eps[n%2].look()
		}
	}
}

// TestSilentDevice: a device that neither does what it was given nor says that it failed, and neither does its peer's, is found out: other QPs
// or TCP take its traffic, no byte of which is wrong, and where there are none the error says what stands still.
func TestSilentDevice(t *testing.T) {
	for _, test := range []struct {
		name     string
		devices  [2][]string
		fallback bool
		line     string
	}{
		{"others", [2][]string{{"rxe1", "rxe3"}, {"rxe2", "rxe4"}}, false, "goes by 1 others"},
		{"TCP", [2][]string{{"rxe1"}, {"rxe2"}}, true, "goes by TCP"},
		{"nothing else", [2][]string{{"rxe1"}, {"rxe2"}}, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			one, other := rails(t)
			one.Devices, other.Devices = only(test.devices[0]...), only(test.devices[1]...)
			var log lines
			for _, c := range []*Config{&one, &other} {
				c.Timeout, c.Retry, c.Fallback = 31, 7, test.fallback // hours
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
			}
			d := newDuo(t, testOptions(), one, other)
			for _, e := range d.eps {
				e.silence = 4
			}
			d.pass(0, message(1000))
			stray(t)
			start := time.Now()
			if test.line == "" {
				errs := d.fails()
				require.ErrorAs(t, errs[0], new(*transport.OwnError))
				require.True(t, errors.Is(errs[1], transport.ErrGone) || errors.As(errs[1], new(*transport.OwnError)), "%v", errs[1]) // perhaps its own is, too
				require.ErrorContains(t, errs[0], "neither done nor refused")
				require.ErrorContains(t, errs[0], d.eps[0].nics[0].device.Name())
			} else {
				d.traffic(60, 50_000, func(int) {})
				require.Positive(t, log.count("neither done nor refused"), log.text()) // whoever notices first tells the other
				require.Equal(t, 2, log.count(test.line), log.text())
			}
			t.Logf("%v after all went astray", time.Since(start))
		})
	}
}

// TestSilence: a device is given four times as long as its retries take.
func TestSilence(t *testing.T) {
	for _, test := range []struct {
		timeout, retry uint8
		want           time.Duration
	}{
		{17, 6, 20 * time.Second}, {14, 2, 5 * time.Second}, {31, 7, 281479 * time.Second},
	} {
		c := Config{Timeout: test.timeout, Retry: test.retry}
		require.InDelta(t, test.want.Seconds(), float64(c.silence()), 1, "timeout %d, retry %d", test.timeout, test.retry)
	}
}
