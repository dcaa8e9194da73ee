// Package topo prints a host's topology for gccl topo: as text for people and in the forms that other programs read.
package topo

import (
	"io"
	"maps"
	"slices"

	"github.com/gccl-project/gccl/topology"
)

// Format writes a host in one form. The facts are nil for a graph that was loaded.
type Format func(w io.Writer, h *topology.Host, g *topology.Graph) error

// Formats returns all forms by name.
func Formats() map[string]Format {
	return map[string]Format{
		"text":   Text,
		"matrix": func(w io.Writer, _ *topology.Host, g *topology.Graph) error { return g.WriteMatrix(w) },
		"xml":    func(w io.Writer, _ *topology.Host, g *topology.Graph) error { return g.WriteXML(w) },
		"svg":    SVG,
		"html":   HTML,
		"json":   func(w io.Writer, _ *topology.Host, g *topology.Graph) error { return g.WriteJSON(w) },
	}
}

// FormatNames returns the names of all forms.
func FormatNames() []string { return slices.Sorted(maps.Keys(Formats())) }
