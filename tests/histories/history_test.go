package histories

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run only the history of this seed, and say what happens")
	fromFlag = flag.Uint64("from", 1, "first seed")
	manyFlag = flag.Int("many", 0, "how many seeds; 0: 2,000, or 100,000 with GCCL_TEST_FULL")
	keepFlag = flag.Int("keep", 1, "go on until so many seeds have failed")
)

// stuck is how much of the wall's time one history may take.
const stuck = 60 * time.Second

// run runs one history in a bubble of its own. Whatever crashes in it, the traceback says how to run it again.
func run(t *testing.T, h History, trace func(string, ...any)) (res Result) {
	watch := time.AfterFunc(stuck, func() {
		fmt.Fprintf(os.Stderr, "%s: stuck for %v; %v\n%v\n", repeat(h.Seed), stuck, h.Fault, h.Program)
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		os.Exit(1)
	})
	defer watch.Stop()
	pprof.Do(t.Context(), pprof.Labels("again", repeat(h.Seed)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) { res = h.Run(trace) })
	})
	return res
}

func repeat(seed uint64) string {
	return fmt.Sprintf("go test ./tests/histories -run TestHistory -seed=%d -v", seed)
}

func TestHistory(t *testing.T) {
	t.Setenv("GODEBUG", os.Getenv("GODEBUG")+",tracebacklabels=1")
	if *seedFlag != 0 {
		h := New(*seedFlag)
		t.Logf("%v\n%v", h.Fault, h.Program)
		res := run(t, h, t.Logf)
		t.Logf("%+v", res)
		if len(res.Wrong) > 0 {
			t.Errorf("%d things are wrong: %s", len(res.Wrong), strings.Join(res.Wrong, "\n"))
		}
		return
	}
	many, budget := 2000, 90*time.Second
	if os.Getenv("GCCL_TEST_FULL") != "" {
		many, budget = 100_000, 0
	}
	if *manyFlag > 0 {
		many, budget = *manyFlag, 0
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // a history leaves little behind, and much garbage
	began, done, failed := time.Now(), 0, 0
	var virtual time.Duration
	var cover coverage
	for seed := *fromFlag; done < many && (budget == 0 || time.Since(began) < budget); seed++ {
		h := New(seed)
		res := run(t, h, nil)
		done++
		virtual += res.Virtual
		cover.add(h, res)
		if len(res.Wrong) > 0 {
			t.Errorf("%s\n  %v\n  %s", repeat(seed), h.Fault, strings.Join(res.Wrong[:min(3, len(res.Wrong))], "\n  "))
			if failed++; failed >= *keepFlag {
				break
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d histories, %v of virtual time, in %v: %.0f a second", done, virtual.Round(time.Second), took.Round(time.Millisecond), float64(done)/took.Seconds())
	t.Log("\n" + cover.String())
	if failed == 0 && done >= 2000 { // of fewer, on a slow machine, some kinds may not have come up
		if thin := cover.thin(); thin != "" {
			t.Error(thin)
		}
	}
}
