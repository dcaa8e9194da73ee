package topology

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
)

// ParseJSON reads what [Graph.WriteJSON] wrote. Other JSON is an error, and not a host on which there is nothing.
func ParseJSON(r io.Reader) (*Graph, error) {
	var g Graph
	d := json.NewDecoder(io.LimitReader(r, maxFile))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		return nil, fmt.Errorf("read topology as JSON: want what gccl topo --format json writes: %w", err)
	}
	if err := g.Check(); err != nil {
		return nil, fmt.Errorf("read topology as JSON: %w", err)
	}
	return &g, nil
}

// maxFile bounds what is read of a topology file: the largest known ones have 200 KiB.
const maxFile = 16 << 20

// WriteJSON writes g for [ParseJSON]. Equal graphs are written as equal bytes.
func (g *Graph) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(g)
}

// Digest returns a hash of all of g, for hosts to compare what they decide from.
func (g *Graph) Digest() string {
	b, err := json.Marshal(g)
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
