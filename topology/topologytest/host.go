package topologytest

// TwoSockets is a host of 2 sockets. Each has a switch over 2 GPUs (0000:13:00.0, 0000:14:00.0; 0000:a3:00.0, 0000:a4:00.0) and a
// RoCE card (mlx5_0 at 0000:15:00.0, mlx5_1 at 0000:a5:00.0). The ports of the second one's switch redirect peer traffic.
func TwoSockets() Tree {
	t := NewTree()
	t.CPUs(16, 2)
	for s, d := range []string{"0000:1", "0000:a"} {
		acs := []int{0x1, 0x1d}[s]
		root, up := d+"0:01.0", d+"1:00.0"
		t.Bridge(s, 0, root)
		t.Bridge(s, -1, root, up)
		for k, dev := range []string{"3:00.0", "4:00.0", "5:00.0"} {
			down := d + "2:0" + string(rune('0'+k)) + ".0"
			t.Bridge(s, acs, root, up, down)
			chain := []string{root, up, down, d + dev}
			if k < 2 {
				t.Device(s, "0x030200", "0x10de", chain...)
				continue
			}
			card := t.Device(s, "0x020700", "0x15b3", chain...)
			t.Put(card, "max_link_speed", "16.0 GT/s PCIe")
			name := "mlx5_" + string(rune('0'+s))
			port := t.RDMA(card, name, "Ethernet", "4: ACTIVE", "200 Gb/sec (2X NDR)")
			t.GID(port, 0, "fe80::1", "RoCE v2", "eth"+string(rune('0'+s)))
			t.GID(port, 1, "::ffff:192.0.2.1", "RoCE v2", "eth"+string(rune('0'+s)))
			t.NetDevice(card, "eth"+string(rune('0'+s)), "up", "200000", "4200")
		}
	}
	t.Device(0, "0x030000", "0x1a03", "0000:10:02.0") // a management controller's display
	t.NetDevice("", "lo", "unknown", "-1", "65536")
	t.Put("sys/kernel/iommu_groups/0", "type", "DMA-FQ")
	t.Put("sys/class/iommu", "dmar0", "")
	return t
}
