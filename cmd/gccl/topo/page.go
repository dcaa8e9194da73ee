package topo

import (
	"html/template"
	"io"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>
  body { font-family: system-ui, sans-serif; margin: 2rem; background: #ffffff; color: #1b1f24; }
  .wide { overflow-x: auto; }
  .wide svg { max-width: max(100%, 1200px); height: auto; } /* smaller text would be too small */
  table { border-collapse: collapse; font-size: 13px; }
  th, td { padding: 4px 9px; text-align: center; border: 1px solid #d0d7de; }
  th:first-child { text-align: left; }
  pre { font-size: 13px; line-height: 1.4; }
  .LOC { color: #57606a; } .NVL, .NVB, .C2C { background: #d3edd5; } .PIX, .PXB { background: #d5e6fa; }
  .P2C, .PXN { background: #ecd9f3; } .PHB { background: #fdf3c4; } .SYS, .DIS { background: #ffdfbd; }
  @media (prefers-color-scheme: dark) {
    body { background: #14171c; color: #e6e8eb; }
    th, td { border-color: #3a424c; }
    .LOC { color: #9aa4af; } .NVL, .NVB, .C2C { background: #1f4a27; } .PIX, .PXB { background: #1c3d5e; }
    .P2C, .PXN { background: #4a2c57; } .PHB { background: #4f4618; } .SYS, .DIS { background: #5c3b14; }
  }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<div class="wide">{{.Picture}}</div>
{{if .Columns}}
<h2>Paths</h2>
<div class="wide"><table>
<tr><th></th>{{range .Columns}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr><th>{{.Name}}</th>{{range .Cells}}<td class="{{.Type}}" title="{{printf "%.4g" .GBs}} GB/s">{{.Type}}</td>{{end}}</tr>
{{end}}</table></div>
<p>{{range .Legend}}<span class="{{.Type}}">&nbsp;{{.Type}}&nbsp;</span> {{.Means}} &ensp; {{end}}</p>
{{end}}
<h2>In words</h2>
<pre class="wide">{{.Text}}</pre>
</body>
</html>
`))

type row struct {
	Name  string
	Cells []topology.Path
}

type meaning struct {
	Type  topology.PathType
	Means string
}

// HTML writes the picture, all paths and the text on one page that needs nothing else.
func HTML(w io.Writer, h *topology.Host, g *topology.Graph) error {
	var text strings.Builder
	if err := Text(&text, h, g); err != nil {
		return err
	}
	data := struct {
		Title   string
		Picture template.HTML
		Columns []string
		Rows    []row
		Legend  []meaning
		Text    string
	}{
		Title: "Topology: " + (&picture{g: g}).title(), Picture: template.HTML(draw(g)), Text: text.String(),
		Legend: []meaning{
			{topology.PathLOC, "itself"}, {topology.PathNVL, "NVLink"}, {topology.PathNVB, "NVLink through a GPU"}, {topology.PathC2C, "chip to chip"}, {topology.PathPIX, "one PCIe switch"},
			{topology.PathPXB, "several switches"}, {topology.PathP2C, "chip to chip, then PCIe"}, {topology.PathPXN, "NVLink, then PCIe"}, {topology.PathPHB, "host bridge"}, {topology.PathSYS, "between NUMA nodes"},
		},
	}
	ends := append(g.GPUs(), g.Nets()...)
	for _, id := range ends {
		data.Columns = append(data.Columns, g.Name(id))
		paths, r := g.Paths(id), row{Name: g.Name(id)}
		for _, other := range ends {
			r.Cells = append(r.Cells, paths[other])
		}
		data.Rows = append(data.Rows, r)
	}
	return page.Execute(w, data)
}
