package comm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/topology"
)

// File is a file or directory that is named to New, and what comes of that.
type File struct {
	From  string // what names it: GCCL_TOPO_FILE, gccl.toml:3
	Path  string
	Wrong string // "": nothing
	Fix   string // what mends that
	Ends  bool   // New is an error because of it, and not only a warning
}

// Files tries the files and directories that settings and GCCL_SECRET_FILE name, as New does on a host of that topology, and changes none. The
// file of the settings themselves has been read.
func Files(set *settings.Set, getenv func(string) string, host *topology.Graph) (all []File) {
	for _, s := range []struct {
		name string
		try  func(File) File
	}{
		{"topo_file", func(f File) File {
			file, err := readTopology(f.Path)
			if err != nil {
				f.Wrong, f.Ends = err.Error(), !set.Of("topo_file").Foreign
				f.Fix = "name a file of NCCL's XML, gccl's JSON or the output of nvidia-smi topo -m, such as gccl topo --load FILE shows, or none"
			} else if _, why := topology.Merge(file, host); len(why) > 0 {
				f.Wrong, f.Fix = fmt.Sprintf("%s: %s", f.Path, why[0]), "name a file of this host, such as gccl topo --format xml writes, or none"
				if len(why) > 1 {
					f.Wrong += fmt.Sprintf(", and %d more", len(why)-1)
				}
			}
			return f
		}},
		{"topo_dump_file", func(f File) File {
			return f.written(creatable(f.Path), "name a file that the job's user may write, on the host of rank 0, or none")
		}},
		{"recorder", func(f File) File {
			return f.written(recordable(f.Path), "name a directory that the job's user may write to, on every host, or none")
		}},
	} {
		if v := set.Of(s.name); v.Text != "" {
			all = append(all, s.try(File{From: v.Source, Path: v.Text}))
		}
	}
	if name := getenv("GCCL_SECRET_FILE"); name != "" {
		all = append(all, secretFile(File{From: "GCCL_SECRET_FILE", Path: name}, getenv))
	}
	return all
}

// written says what is wrong with where something is to be written.
func (f File) written(err error, fix string) File {
	if err != nil {
		f.Wrong, f.Fix = err.Error(), fix
	}
	return f
}

// creatable returns an error where os.Create would.
func creatable(name string) error {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return recordable(filepath.Dir(name))
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", name)
	}
	if err := unix.Access(name, unix.W_OK); err != nil {
		return fmt.Errorf("write to %s: %w", name, err)
	}
	return nil
}

// secretFile reads a secret as a rank of a job does that some launcher started.
func secretFile(f File, getenv func(string) string) File {
	_, err := bootstrap.Environment(func(name string) string {
		switch name {
		case "GCCL_RANK":
			return "0"
		case "GCCL_WORLD_SIZE":
			return "2"
		case "GCCL_ROOT":
			return "127.0.0.1:1"
		case "GCCL_SECRET", "GCCL_SECRET_FILE":
			return getenv(name)
		}
		return ""
	})
	if err != nil {
		f.Wrong, f.Fix, f.Ends = err.Error(), "name a file that the job's user can read, with the same text on all hosts", true
		return f
	}
	if info, err := os.Stat(f.Path); err == nil && info.Mode().IsRegular() && info.Mode()&0o066 != 0 {
		f.Wrong, f.Fix = fmt.Sprintf("%s (%v): others than its owner may read or change the secret, and join jobs", f.Path, info.Mode()), "chmod 600 "+f.Path
	}
	return f
}
