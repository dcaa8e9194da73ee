// Package topologytest makes up hosts: trees of /sys, /proc and /dev for topology.Discover, and for what reads its facts, to be
// tested on. A tree is built device by device, with any file missing, wrong or unreadable.
//
//	tree := topologytest.NewTree()
//	tree.CPUs(16, 2)
//	card := tree.Device(0, "0x020700", "0x15b3", "0000:10:01.0")
//	port := tree.RDMA(card, "mlx5_0", "Ethernet", "4: ACTIVE", "100 Gb/sec (2X HDR)")
//	tree.GID(port, 0, "::ffff:192.0.2.1", "RoCE v2", "eth0")
//	host := topology.Discover(tree, topology.Unknown[[]topology.GPUFacts]("no driver"))
package topologytest

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing/fstest"
)

// Tree is a made-up root folder. It is a file system; its files can be changed as those of a MapFS.
type Tree struct {
	fstest.MapFS
	Fail map[string]error // files that open and fail to be read, by name
}

// NewTree returns an empty tree.
func NewTree() Tree { return Tree{fstest.MapFS{}, map[string]error{}} }

// maxLinks is how many symbolic links Linux follows on one path.
const maxLinks = 40

// follow is an error for a path on which there are more links than that: a MapFS would follow those that lead back to themselves
// until the stack is full.
func (t Tree) follow(op, name string) error {
	at := name
	for range maxLinks {
		next, linked := t.target(at)
		if !linked {
			return nil
		}
		at = next
	}
	return &fs.PathError{Op: op, Path: name, Err: syscall.ELOOP}
}

// target is a path with the first link on it resolved, if there is one.
func (t Tree) target(name string) (to string, linked bool) {
	for end := 1; end <= len(name); end++ {
		if end < len(name) && name[end] != '/' {
			continue
		}
		if f := t.MapFS[name[:end]]; f != nil && f.Mode.Type() == fs.ModeSymlink && !path.IsAbs(string(f.Data)) {
			return path.Join(path.Dir(name[:end]), string(f.Data), name[end:]), true
		}
	}
	return name, false
}

// Stat, Lstat, ReadLink and ReadDir are MapFS's where links end.
func (t Tree) Stat(name string) (fs.FileInfo, error) {
	if err := t.follow("stat", name); err != nil {
		return nil, err
	}
	return t.MapFS.Stat(name)
}

func (t Tree) Lstat(name string) (fs.FileInfo, error) {
	if err := t.follow("lstat", path.Dir(name)); err != nil {
		return nil, err
	}
	return t.MapFS.Lstat(name)
}

func (t Tree) ReadLink(name string) (string, error) {
	if err := t.follow("readlink", path.Dir(name)); err != nil {
		return "", err
	}
	return t.MapFS.ReadLink(name)
}

func (t Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := t.follow("open", name); err != nil {
		return nil, err
	}
	return t.MapFS.ReadDir(name)
}

// ReadFile is what is read of the opened file.
func (t Tree) ReadFile(name string) ([]byte, error) {
	f, err := t.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Open fails as the kernel does: the file opens, reading it doesn't.
func (t Tree) Open(name string) (fs.File, error) {
	if err := t.follow("open", name); err != nil {
		return nil, err
	}
	f, err := t.MapFS.Open(name)
	if bad := t.Fail[name]; bad != nil && err == nil {
		return failing{f, name, bad}, nil
	}
	return f, err
}

type failing struct {
	fs.File
	name string
	err  error
}

func (f failing) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: f.name, Err: f.err}
}

// Put writes files: name, text, name, text, …
func (t Tree) Put(dir string, nameText ...string) {
	for i := 0; i < len(nameText); i += 2 {
		t.MapFS[path.Join(dir, nameText[i])] = &fstest.MapFile{Data: []byte(nameText[i+1] + "\n"), Mode: 0o444}
	}
}

// Link makes a relative symbolic link, as sysfs has, to a name from the root.
func (t Tree) Link(name, to string) {
	up := strings.Repeat("../", strings.Count(name, "/"))
	t.MapFS[name] = &fstest.MapFile{Data: []byte(up + to), Mode: fs.ModeSymlink | 0o777}
}

// CPUs makes the CPUs 0 to n-1, evenly spread over NUMA nodes.
func (t Tree) CPUs(n, nodes int) {
	t.Put("sys/devices/system/cpu", "online", fmt.Sprintf("0-%d", n-1))
	t.Put("proc/self", "status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t"+fmt.Sprintf("0-%d", n-1), "cgroup", "0::/")
	t.Put("proc", "cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Test", "modules", "xfs 1 0 - Live 0x0")
	t.Put("sys/class/misc", "keep", "")
	for i := range nodes {
		per := n / nodes
		t.Put(fmt.Sprintf("sys/devices/system/node/node%d", i), "cpulist", fmt.Sprintf("%d-%d", i*per, (i+1)*per-1),
			"meminfo", fmt.Sprintf("Node %d MemTotal:       1024 kB", i), "distance", "10 21")
	}
}

// Device makes a PCI device below the ports given, from the root port down to the device itself, and returns its folder. It idles
// at 2.5 of its 32 GT/s.
func (t Tree) Device(numa int, class, vendor string, chain ...string) string {
	bus := chain[len(chain)-1]
	dir := "sys/devices/pci" + chain[0][:7] + "/" + path.Join(chain...)
	t.Put(dir, "class", class, "vendor", vendor, "device", "0x0001", "subsystem_vendor", "0x0002", "subsystem_device", "0x0003",
		"max_link_speed", "32.0 GT/s PCIe", "current_link_speed", "2.5 GT/s PCIe", "max_link_width", "16", "current_link_width", "16",
		"numa_node", fmt.Sprint(numa))
	t.Link("sys/bus/pci/devices/"+bus, dir)
	return dir
}

// Bridge makes a port with an ACS control register; negative: without the capability.
func (t Tree) Bridge(numa, acs int, chain ...string) {
	dir := t.Device(numa, "0x060400", "0x1000", chain...)
	t.MapFS[dir+"/config"] = &fstest.MapFile{Data: ConfigSpace(acs, 4096)}
}

// ConfigSpace returns a PCIe port's configuration space, cut to a length, with the ACS capability behind another one.
func ConfigSpace(acs, length int) []byte {
	c := make([]byte, 4096)
	c[0x34], c[0x40] = 0x40, 0x10
	binary.LittleEndian.PutUint32(c[0x100:], 0x0001|1<<16|0x148<<20) // AER
	if acs >= 0 {
		binary.LittleEndian.PutUint32(c[0x148:], 0x000d|1<<16)
		binary.LittleEndian.PutUint16(c[0x148+6:], uint16(acs))
	}
	return c[:length]
}

// RDMA makes an RDMA device of a PCI device with one port, and returns the port's folder. Without a layer the file is missing.
func (t Tree) RDMA(pciDir, name, layer, state, rate string) string {
	dir := path.Join(pciDir, "infiniband", name)
	t.Put(dir, "fw_ver", "28.1.2", "hca_type", "MT4129", "node_guid", "0200:0000:0000:0001", "sys_image_guid", "0200:0000:0000:0001")
	port := path.Join(dir, "ports/1")
	t.Put(port, "state", state, "phys_state", "5: LinkUp", "rate", rate)
	if layer != "" {
		t.Put(port, "link_layer", layer)
	}
	t.Link("sys/class/infiniband/"+name, dir)
	return port
}

// GID sets an entry of a port's table. Reading the type of one whose kind is EINVAL fails, as for empty entries.
func (t Tree) GID(port string, index int, gid, kind, dev string) {
	i := fmt.Sprint(index)
	t.Put(port, "gids/"+i, gid, "gid_attrs/types/"+i, kind, "gid_attrs/ndevs/"+i, dev)
	if kind == "EINVAL" {
		// Through the class's link and in the device's own folder.
		t.Fail[port+"/gid_attrs/types/"+i] = syscall.EINVAL
		name := path.Base(path.Dir(path.Dir(port)))
		t.Fail["sys/class/infiniband/"+name+"/ports/1/gid_attrs/types/"+i] = syscall.EINVAL
	}
}

// NetDevice makes a network device of a PCI device, or a virtual one for "".
func (t Tree) NetDevice(pciDir, name, state, speed, mtu string) {
	if pciDir == "" {
		pciDir = "sys/devices/virtual"
	}
	dir := path.Join(pciDir, "net", name)
	t.Put(dir, "operstate", state, "speed", speed, "mtu", mtu, "type", "1")
	t.Link("sys/class/net/"+name, dir)
}
