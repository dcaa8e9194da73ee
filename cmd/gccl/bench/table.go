package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// table prints rows as nccl-tests does; p99 stands behind its columns.
type table struct{ w io.Writer }

const shownRanks = 16

// head is what stands over the table: who and where, and how it is measured.
func (r *runner) head() string {
	var b strings.Builder
	n, cfg := len(r.members), r.cfg
	fmt.Fprintf(&b, "# gccl bench %s: world %s, %s, %s\n", cfg.Kind.Name, plural(n, "rank"), plural(hosts(r.members), "host"), transports(r.members))
	for q, m := range r.members {
		if q == shownRanks && n > shownRanks+1 {
			fmt.Fprintf(&b, "#  and %d more ranks\n", n-q)
			break
		}
		fmt.Fprintf(&b, "#  rank %2d  pid %7d on %s (%s)\n", q, m.PID, m.Host, plural(m.Processors, "processor"))
	}
	algorithm := cfg.Algorithm
	if algorithm == "" {
		algorithm = "the tuner's"
	}
	fmt.Fprintf(&b, "# transports: %s; memory: %s; algorithm: %s\n", pairs(r.members), cfg.Memory, algorithm)
	switch {
	case n == 1:
		b.WriteString("# a world of 1: nothing leaves the rank, so there is no bandwidth to print; start more with --ranks, `gccl run` or a launcher\n")
	case cfg.BackToBack:
		fmt.Fprintf(&b, "# time: mean of %s back to back, of the slowest rank; inputs are not rewritten\n", plural(cfg.Iters, "iteration"))
	case r.gate.page == nil:
		fmt.Fprintf(&b, "# time: median of %s, of the slowest rank in each; before each a Barrier, whose end the ranks see at different times (%s)\n", plural(cfg.Iters, "iteration"), r.gate.why)
	default:
		fmt.Fprintf(&b, "# time: median of %s, of the slowest rank in each; before each a barrier in a shared page\n", plural(cfg.Iters, "iteration"))
	}
	if cfg.Agg > 1 {
		fmt.Fprintf(&b, "# an iteration is %d calls, and its time divided by that\n", cfg.Agg)
	}
	return b.String()
}

func (t *table) begin(head string) error {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("#\n")
	fmt.Fprintf(&b, "#%57s  %-32s  %-32s\n", "", "out-of-place", "in-place")
	fmt.Fprintf(&b, "#%11s %13s %9s %7s %6s", "size", "count", "type", "redop", "root")
	for range 2 {
		fmt.Fprintf(&b, "  %8s %7s %7s %7s", "time", "algbw", "busbw", "#wrong")
	}
	fmt.Fprintf(&b, "  %8s %8s\n", "p99", "p99")
	fmt.Fprintf(&b, "#%11s %13s %9s %7s %6s", "(B)", "(elements)", "", "", "")
	for range 2 {
		fmt.Fprintf(&b, "  %8s %7s %7s %7s", "(us)", "(GB/s)", "(GB/s)", "")
	}
	fmt.Fprintf(&b, "  %8s %8s\n", "out", "in")
	_, err := io.WriteString(t.w, b.String())
	return err
}

// row prints a message: out of place, and in place if there is that.
func (t *table) row(rows []Row) error {
	var b strings.Builder
	first, root := rows[0], -1 // as nccl-tests writes none
	if first.Root != nil {
		root = *first.Root
	}
	fmt.Fprintf(&b, "%12d %13d %9s %7s %6d", first.Bytes, first.Count, first.DType, first.RedOp, root)
	for i := range 2 {
		if i < len(rows) {
			r := rows[i]
			fmt.Fprintf(&b, "  %8s %7s %7s %7s", short(r.time), shortOr(r.AlgBW), shortOr(r.BusBW), wrongText(r.Wrong))
		} else {
			fmt.Fprintf(&b, "  %8s %7s %7s %7s", "N/A", "N/A", "N/A", "N/A")
		}
	}
	for i := range 2 {
		text := "N/A"
		if i < len(rows) {
			text = short(rows[i].TimeUS.P99)
		}
		sep := "  "
		if i == 1 {
			sep = " "
		}
		fmt.Fprintf(&b, "%s%8s", sep, text)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(t.w, b.String())
	return err
}

func (t *table) end(r *Result) error {
	checked := false
	for _, row := range r.Rows {
		checked = checked || row.Wrong != nil
	}
	var b strings.Builder
	switch {
	case !checked:
		b.WriteString("# Out of bounds values : not checked\n")
	case r.Wrong == 0:
		b.WriteString("# Out of bounds values : 0 OK\n")
	default:
		fmt.Fprintf(&b, "# Out of bounds values : %d FAILED\n", r.Wrong)
	}
	if r.BusBW > 0 {
		fmt.Fprintf(&b, "# Avg bus bandwidth    : %s GB/s\n", strconv.FormatFloat(r.BusBW, 'f', 4, 64))
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// short writes a number with about four digits.
func short(v float64) string {
	switch {
	case v < 100:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 1000:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func shortOr(v *float64) string {
	if v == nil {
		return "-"
	}
	return short(*v)
}

func wrongText(n *int64) string {
	if n == nil {
		return "N/A"
	}
	return strconv.FormatInt(*n, 10)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
