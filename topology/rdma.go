package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// RDMAFacts is an RDMA device as sysfs shows it. Its limits (queue pairs, completion entries) only libibverbs knows.
type RDMAFacts struct {
	Name     string       `json:"name"`     // mlx5_0
	Bus      Fact[string] `json:"bus"`      // the device on PCI
	Software bool         `json:"software"` // Soft-RoCE, siw: a driver over a network device
	Firmware Fact[string] `json:"firmware"`
	Model    Fact[string] `json:"model"` // hca_type
	Board    Fact[string] `json:"board"`
	NodeGUID Fact[string] `json:"node_guid"`
	CardGUID Fact[string] `json:"card_guid"` // sys_image_guid, the same for the functions of one card
	Ports    []PortFacts  `json:"ports"`
}

// PortFacts is a port of an RDMA device.
type PortFacts struct {
	Device    string       `json:"device"`
	Number    int          `json:"number"`   // from 1
	State     Fact[string] `json:"state"`    // ACTIVE, DOWN, INIT, ARMED
	Physical  Fact[string] `json:"physical"` // LinkUp, Disabled, Polling
	Layer     Fact[string] `json:"layer"`    // Ethernet or InfiniBand; iWARP
	Mbps      Fact[int]    `json:"mbps"`
	Rate      Fact[string] `json:"rate"` // "400 Gb/sec (4X NDR)"
	MTU       Fact[int]    `json:"mtu"`  // active, in bytes of payload
	NetDevice Fact[string] `json:"net_device"`
	GIDs      []GID        `json:"gids"` // those that are set
	TableSize int          `json:"table_size"`
	Subnet    Fact[string] `json:"subnet"` // InfiniBand's or IP's, as 192.0.2.0/24
}

// GID is one entry of a port's table.
type GID struct {
	Index     int          `json:"index"`
	Addr      netip.Addr   `json:"addr"` // IPv4 in IPv6 form
	Type      Fact[string] `json:"type"` // "RoCE v2", "IB/RoCE v1"
	NetDevice Fact[string] `json:"net_device"`
}

const (
	maxGIDs = 1024 // in a table
	// gapGIDs is after how many entries in a row that are not set no more are read: cards have no more than that, Soft-RoCE has 1,024, and the
	// kernel sets the first that is free. A file for each is most of what there is to read of such a host.
	gapGIDs = 256
)

func (s sysfs) rdmaFacts(nets []NetFacts) Fact[[]RDMAFacts] {
	const dir = "sys/class/infiniband"
	names, err := s.list(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(s.root, "sys/class"); err != nil {
			return Unknown[[]RDMAFacts]("%s", reason(err))
		}
		return Known([]RDMAFacts(nil)) // no RDMA driver is loaded
	}
	if err != nil {
		return Unknown[[]RDMAFacts]("%s", reason(err))
	}
	var all []RDMAFacts
	for _, name := range names {
		at := path.Join(dir, name)
		d := RDMAFacts{
			Name: name, Bus: s.pciOf(at), Firmware: s.text(at, "fw_ver"), Model: s.text(at, "hca_type"), Board: s.text(at, "board_id"),
			NodeGUID: s.text(at, "node_guid"), CardGUID: s.text(at, "sys_image_guid"),
		}
		to, err := s.link(at)
		d.Software = err == nil && strings.Contains("/"+to, "/virtual/")
		ports, _ := s.numbered("", at, "ports")
		for _, n := range ports {
			d.Ports = append(d.Ports, s.port(d, n, nets))
		}
		all = append(all, d)
	}
	return Known(all)
}

func (s sysfs) port(d RDMAFacts, number int, nets []NetFacts) PortFacts {
	dir := path.Join("sys/class/infiniband", d.Name, "ports", strconv.Itoa(number))
	word := func(t string) (string, error) { // "4: ACTIVE"
		if _, w, ok := strings.Cut(t, ":"); ok {
			t = w
		}
		return strings.TrimPrefix(strings.TrimSpace(t), "PORT_"), nil
	}
	p := PortFacts{
		Device: d.Name, Number: number, State: then(s.text(dir, "state"), word), Physical: then(s.text(dir, "phys_state"), word),
		Layer: s.text(dir, "link_layer"), Rate: s.text(dir, "rate"),
	}
	p.Mbps = then(p.Rate, func(t string) (int, error) {
		first, _, _ := strings.Cut(t, " ")
		f, err := strconv.ParseFloat(first, 64)
		if err != nil || !(f > 0 && f < 1e6) {
			return 0, fmt.Errorf("rate %q is no number of Gb/sec", shorten(t))
		}
		return int(f * 1000), nil
	})
	indexes, err := s.numbered("", dir, "gids")
	gap := 0
	for _, i := range indexes {
		if i >= maxGIDs {
			break
		}
		p.TableSize = i + 1
		if gap++; gap > gapGIDs {
			continue
		}
		addr, ok := then(s.text(dir, "gids", strconv.Itoa(i)), netip.ParseAddr).Get()
		if !ok || addr.IsUnspecified() {
			continue
		}
		gap = 0
		p.GIDs = append(p.GIDs, GID{
			Index: i, Addr: addr, Type: s.text(dir, "gid_attrs/types", strconv.Itoa(i)), NetDevice: s.text(dir, "gid_attrs/ndevs", strconv.Itoa(i)),
		})
	}
	if !p.Layer.known && p.roceGIDs() {
		p.Layer = Known("Ethernet") // drivers from before link_layer; only RoCE has GID types
	}
	if node := s.text("sys/class/infiniband", d.Name, "node_type"); strings.Contains(node.Or(""), "RNIC") {
		p.Layer = Known("iWARP") // over Ethernet, too, and without writes that tell
	}
	p.NetDevice = s.netDeviceOf(d, p, err)
	p.MTU = p.activeMTU(nets)
	p.Subnet = s.subnet(p)
	return p
}

func (p PortFacts) roceGIDs() bool {
	for _, g := range p.GIDs {
		if strings.Contains(g.Type.Or(""), "RoCE v2") {
			return true
		}
	}
	return false
}

// netDeviceOf is the device of the first GID, or else the only one that the same card has.
func (s sysfs) netDeviceOf(d RDMAFacts, p PortFacts, err error) Fact[string] {
	for _, g := range p.GIDs {
		if g.NetDevice.Or("") != "" {
			return g.NetDevice
		}
	}
	if parent, ok := s.text("sys/class/infiniband", d.Name, "parent").Get(); ok && d.Software {
		return Known(parent)
	}
	names, listErr := s.list("sys/class/infiniband", d.Name, "device/net")
	if len(names) == 1 {
		return Known(names[0])
	}
	if err == nil {
		err = listErr
	}
	if err == nil {
		err = fmt.Errorf("the card has %d network devices", len(names))
	}
	return Unknown[string]("%s", reason(err))
}

// roceOverhead is what the kernel reserves of a network device's MTU for RoCE's headers: GRH 40, UDP 8, BTH 12, XRC 4, atomic
// 28, ICRC 4.
const roceOverhead = 96

// activeMTU is what the kernel's drivers make of the network device's MTU. For InfiniBand the subnet manager decides, and sysfs
// doesn't say.
func (p PortFacts) activeMTU(nets []NetFacts) Fact[int] {
	if layer := p.Layer.Or(""); layer != "Ethernet" {
		return Unknown[int]("sysfs does not hold it for link layer %q; libibverbs does", layer)
	}
	for _, n := range nets {
		if n.Name == p.NetDevice.Or("") {
			return then(n.MTU, func(mtu int) (int, error) {
				for _, size := range []int{4096, 2048, 1024, 512, 256} {
					if mtu-roceOverhead >= size {
						return size, nil
					}
				}
				return 0, fmt.Errorf("the MTU %d of %s is too small for RoCE", mtu, n.Name)
			})
		}
	}
	return Unknown[int]("its network device %s is not here", p.NetDevice)
}
