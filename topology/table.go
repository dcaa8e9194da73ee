package topology

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// table is a matrix as nvidia-smi prints it.
type table struct {
	columns []string
	rows    []tableRow
	legend  map[string]string // NIC0 → mlx5_0
}

type tableRow struct {
	line  int
	name  string
	cells []string // as many as columns, or fewer
}

// readTable reads up to and including the legend. Tabs divide cells; where an editor made them spaces, runs of spaces do.
func readTable(r io.Reader) (*table, error) {
	t := &table{legend: map[string]string{}}
	lines := bufio.NewScanner(io.LimitReader(r, maxFile))
	lines.Buffer(nil, 1<<20)
	names := false
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(stripEscapes(lines.Text()), " \r\n")
		switch text := strings.TrimSpace(line); {
		case text == "" || strings.HasPrefix(text, "#"):
		case t.columns == nil:
			t.columns = splitCells(line)
			if len(t.columns) > 0 && t.columns[0] == "" {
				t.columns = t.columns[1:]
			}
			if len(t.columns) == 0 || len(t.columns) > maxDevices {
				return nil, fmt.Errorf("line %d has %d columns; want 1 to %d", n, len(t.columns), maxDevices)
			}
			if _, ok := gpuNumber(t.columns[0]); !ok && !strings.HasPrefix(t.columns[0], "NIC") {
				return nil, fmt.Errorf("line %d begins with %.40q; want the header of nvidia-smi topo: GPU0 GPU1 …", n, t.columns[0])
			}
		case strings.HasPrefix(text, "Legend:"), strings.HasPrefix(text, "NIC Legend:"):
			names = true
		case names:
			if nic, name, ok := strings.Cut(text, ":"); ok && strings.HasPrefix(nic, "NIC") {
				t.legend[nic] = strings.TrimSpace(name)
			}
		default:
			cells := splitCells(line)
			if len(cells) > 1 && cells[0] == "" { // -p2p indents its rows
				cells = cells[1:]
			}
			if len(cells) > len(t.columns)+1 || len(t.rows) == maxDevices {
				return nil, fmt.Errorf("line %d has %d cells, the header %d columns", n, len(cells)-1, len(t.columns))
			}
			t.rows = append(t.rows, tableRow{n, cells[0], cells[1:]})
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, errors.New("a line is longer than 1 MiB; want the output of nvidia-smi topo -m")
	} else if err != nil {
		return nil, err
	}
	if t.columns == nil {
		return nil, fmt.Errorf("it is empty; want the output of nvidia-smi topo -m")
	}
	return t, nil
}

// splitCells divides a line and trims its cells. The empty cell that ends some lines is dropped.
func splitCells(line string) []string {
	var cells []string
	if strings.Contains(line, "\t") {
		cells = strings.Split(strings.TrimRight(line, "\t"), "\t")
	} else {
		for _, word := range strings.Fields(line) {
			last := len(cells) - 1
			if last >= 0 && slices.Contains([]string{"CPU Affinity", "NUMA Affinity", "GPU NUMA", "GPU NUMA ID"}, cells[last]+" "+word) {
				cells[last] += " " + word
				continue
			}
			cells = append(cells, word)
		}
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// stripEscapes removes the terminal's escape sequences: nvidia-smi underlines its header even into a file.
func stripEscapes(s string) string {
	for {
		at := strings.Index(s, "\x1b[")
		if at < 0 {
			return s
		}
		end := strings.IndexFunc(s[at+2:], func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return s[:at]
		}
		s = s[:at] + s[at+2+end+1:]
	}
}
