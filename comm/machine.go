package comm

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/nvml"
)

// machine is this host as the ranks of this process see it: discovered once with and once without the GPUs' driver, which takes
// a second to wake where it does not stay loaded and is asked for ranks with a GPU alone.
var machine [2]struct {
	once sync.Once
	seen
}

// seen is what there is.
type seen struct {
	graph *topology.Graph
	nets  []topology.NetFacts
}

func discover(withGPUs bool) seen {
	i, gpus := 0, topology.Unknown[[]topology.GPUFacts]("no rank of this process has a GPU")
	if withGPUs {
		i = 1
	}
	m := &machine[i]
	m.once.Do(func() {
		if withGPUs {
			gpus = nvml.GPUs()
		}
		host := topology.Discover(os.DirFS("/"), gpus)
		m.seen = seen{host.Graph(), host.Nets.Or(nil)}
	})
	return m.seen
}

// look returns this host as the configuration has it. What a topology file of NCCL's is worth is a warning, never an error.
func (f *family) look() (*topology.Graph, error) {
	cfg := f.cfg
	g := discover(!cfg.Device.IsHost()).graph
	if cfg.Topology != "" {
		file, err := readTopology(cfg.Topology)
		switch {
		case err == nil:
			var why []topology.Reason
			if g, why = topology.Merge(file, g); len(why) > 0 {
				f.log.Warn("topology file", "file", cfg.Topology, "set by", cfg.topologyFrom, "reasons", why)
			}
		case cfg.topologyForeign:
			f.log.Warn("topology file is ignored", "file", cfg.Topology, "set by", cfg.topologyFrom, "reason", err)
		default:
			return nil, &misconfigured{fmt.Errorf("comm: topology file (%s): %w", cfg.topologyFrom, err)}
		}
	}
	f.log.Debug("topology of this host", "digest", g.Digest()[:16])
	if cfg.TopologyDump != "" && cfg.Rank == 0 {
		if err := dumpTopology(cfg.TopologyDump, g); err != nil {
			f.log.Warn("topology is not written", "reason", err)
		}
	}
	return g, nil
}

func readTopology(name string) (*topology.Graph, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	g, err := topology.Parse(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return g, nil
}

func dumpTopology(name string, g *topology.Graph) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := g.WriteXML(file); err != nil {
		file.Close()
		return fmt.Errorf("%s: %w", name, err)
	}
	return file.Close()
}

// pack puts a graph into the form in which it travels: some hundred bytes to a few KiB. Equal graphs are equal bytes.
func pack(g *topology.Graph) ([]byte, error) {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := g.WriteJSON(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unpack reads what pack made; of nothing there is no graph.
func unpack(b []byte) (*topology.Graph, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := flate.NewReader(bytes.NewReader(b))
	g, err := topology.ParseJSON(r)
	if err != nil {
		return nil, err
	}
	if rest, err := io.Copy(io.Discard, io.LimitReader(r, 2)); err != nil || rest > 1 { // it ends with a line end
		return nil, fmt.Errorf("topology of %d bytes: something stands behind its end", len(b))
	}
	return g, nil
}
