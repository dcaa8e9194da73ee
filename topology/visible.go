package topology

import (
	"slices"
	"strconv"
	"strings"
)

// visible returns the GPUs that CUDA shows a process, in the order of its ordinals, and what people should know of that order. NoNode stands
// for a GPU that the process sees while nobody knows which it is.
//
// Of the process's environment, NAME=value, it looks at CUDA_VISIBLE_DEVICES, as the driver does (580.159.04, tried on an H200): a list of
// ordinals or of UUIDs or their beginnings, not of both, which ends at the first that names nothing; where one stands twice, initialization
// fails and there is no GPU at all. Of MIG's parts of GPUs a process sees one, the first.
func (h *Host) visible(g *Graph, environ []string) (gpus []NodeID, note string) {
	all := g.GPUs()
	if order, _ := variable(environ, "CUDA_DEVICE_ORDER"); order != "PCI_BUS_ID" && h.unlike() {
		note = "; caution: the GPUs differ, and CUDA may number the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
	}
	list, set := variable(environ, "CUDA_VISIBLE_DEVICES")
	if !set {
		return all, note
	}
	for i, word := range strings.Split(list, ",") {
		named := strings.HasPrefix(word, "GPU-") || strings.HasPrefix(word, "MIG-")
		if named && i == 0 {
			note = ""
		}
		at, ok := NoNode, false
		switch {
		case strings.HasPrefix(word, "MIG-"):
			at, ok = h.partOf(g, word), i == 0
		case named:
			at, ok = byUUIDPrefix(g, word)
		default:
			if n, isNumber := leadingNumber(word); isNumber && n < len(all) {
				at, ok = all[n], true
			}
		}
		if !ok || i > 0 && named != strings.HasPrefix(list, "GPU-") {
			break
		}
		if at != NoNode && slices.Contains(gpus, at) {
			gpus = nil
			break
		}
		gpus = append(gpus, at)
	}
	return gpus, " by CUDA_VISIBLE_DEVICES=" + shorten(list) + note
}

// leadingNumber is what C's strtol reads of a text.
func leadingNumber(text string) (n int, ok bool) {
	text = strings.TrimLeft(text, " \t")
	end := 0
	for end < len(text) && (isDigit(text[end]) || end == 0 && (text[0] == '+' || text[0] == '-')) {
		end++
	}
	n, err := strconv.Atoi(text[:end])
	return n, err == nil && n >= 0
}

// byUUIDPrefix is the one GPU whose UUID begins so; NoNode, and ok, where a UUID is not known and none that is does.
func byUUIDPrefix(g *Graph, word string) (at NodeID, ok bool) {
	at, unknown, found := NoNode, false, 0
	word = lower(word)
	for _, id := range g.GPUs() {
		d := g.Nodes[id].GPU
		if d == nil || d.UUID == "" {
			unknown = true
			continue
		}
		if uuid := lower(d.UUID); word != "gpu-" && (strings.HasPrefix(uuid, word) || strings.HasPrefix(word, uuid)) {
			at, found = id, found+1
		}
	}
	return at, found == 1 || found == 0 && unknown
}

// partOf is the GPU that a part is of: the one that an old name holds (MIG-GPU-UUID/1/0), the one of which the driver lists it, or the only one
// that has parts. It is NoNode where there are several and the driver lists it of none.
func (h *Host) partOf(g *Graph, word string) NodeID {
	if rest, old := strings.CutPrefix(word, "MIG-GPU-"); old {
		uuid, _, _ := strings.Cut(rest, "/")
		at, _ := byUUIDPrefix(g, "GPU-"+uuid)
		return at
	}
	for _, f := range h.GPUs.Or(nil) {
		if slices.ContainsFunc(f.Parts, func(uuid string) bool { return lower(uuid) == lower(word) }) {
			return g.ByBus(f.Bus)
		}
	}
	at := NoNode
	for _, f := range h.GPUs.Or(nil) {
		if !f.MIG {
			continue
		}
		if at != NoNode {
			return NoNode
		}
		at = g.ByBus(f.Bus)
	}
	return at
}

// unlike reports whether the host has GPUs of several models.
func (h *Host) unlike() bool {
	gpus := h.GPUs.Or(nil)
	return slices.ContainsFunc(gpus, func(f GPUFacts) bool { return f.Name != gpus[0].Name })
}

// variable is the last of a name in an environment, which counts.
func variable(environ []string, name string) (value string, set bool) {
	for _, pair := range environ {
		if v, is := strings.CutPrefix(pair, name+"="); is {
			value, set = v, true
		}
	}
	return value, set
}
