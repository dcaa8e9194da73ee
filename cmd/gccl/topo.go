package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/cmd/gccl/topo"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/nvml"
)

func topoCommand() *cobra.Command {
	var root, load, format string
	c := &cobra.Command{
		Use:   "topo",
		Short: "Show the topology of this host and what gccl would choose on it",
		Long: `Show the topology of this host: CPUs, PCI switches, GPUs, network ports and NVLinks, and what gccl would choose on it: how
GPUs reach each other, each GPU's network port and CPUs, each RDMA port's GID, and the rings of a job on this host alone.

  text    for reading, with what could not be found out and why
  matrix  as nvidia-smi topo -m prints it
  xml     NCCL's topology file, for NCCL_TOPO_FILE and for --load
  json    the graph, for programs and for --load
  svg     a picture, for a browser
  html    the picture with its explanation, in one file`,
		Example: `  gccl topo
  gccl topo --format xml > host.xml
  gccl topo --load host.xml --format html > host.html
  nvidia-smi topo -m > host.txt && gccl topo --load host.txt`,
		Args: flagsOnly("--load"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, ok := topo.Formats()[format]
			if !ok {
				return usageError{fmt.Errorf("--format %q; want one of %s", format, strings.Join(topo.FormatNames(), ", "))}
			}
			if root != "" && load != "" {
				return usageError{fmt.Errorf("--root and --load: a host is either discovered or loaded")}
			}
			host, graph, err := look(root, load)
			if err != nil {
				return usageError{err}
			}
			return write(cmd.OutOrStdout(), host, graph)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&root, "root", "", "discover below this `folder`, a copy of another host's /sys and /proc with its symbolic links, instead of /")
	f.StringVar(&load, "load", "", "show this `file` instead: NCCL's XML, gccl's JSON or the output of nvidia-smi topo -m")
	f.StringVar(&format, "format", "text", strings.Join(topo.FormatNames(), ", "))
	return c
}

// look discovers a host or loads its graph; of a loaded one there are no facts.
func look(root, load string) (*topology.Host, *topology.Graph, error) {
	if load != "" {
		f, err := os.Open(load)
		if err != nil {
			return nil, nil, fmt.Errorf("--load: %w", err)
		}
		defer f.Close()
		g, err := topology.Parse(f)
		if err != nil {
			return nil, nil, fmt.Errorf("--load %s: %w", load, err)
		}
		return nil, g, nil
	}
	var h *topology.Host
	err := discover(root, func(_ fs.FS, found *topology.Host) { h = found })
	if err != nil {
		return nil, nil, err
	}
	return h, h.Graph(), nil
}

// discover discovers the host below root, "" for this one, and calls use with it and its files, which are gone afterwards. Of this
// host the GPUs' driver is asked too.
func discover(root string, use func(files fs.FS, h *topology.Host)) error {
	if root == "" {
		files := os.DirFS("/")
		use(files, topology.Discover(files, nvml.GPUs()))
		return nil
	}
	r, err := os.OpenRoot(root) // its links must not lead out to this host
	if err != nil {
		return fmt.Errorf("--root: %w", err)
	}
	defer r.Close()
	if !hasFolder(r, "sys") && !hasFolder(r, "proc") {
		return fmt.Errorf("--root %s: it has neither a folder sys nor one proc; want a copy of a host's /sys and /proc, or / of one", root)
	}
	use(r.FS(), topology.Discover(r.FS(), topology.Unknown[[]topology.GPUFacts]("files don't tell what the driver knows")))
	return nil
}

func hasFolder(r *os.Root, name string) bool {
	info, err := r.Stat(name)
	return err == nil && info.IsDir()
}
