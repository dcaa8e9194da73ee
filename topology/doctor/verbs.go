package doctor

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// VerbsNode is the character device through which applications reach an RDMA device.
type VerbsNode struct {
	Device string              `json:"device"` // mlx5_0
	Path   string              `json:"path"`   // /dev/infiniband/uverbs0
	Open   topology.Fact[bool] `json:"open"`   // true, or unknown with the reason why it can't be opened
}

// verbs looks at them. A host whose /dev is hidden, as from a recording, doesn't tell.
func (f files) verbs() topology.Fact[[]VerbsNode] {
	const class = "sys/class/infiniband_verbs"
	for _, dir := range []string{"dev", "sys/class"} {
		if _, err := fs.Stat(f.root, dir); err != nil {
			return unread[[]VerbsNode](dir, err)
		}
	}
	if _, err := fs.Stat(f.root, class); errors.Is(err, fs.ErrNotExist) {
		return topology.Known([]VerbsNode{}) // ib_uverbs is not loaded
	}
	return parsed(f.names(class), func(names []string) ([]VerbsNode, string) {
		nodes := []VerbsNode{}
		for _, name := range names {
			device, ok := f.text(class, name, "ibdev").Get()
			if !ok {
				continue // abi_version
			}
			nodes = append(nodes, VerbsNode{Device: device, Path: "/dev/infiniband/" + name, Open: f.open("dev/infiniband/" + name)})
		}
		return nodes, ""
	})
}

// open opens a device for reading, or says why that fails. A pipe in its place, which would block for ever, is not opened.
func (f files) open(name string) topology.Fact[bool] {
	info, err := fs.Stat(f.root, name)
	if err != nil {
		return unread[bool](name, err)
	}
	if info.Mode()&fs.ModeNamedPipe != 0 {
		return topology.Unknown[bool]("/%s is a pipe", name)
	}
	file, err := f.root.Open(name)
	if err != nil {
		return unread[bool](name, err)
	}
	_ = file.Close() // nothing was written
	return topology.Known(true)
}

// Congestion is what sysfs shows of how a RoCE port keeps from losing packets. Drivers outside the kernel show all of it; those in
// the kernel show PFC through DCB alone, which is not in files.
type Congestion struct {
	Device string                          `json:"device"`
	Port   int                             `json:"port"`
	Net    string                          `json:"net"`
	PFC    topology.Fact[string]           `json:"pfc"`           // a digit for each priority
	ECN    topology.Fact[bool]             `json:"ecn"`           // both as sender and as receiver, at any priority
	Class  topology.Fact[string]           `json:"traffic_class"` // that the device sets of itself
	Lost   topology.Fact[map[string]int64] `json:"lost"`          // counters of loss that are not 0
}

func (f files) congestion(p topology.PortFacts) Congestion {
	net := p.NetDevice.Or("")
	device := "sys/class/infiniband/" + p.Device
	c := Congestion{Device: p.Device, Port: p.Number, Net: net, Class: f.text(device, "tc", strconv.Itoa(p.Number), "traffic_class")}
	c.PFC, c.ECN = topology.Unknown[string]("the port's network device is not known"), topology.Unknown[bool]("the port's network device is not known")
	if net != "" {
		c.PFC = f.text("sys/class/net", net, "qos/pfc")
		c.ECN = f.ecn("sys/class/net/" + net + "/ecn")
	}
	counters := device + "/ports/" + strconv.Itoa(p.Number) + "/hw_counters"
	c.Lost = parsed(f.names(counters), func(names []string) (map[string]int64, string) {
		lost := map[string]int64{}
		for _, name := range names {
			switch name {
			case "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "out_of_buffer", "rnr_nak_retry_err":
				if n, err := strconv.ParseInt(f.text(counters, name).Or(""), 10, 64); err == nil && n > 0 {
					lost[name] = n
				}
			}
		}
		return lost, ""
	})
	return c
}

// ecn looks whether the port reacts to marked packets and tells senders of them.
func (f files) ecn(dir string) topology.Fact[bool] {
	both := true
	for _, role := range []string{"roce_rp", "roce_np"} {
		names, ok := f.names(dir + "/" + role + "/enable").Get()
		if !ok {
			return topology.Unknown[bool]("there is no /%s/%s/enable", dir, role)
		}
		on := false
		for _, priority := range names {
			on = on || strings.TrimSpace(f.text(dir, role, "enable", priority).Or("0")) == "1"
		}
		both = both && on
	}
	return topology.Known(both)
}
