//go:build linux

package main

import (
	"image/color"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gccl-project/gccl/cmd/gccl/bench"
)

// colours of the peers' lines: told apart also by those who see fewer colours.
var colours = map[string]color.Color{
	"gccl-alloc": color.RGBA{0, 90, 181, 255}, "gccl-slice": color.RGBA{86, 180, 233, 255},
	"openmpi": color.RGBA{220, 50, 32, 255}, "mpich": color.RGBA{230, 159, 0, 255}, "gloo": color.RGBA{0, 158, 115, 255},
}

// sizeTicks are powers of 8 from 8 bytes on.
func sizeTicks(low, high float64) (ticks []plot.Tick) {
	for n := int64(8); float64(n) <= high; n *= 8 {
		if float64(n) >= low {
			ticks = append(ticks, plot.Tick{Value: float64(n), Label: bench.FormatSize(n)})
		}
	}
	return ticks
}

// timeTicks are powers of ten of a µs.
func timeTicks(low, high float64) (ticks []plot.Tick) {
	for t := 0.01; t <= high; t *= 10 {
		for k := 1.0; k < 10 && k*t <= high; k++ {
			if tick := (plot.Tick{Value: k * t}); tick.Value >= low {
				if k == 1 {
					tick.Label = strconv.FormatFloat(t, 'f', -1, 64)
				}
				ticks = append(ticks, tick)
			}
		}
	}
	return ticks
}

// drawMode makes a picture of a mode: a panel for each kind, time against size, a line for each peer, and the limit dashed.
func drawMode(path, mode string, rows []Row) error {
	const columns, lines, width, height = 3, 2, 15 * vg.Inch, 9 * vg.Inch
	cells := summary(rows)
	panels := make([][]*plot.Plot, lines)
	for i := range panels {
		panels[i] = make([]*plot.Plot, columns)
	}
	for i, kind := range allKinds {
		p := plot.New()
		p.Title.Text = mode + " " + strings.ReplaceAll(kind, "_", " ")
		p.X.Label.Text, p.Y.Label.Text = "bytes", "µs"
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(sizeTicks), plot.TickerFunc(timeTicks)
		p.Add(plotter.NewGrid())
		lines, sizes := map[string]plotter.XYs{}, map[int64]bool{}
		for k, c := range cells {
			if k.kind == kind {
				lines[k.peer] = append(lines[k.peer], plotter.XY{X: float64(k.bytes), Y: c.p50})
				sizes[k.bytes] = true
			}
		}
		for n := range sizes {
			if l := limit(cells, mode, kind, n); l > 0 {
				lines["limit"] = append(lines["limit"], plotter.XY{X: float64(n), Y: l})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(lines)) {
			points := lines[name]
			slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Width, dots.Radius = vg.Points(1.8), vg.Points(2)
			line.Color, dots.Color = color.Gray{90}, color.Gray{90}
			if c, ok := colours[name]; ok {
				line.Color, dots.Color = c, c
			} else {
				line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
			}
			p.Add(line, dots)
			p.Legend.Add(name, line)
		}
		if len(lines) > 0 {
			panels[i/columns][i%columns] = p
		}
	}
	canvas := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: lines, Cols: columns, PadX: 12, PadY: 12, PadTop: 6, PadBottom: 6, PadLeft: 6, PadRight: 6}
	for y, row := range plot.Align(panels, tiles, draw.New(canvas)) {
		for x, c := range row {
			if panels[y][x] != nil {
				panels[y][x].Draw(c)
			}
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = canvas.WriteTo(f)
	return err
}
